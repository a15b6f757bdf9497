"""Training with --fp16 and --bf16."""

from typing import Any, Dict

import torch

from luna_fairseq.engine.mend import RIGHT, Function, Mend

HALF_PRECISION = Mend(
    "half-precision",
    RIGHT,
    "A resumed run of --fp16 or --bf16 differs from one that never stopped, because checkpoints hold weights "
    "that are rounded to 16 bits and no counters of the loss scale. Gradients are clipped to their total "
    "norm before --clip-mode each clips every tensor.",
)

_OPTIMIZERS = "fairseq.optim.fp16_optimizer"
_COUNTERS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


@HALF_PRECISION.around(f"{_OPTIMIZERS}:_FP16OptimizerMixin.state_dict")
def _with_float32_weights(state_dict: Function, self: Any) -> Dict[str, Any]:
    state = state_dict(self)
    state["fp32_params"] = [p.detach() for p in _float32_weights(self)]
    if self.scaler is not None:
        state["scaler"] = {name: getattr(self.scaler, name) for name in _COUNTERS}
    return state


@HALF_PRECISION.around(f"{_OPTIMIZERS}:_FP16OptimizerMixin.load_state_dict")
@torch.no_grad()
def _restore_float32_weights(load: Function, self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> None:
    load(self, state_dict, *args, **kwargs)
    weights, saved = _float32_weights(self), state_dict.get("fp32_params", [])
    # Averaged weights, or weights that were loaded from another file, no longer round to the model's.
    if [p.shape for p in weights] == [p.shape for p in saved]:
        for p, q in zip(weights, saved):
            rounded = q.to(self.fp16_params[0].dtype).float().to(p.device)
            p.copy_(torch.where(rounded == p, q.to(p.device), p))
    if self.scaler is not None:
        for name, value in state_dict.get("scaler", {}).items():
            setattr(self.scaler, name, value)


def _float32_weights(optimizer: Any) -> Any:
    weights = optimizer.fp32_params
    return list(weights.values() if isinstance(weights, dict) else weights)


@HALF_PRECISION.around("fairseq.trainer:Trainer.clip_grad_norm")
def _without_clipping_twice(clip: Function, self: Any, clip_norm: float) -> Any:
    """Pass 0, which clips nothing, if the optimizer clips every tensor in its own step."""
    wrapped = (getattr(self.optimizer, name, None) for name in ("fp32_optimizer", "wrapped_optimizer"))
    clips = any(getattr(one, "clips_each_parameter", False) for one in (self.optimizer, *wrapped))
    return clip(self, 0.0 if clips else clip_norm)
