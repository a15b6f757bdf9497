"""fairseq patch ``half-precision``: save float32 weights in --fp16 and --bf16 runs.

The patch also disables fairseq's clipping of the total gradient norm for optimizers that clip each gradient.
"""

from typing import Any, Dict

import torch

from luna_fairseq.engine.patch import RESULTS, Function, Patch

HALF_PRECISION = Patch(
    "half-precision",
    RESULTS,
    "A resumed run of --fp16 or --bf16 differs from an uninterrupted run, because checkpoints have weights "
    "that are rounded to 16 bits and no counters of the loss scale. With --clip-mode each, gradients are "
    "also clipped by their total norm.",
)

_OPTIMIZERS = "fairseq.optim.fp16_optimizer"
_COUNTERS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


@HALF_PRECISION.replaces(f"{_OPTIMIZERS}:_FP16OptimizerMixin.state_dict")
def _save_float32_weights(state_dict: Function, self: Any) -> Dict[str, Any]:
    """Replacement for the half-precision optimizer's ``state_dict`` that also saves the float32 weights.

    fairseq itself saves only weights rounded to 16 bits. The counters of the loss scaler are saved as well.
    """
    state = state_dict(self)
    state["fp32_params"] = [p.detach() for p in _float32_weights(self)]
    if self.scaler is not None:
        state["scaler"] = {name: getattr(self.scaler, name) for name in _COUNTERS}
    return state


@HALF_PRECISION.replaces(f"{_OPTIMIZERS}:_FP16OptimizerMixin.load_state_dict")
@torch.no_grad()
def _restore_float32_weights(load: Function, self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> None:
    """Replacement for the optimizer's ``load_state_dict`` that also restores the saved float32 weights.

    A float32 weight is restored only if it rounds to the weight in the model. Otherwise, the model has loaded
    different weights, such as a moving average.
    """
    load(self, state_dict, *args, **kwargs)
    weights, saved = _float32_weights(self), state_dict.get("fp32_params", [])
    # If the model has averaged weights or weights from another file, the saved weights do not round to them.
    if [p.shape for p in weights] == [p.shape for p in saved]:
        for p, q in zip(weights, saved):
            rounded = q.to(self.fp16_params[0].dtype).float().to(p.device)
            p.copy_(torch.where(rounded == p, q.to(p.device), p))
    if self.scaler is not None:
        for name, value in state_dict.get("scaler", {}).items():
            setattr(self.scaler, name, value)


def _float32_weights(optimizer: Any) -> Any:
    """Return the float32 weights of a half-precision optimizer as a list of tensors."""
    weights = optimizer.fp32_params
    return list(weights.values() if isinstance(weights, dict) else weights)


@HALF_PRECISION.replaces("fairseq.trainer:Trainer.clip_grad_norm")
def _clip_once(clip: Function, self: Any, clip_norm: float) -> Any:
    """Replacement for ``clip_grad_norm`` that ignores ``clip_norm`` if the optimizer clips each gradient."""
    wrapped = (getattr(self.optimizer, name, None) for name in ("fp32_optimizer", "wrapped_optimizer"))
    optimizers = (self.optimizer, *wrapped)
    clips_tensors = any(getattr(optimizer, "clips_each_parameter", False) for optimizer in optimizers)
    return clip(self, 0.0 if clips_tensors else clip_norm)  # 0 disables clipping
