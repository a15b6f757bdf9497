"""fairseq patch ``half-precision``: save the float32 weights and the loss scaler of a run.

With the patch, --amp also divides gradients by the loss scale only once, and fairseq does not clip the total
gradient norm for optimizers that clip each gradient.
"""

from typing import Any, Dict

import torch

from luna_fairseq.engine.patch import RESULTS, Function, Patch
from luna_fairseq.errors import InputError

HALF_PRECISION = Patch(
    "half-precision",
    RESULTS,
    "A resumed run of --fp16, --bf16 or --amp differs from an uninterrupted run, because checkpoints have "
    "weights that are rounded to 16 bits and no counters of the loss scale. --amp divides gradients by the "
    "loss scale twice, and --clip-mode each also clips their total norm.",
)

_OPTIMIZERS = (
    "fairseq.optim.fp16_optimizer:_FP16OptimizerMixin",
    "fairseq.optim.fp16_optimizer:_MemoryEfficientFP16OptimizerMixin",
)
_AMP_OPTIMIZER = "fairseq.optim.amp_optimizer:AMPOptimizer"
_COUNTERS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


@HALF_PRECISION.replaces(*(f"{optimizer}.state_dict" for optimizer in _OPTIMIZERS))
def _save_float32_weights(state_dict: Function, self: Any) -> Dict[str, Any]:
    """Replacement for the half-precision optimizers' ``state_dict`` that also saves the float32 weights.

    fairseq itself saves only weights rounded to 16 bits. The counters of the loss scaler are saved as well.
    """
    state = state_dict(self)
    weights = _float32_weights(self)
    if weights:
        state["fp32_params"] = [p.detach() for p in weights]
    if self.scaler is not None:
        state["scaler"] = {name: getattr(self.scaler, name) for name in _COUNTERS}
    return state


@HALF_PRECISION.replaces(*(f"{optimizer}.load_state_dict" for optimizer in _OPTIMIZERS))
@torch.no_grad()
def _restore_float32_weights(load: Function, self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> None:
    """Replacement for the optimizers' ``load_state_dict`` that also restores weights and counters.

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
    """Return the float32 weights of a half-precision optimizer as a list of tensors.

    The list is empty if the optimizer is memory-efficient, because it updates the 16-bit weights themselves.
    """
    weights = getattr(optimizer, "fp32_params", [])
    return list(weights.values() if isinstance(weights, dict) else weights)


@HALF_PRECISION.replaces(f"{_AMP_OPTIMIZER}.state_dict")
def _save_grad_scaler(state_dict: Function, self: Any) -> Dict[str, Any]:
    """Replacement for the ``state_dict`` of --amp that also saves the loss scale and its counter."""
    return {**state_dict(self), "grad_scaler": self.scaler.state_dict()}


@HALF_PRECISION.replaces(f"{_AMP_OPTIMIZER}.load_state_dict")
def _restore_grad_scaler(load: Function, self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> None:
    """Replacement for the ``load_state_dict`` of --amp that also restores the loss scale and its counter."""
    load(self, state_dict, *args, **kwargs)
    if state_dict.get("grad_scaler"):  # empty if the run had no GPU
        self.scaler.load_state_dict(state_dict["grad_scaler"])


@HALF_PRECISION.replaces(f"{_AMP_OPTIMIZER}.step")
def _step_after_one_division(step: Function, self: Any) -> None:
    """Replacement for the ``step`` of --amp that divides the gradients by the loss scale only once."""
    # clip_grad_norm has unscaled them for the torch optimizer. For its wrapper, which fairseq passes here,
    # GradScaler would unscale them again.
    self.scaler.step(self.optimizer)
    self.scaler.update()


@HALF_PRECISION.replaces("fairseq.trainer:Trainer.clip_grad_norm")
def _clip_once(clip: Function, self: Any, clip_norm: float) -> Any:
    """Replacement for ``clip_grad_norm`` that ignores ``clip_norm`` if the optimizer clips each gradient."""
    if clip_norm > 0 and _clips_each_parameter(self.optimizer):
        clip_norm = 0.0  # disables clipping
    return clip(self, clip_norm)


def _clips_each_parameter(optimizer: Any) -> bool:
    """Return True if an optimizer, or an optimizer that it wraps, clips each gradient.

    Raises InputError for one of several optimizers of ``--optimizer composite``.
    """
    if any(map(_clips_each_parameter, getattr(optimizer, "optimizers", {}).values())):
        raise InputError(
            "clip_mode=each in a group of optimizer=composite: fairseq also clips the total norm of all "
            "groups. Use clip_mode=total"
        )
    # The wrappers of half precision, --amp and --use-bmuf.
    wrapped = (
        getattr(optimizer, name, None) for name in ("fp32_optimizer", "wrapped_optimizer", "_optimizer")
    )
    return getattr(optimizer, "clips_each_parameter", False) or any(
        _clips_each_parameter(one) for one in wrapped if one is not None
    )
