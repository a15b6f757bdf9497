"""--fp16 and --bf16."""

from typing import Any, Dict

import torch

from luna_fairseq.engine.mend import RIGHT, Function, Mend

CLIPPING = Mend(
    "clipping",
    RIGHT,
    "the wrappers of --fp16 and --bf16 clip to the total norm before the step of an optimizer that "
    "clips by itself (--clip-mode each)",
)

FLOAT32_WEIGHTS = Mend(
    "float32-weights",
    RIGHT,
    "--fp16 and --bf16 store the weights rounded to 16 bits alone, from which a resumed run starts, and "
    "no counters of the loss scaler",
)

_OPTIMIZERS = "fairseq.optim.fp16_optimizer"
_COUNTERS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


@FLOAT32_WEIGHTS.around(f"{_OPTIMIZERS}:_FP16OptimizerMixin.state_dict")
def _with_float32_weights(state_dict: Function, self: Any) -> Dict[str, Any]:
    state = state_dict(self)
    state["fp32_params"] = [p.detach() for p in _float32_weights(self)]
    if self.scaler is not None:
        state["scaler"] = {name: getattr(self.scaler, name) for name in _COUNTERS}
    return state


@FLOAT32_WEIGHTS.around(f"{_OPTIMIZERS}:_FP16OptimizerMixin.load_state_dict")
@torch.no_grad()
def _restoring_float32_weights(load: Function, self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> None:
    load(self, state_dict, *args, **kwargs)
    weights, saved = _float32_weights(self), state_dict.get("fp32_params", [])
    # Weights that were changed since (averaged, loaded from elsewhere) no longer round to the model's.
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


@CLIPPING.around(
    f"{_OPTIMIZERS}:_FP16OptimizerMixin.clip_grad_norm",
    f"{_OPTIMIZERS}:_MemoryEfficientFP16OptimizerMixin.clip_grad_norm",
)
def _without_own_clipping(clip: Function, self: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
    inner = self.fp32_optimizer if hasattr(self, "fp32_optimizer") else self.wrapped_optimizer
    own = getattr(inner, "clips_each_parameter", False)
    return clip(self, 0.0 if own else max_norm, *args, **kwargs)
