"""What fairseq loses when a run is resumed: float32 weights, patience."""

import sys
from typing import Any, Callable, Dict, Optional

import torch

from luna_fairseq.engine.mend import Mend

FLOAT32_WEIGHTS = Mend(
    "float32-weights",
    what="stores the float32 weights of --fp16 and --bf16, and the loss scaler's counters, with the "
    "optimizer's state",
    why="it stores the weights of the model only, rounded to 16 bits, and a resumed run starts from them",
)

PATIENCE = Mend(
    "patience",
    what="goes on counting --patience in a run that is started again",
    why="it keeps how long the metric has not improved in the process alone: a run that was killed goes on "
    "for longer",
)


_FP16_OPTIMIZER = "fairseq.optim.fp16_optimizer:_FP16OptimizerMixin"
_COUNTERS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


@FLOAT32_WEIGHTS.around(f"{_FP16_OPTIMIZER}.state_dict")
def _with_float32_weights(state_dict: Callable[..., Any], self: Any) -> Dict[str, Any]:
    state = state_dict(self)
    state["fp32_params"] = [p.detach() for p in _float32_weights(self)]
    if self.scaler is not None:
        state["scaler"] = {name: getattr(self.scaler, name) for name in _COUNTERS}
    return state


@FLOAT32_WEIGHTS.around(f"{_FP16_OPTIMIZER}.load_state_dict")
@torch.no_grad()
def _restoring_float32_weights(
    load_state_dict: Callable[..., Any],
    self: Any,
    state: Dict[str, Any],
    overrides: Optional[Dict[str, Any]] = None,
) -> None:
    load_state_dict(self, state, overrides)
    weights, saved = _float32_weights(self), state.get("fp32_params", [])
    # Weights that were changed since (averaged, loaded from elsewhere) no longer round to the model's.
    if [p.shape for p in weights] == [p.shape for p in saved]:
        for p, q in zip(weights, saved):
            p.copy_(torch.where(_rounded(q, self).to(p.device) == p, q.to(p.device), p))
    if self.scaler is not None:
        for name, value in state.get("scaler", {}).items():
            setattr(self.scaler, name, value)


def _rounded(weights: torch.Tensor, optimizer: Any) -> torch.Tensor:
    return weights.to(optimizer.fp16_params[0].dtype).float()


def _float32_weights(optimizer: Any) -> Any:
    weights = optimizer.fp32_params
    return list(weights.values()) if isinstance(weights, dict) else list(weights)


@PATIENCE.around("fairseq.trainer:Trainer.save_checkpoint")
def _saving_patience(save_checkpoint: Callable[..., Any], self: Any, filename: str, extra_state: Any) -> Any:
    counter = _early_stopping()
    if hasattr(counter, "best"):
        extra_state = {**extra_state, "patience": [float(counter.best), counter.num_runs]}
    return save_checkpoint(self, filename, extra_state)


@PATIENCE.around("fairseq.trainer:Trainer.load_checkpoint")
def _loading_patience(
    load_checkpoint: Callable[..., Any], self: Any, *args: Any, reset_meters: bool = False, **kwargs: Any
) -> Any:
    extra_state = load_checkpoint(self, *args, reset_meters=reset_meters, **kwargs)
    counter = _early_stopping()
    if counter is not None and extra_state and "patience" in extra_state and not reset_meters:
        counter.best, counter.num_runs = extra_state["patience"]
    return extra_state


def _early_stopping() -> Any:
    """fairseq-train's function that counts, on which it keeps the count; None in another program."""
    programs = (sys.modules.get(name) for name in ("__main__", "fairseq_cli.train"))
    return next((f for f in (getattr(m, "should_stop_early", None) for m in programs) if f), None)
