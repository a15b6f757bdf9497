"""The one place that knows which fairseq, torch and numpy are underneath."""

import argparse
import functools
import importlib.util
import sys
import types
import zipfile
from pathlib import Path
from typing import Any, Callable, List, Optional

import numpy
import torch

from luna_fairseq.errors import InputError, MissingRequirementError


def require_fairseq() -> None:
    """Raise MissingRequirementError, naming the engine for this Python, when there is no fairseq."""
    if importlib.util.find_spec("fairseq") is None:
        engine = "fairseq-fixed==0.12.3.1" if sys.version_info >= (3, 11) else "fairseq==0.12.2"
        raise MissingRequirementError(
            f"luna_fairseq works inside fairseq, which this Python does not have: pip install {engine}"
        )


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


def mend_checkpoint_loading() -> None:
    """Have fairseq name a damaged checkpoint file, and an intact one beside it; and load options of older versions."""
    from fairseq import checkpoint_utils

    load = checkpoint_utils.load_checkpoint_to_cpu
    if not hasattr(load, "mended"):
        checkpoint_utils.load_checkpoint_to_cpu = _mended_load(load)


def _mended_load(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def wrapped(path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return _fill_in_options(load(path, *args, **kwargs))
        except Exception as error:
            fault = _fault_of_file(path)
            if fault is None:
                raise
            raise InputError(f"{path} {fault}{_intact_neighbour(Path(path))}") from error

    wrapped.mended = True  # type: ignore[attr-defined]
    return wrapped


def _fill_in_options(state: Any) -> Any:
    """Give options of --eval-bleu that older versions of fairseq stored as None the value that None stood for."""
    options = state.get("args")
    for name in ("eval_bleu_args", "eval_bleu_detok_args"):
        if getattr(options, name, "") is None:
            setattr(options, name, "{}")
    return state


def _fault_of_file(path: str) -> Optional[str]:
    """What makes ``path`` no checkpoint, or None when the failure must have another reason."""
    try:
        state = torch.load(path, map_location="cpu")
    except OSError:
        return None
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        if zipfile.is_zipfile(path):
            refused = next(
                (line.strip() for line in str(error).splitlines() if "Unsupported" in line), str(error)
            )
            return f"holds what torch.load refuses: {refused[:200]}"
        return "cannot be read: it is truncated, or no checkpoint"
    if not isinstance(state, dict) or "model" not in state or not {"args", "cfg"}.intersection(state):
        return "is no fairseq checkpoint: there is no model with its configuration in it"
    return None


def damage(path: Path) -> Optional[str]:
    """What makes ``path`` unreadable, in words that follow its name; None when every byte is as it was written."""
    if zipfile.is_zipfile(str(path)):
        try:
            with zipfile.ZipFile(str(path)) as archive:
                return None if archive.testzip() is None else "is damaged"
        except (zipfile.BadZipFile, OSError, EOFError):
            return "is damaged"
    try:  # before torch 1.6 a checkpoint was no zip archive
        torch.load(str(path), map_location="cpu")
    except Exception:  # what a damaged file raises depends on where it is damaged
        return "is truncated, or no checkpoint"
    return None


def _intact_neighbour(path: Path) -> str:
    others = sorted(path.parent.glob("checkpoint*.pt"), key=lambda p: p.stat().st_mtime, reverse=True)
    newest = next((p for p in others if p.name != path.name and damage(p) is None), None)
    if newest is None:
        return "; there is no intact checkpoint beside it"
    return f"; the newest intact one beside it is {newest}: go on with --restore-file (to generate: --path) {newest}"


def keep_incomplete_batches() -> None:
    """Have fairseq translate, validate and train on every sentence.

    ``--required-batch-size-multiple`` (default 8) asks for batches of at most 8 sentences or a multiple of it. Newer
    versions of fairseq take it to mean that a last batch of fewer is thrown away, silently, also when decoding: a
    score is then of another test set.
    """
    from fairseq.data import data_utils

    batch_by_size = data_utils.batch_by_size
    if not hasattr(batch_by_size, "mended"):
        data_utils.batch_by_size = _with_incomplete_batch(batch_by_size)


def _with_incomplete_batch(batch_by_size: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(batch_by_size)
    def wrapped(indices: Any, *args: Any, **kwargs: Any) -> Any:
        indices = (
            indices if isinstance(indices, numpy.ndarray) else numpy.fromiter(indices, dtype=numpy.int64)
        )
        batches = batch_by_size(indices, *args, **kwargs)
        if kwargs.get("fixed_shapes") is not None:
            return batches
        # Batches follow the order of the indices: what is missing at the end is what was thrown away.
        left = indices[sum(map(len, batches)) :]
        return [*batches, left] if len(left) else batches

    wrapped.mended = True  # type: ignore[attr-defined]
    return wrapped


def let_bf16_run_without_a_tpu() -> None:
    """Have ``--bf16`` mean bfloat16 on the GPU or CPU there is: fairseq's command line takes it to ask for a TPU."""
    from fairseq.distributed import utils

    call_main = utils.call_main
    if hasattr(call_main, "mended"):
        return

    @functools.wraps(call_main)
    def wrapped(cfg: Any, main: Callable[..., Any], **kwargs: Any) -> Any:
        if cfg.common.bf16 and "--tpu" not in sys.argv and importlib.util.find_spec("torch_xla") is None:
            cfg.common.tpu = False
        return call_main(cfg, main, **kwargs)

    wrapped.mended = True  # type: ignore[attr-defined]
    utils.call_main = wrapped


def let_sentences_be_blocks() -> None:
    """Have ``--sample-break-mode eos``, and language models that generate, work with numpy 2.

    fairseq asks for ``numpy.compat.long`` there, which numpy 2 no longer has.
    """
    from fairseq.data import language_pair_dataset, token_block_dataset

    for module in (language_pair_dataset, token_block_dataset):
        if not hasattr(module.np, "compat"):
            mended = types.ModuleType("numpy")
            vars(mended).update(vars(numpy))
            mended.compat = types.SimpleNamespace(long=int)  # type: ignore[attr-defined]
            module.np = mended


def keep_weights_once() -> None:
    """Have fairseq 0.12.2's Transformer encoder layers hold every weight once, as later versions do.

    They keep a second set for torch's fused layer, filled when a checkpoint is loaded: parameters that no gradient
    reaches, at which distributed training stops, for a layer that torch 1.13 refuses ("Mask Type should be defined").
    """
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase as Layer

    init = Layer.__init__
    if "_load_from_state_dict" not in vars(Layer) or hasattr(init, "mended"):
        return
    copies = [f"{part}_{kind}" for part in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")]

    @functools.wraps(init)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        for name in copies:
            delattr(self, name)

    def load(self: Any, state_dict: Any, prefix: str, *args: Any) -> None:
        for name in copies:
            state_dict.pop(prefix + name, None)
        super(Layer, self)._load_from_state_dict(state_dict, prefix, *args)

    build.mended = True  # type: ignore[attr-defined]
    Layer.__init__, Layer._load_from_state_dict = build, load


def save_no_uninitialised_memory() -> None:
    """Have equal runs on fairseq 0.12.2 save equal models.

    Its sinusoidal positions save a number that says where they are by its device, and whose value is what the memory
    held. It is not saved here, as in later versions, and not read from checkpoints that have it.
    """
    from fairseq.modules import SinusoidalPositionalEmbedding

    init = SinusoidalPositionalEmbedding.__init__
    if hasattr(init, "mended"):
        return

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if "_float_tensor" in self._buffers:
            self._non_persistent_buffers_set.add("_float_tensor")
            self._register_load_state_dict_pre_hook(_leave_out_float_tensor)

    wrapped.mended = True  # type: ignore[attr-defined]
    SinusoidalPositionalEmbedding.__init__ = wrapped


def _leave_out_float_tensor(state_dict: Any, prefix: str, *args: Any) -> None:
    state_dict.pop(f"{prefix}_float_tensor", None)


require_fairseq()
allow_checkpoint_classes()
mend_checkpoint_loading()
keep_incomplete_batches()
keep_weights_once()
save_no_uninitialised_memory()
let_bf16_run_without_a_tpu()
let_sentences_be_blocks()
