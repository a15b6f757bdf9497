"""The one place that knows which fairseq, torch and numpy are underneath."""

import argparse
import functools
from typing import Any, Callable, List, Optional

import numpy
import torch


def allow_checkpoint_classes() -> None:
    """Let ``torch.load`` accept what fairseq stores in a checkpoint, its ``weights_only`` check staying on.

    Allowed are ``argparse.Namespace`` (configuration) and numpy's arrays and scalars (meters of
    ``--eval-bleu``). Before torch 2.6 the check is off by default, and the list cannot hold an object's
    former name: nothing is done.
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6):
        torch.serialization.add_safe_globals([argparse.Namespace, *_numpy_classes()])


def _numpy_classes() -> List[Any]:
    core = numpy._core if hasattr(numpy, "_core") else numpy.core
    allowed: List[Any] = [numpy.ndarray, numpy.dtype]
    # What a numpy.dtype is an instance of: numpy.dtypes.Float64DType and its like.
    allowed += {type(numpy.dtype(code)) for code in numpy.typecodes["All"]}
    # numpy 2 renamed the module; a file may have been written under either.
    for function in (core.multiarray._reconstruct, core.multiarray.scalar):
        allowed += [(function, f"numpy.{name}.multiarray.{function.__name__}") for name in ("core", "_core")]
    return allowed


def leave_clipping_to_the_optimizer() -> None:
    """Keep fairseq's fp16 and bf16 wrappers from clipping when the wrapped optimizer does it in its step.

    The wrappers ask the wrapped optimizer for the gradient norm and clip to the total norm themselves. An optimizer
    with a true attribute ``clips_each_parameter`` is clipped by no one else; overflow check and logged norm stay.
    """
    from fairseq.optim import fp16_optimizer

    for mixin, inner in (
        (fp16_optimizer._FP16OptimizerMixin, "fp32_optimizer"),
        (fp16_optimizer._MemoryEfficientFP16OptimizerMixin, "wrapped_optimizer"),
    ):
        if not hasattr(mixin.clip_grad_norm, "respects_clips_each_parameter"):
            mixin.clip_grad_norm = _without_own_clipping(mixin.clip_grad_norm, inner)


def _without_own_clipping(clip_grad_norm: Callable[..., Any], inner: str) -> Callable[..., Any]:
    @functools.wraps(clip_grad_norm)
    def wrapped(self: Any, max_norm: float, aggregate_norm_fn: Optional[Callable[..., Any]] = None) -> Any:
        if getattr(getattr(self, inner), "clips_each_parameter", False):
            max_norm = 0.0
        return clip_grad_norm(self, max_norm, aggregate_norm_fn)

    wrapped.respects_clips_each_parameter = True  # type: ignore[attr-defined]
    return wrapped


allow_checkpoint_classes()
