"""--fp16 and --bf16."""

import importlib.util
import sys
from typing import Any, Callable, Optional

from luna_fairseq.engine.mend import Mend
from luna_fairseq.errors import InputError


def _has_no_tpu() -> bool:
    return importlib.util.find_spec("torch_xla") is None


BF16_WITHOUT_TPU = Mend(
    "bf16-without-tpu",
    what="takes --bf16 to mean bfloat16 on the GPU or CPU there is",
    why="fairseq's command line takes it to ask for a TPU, and fails without torch_xla",
    versions="every version so far, where torch_xla is not installed",
    needed=_has_no_tpu,
)

CLIPPING = Mend(
    "clipping",
    what="leaves clipping to an optimizer that does it itself (--clip-mode each)",
    why="the wrappers of --fp16 and --bf16 clip to the total norm before the optimizer's step; overflow "
    "check and logged norm stay as they are",
)


FINITE = Mend(
    "finite",
    what="ends training whose loss or gradients are infinite or NaN with one line",
    why="a traceback hides what to do",
)


@FINITE.around("fairseq.trainer:Trainer.train_step")
def _of_finite_gradients(train_step: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return train_step(self, *args, **kwargs)
    except Exception as error:
        # fairseq looks for the place with hooks, which fail in turn where an encoder's output is a dict.
        found: Optional[BaseException] = error
        while found is not None and not isinstance(found, FloatingPointError):
            found = found.__context__
        if found is None:
            raise
        reason = str(found).strip().split("\n")[0].rstrip(".")
        raise InputError(
            f"update {self.get_num_updates() + 1}: {reason}. Checkpoints of earlier updates are as they "
            "were: go on from one with a lower --lr, a longer warm-up, or --clip-norm"
        ) from error


@BF16_WITHOUT_TPU.around("fairseq.distributed.utils:call_main")
def _without_tpu(call_main: Callable[..., Any], cfg: Any, main: Callable[..., Any], **kwargs: Any) -> Any:
    if cfg.common.bf16 and "--tpu" not in sys.argv:
        cfg.common.tpu = False
    return call_main(cfg, main, **kwargs)


@CLIPPING.around(
    "fairseq.optim.fp16_optimizer:_FP16OptimizerMixin.clip_grad_norm",
    "fairseq.optim.fp16_optimizer:_MemoryEfficientFP16OptimizerMixin.clip_grad_norm",
)
def _without_own_clipping(
    clip_grad_norm: Callable[..., Any],
    self: Any,
    max_norm: float,
    aggregate_norm_fn: Optional[Callable[..., Any]] = None,
) -> Any:
    inner = self.fp32_optimizer if hasattr(self, "fp32_optimizer") else self.wrapped_optimizer
    if getattr(inner, "clips_each_parameter", False):
        max_norm = 0.0
    return clip_grad_norm(self, max_norm, aggregate_norm_fn)
