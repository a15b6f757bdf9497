"""What fairseq loses when a run is resumed: the order of the data, and the float32 weights of --fp16 and --bf16."""

import functools
from typing import Any, Callable, Dict, Optional

import torch


def keep_state_when_resumed() -> None:
    """Have a resumed run go on exactly as if it had never stopped."""
    _make_batches_as_the_first_epoch_did()
    _keep_float32_weights()


def _make_batches_as_the_first_epoch_did() -> None:
    """Seed the batches of a data set that keeps them for all epochs with the first epoch, whichever comes first.

    fairseq makes them once, at the epoch that the process starts with, from a random order seeded with that epoch: a
    run resumed in another epoch had other batches. (The order of the batches is drawn anew in each epoch, from its
    number.)
    """
    from fairseq.tasks.fairseq_task import FairseqTask

    get_batch_iterator = FairseqTask.get_batch_iterator
    if hasattr(get_batch_iterator, "mended"):
        return

    @functools.wraps(get_batch_iterator)
    def wrapped(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        epoch = kwargs.get("epoch", 1)
        anew = kwargs.get("disable_iterator_cache", False) or kwargs.get("update_epoch_batch_itr", False)
        known = dataset in self.dataset_to_epoch_iter
        if known or anew or epoch <= 1 or not self.can_reuse_epoch_itr(dataset):
            return get_batch_iterator(self, dataset, *args, **kwargs)
        iterator = get_batch_iterator(self, dataset, *args, **{**kwargs, "epoch": 1})
        dataset.set_epoch(epoch)
        iterator.epoch = epoch
        return iterator

    wrapped.mended = True  # type: ignore[attr-defined]
    FairseqTask.get_batch_iterator = wrapped


def _keep_float32_weights() -> None:
    """Store the float32 weights of --fp16 and --bf16 with the optimizer's state, and the loss scaler's counters.

    fairseq stores the weights of the model only, rounded to 16 bits, and starts from them.
    """
    from fairseq.optim import fp16_optimizer

    mixin = fp16_optimizer._FP16OptimizerMixin
    if not hasattr(mixin.state_dict, "mended"):
        mixin.state_dict = _with_float32_weights(mixin.state_dict)
        mixin.load_state_dict = _restoring_float32_weights(mixin.load_state_dict)


_COUNTERS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


def _with_float32_weights(state_dict: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(state_dict)
    def wrapped(self: Any) -> Dict[str, Any]:
        state = state_dict(self)
        state["fp32_params"] = [p.detach() for p in _float32_weights(self)]
        if self.scaler is not None:
            state["scaler"] = {name: getattr(self.scaler, name) for name in _COUNTERS}
        return state

    wrapped.mended = True  # type: ignore[attr-defined]
    return wrapped


def _restoring_float32_weights(load_state_dict: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load_state_dict)
    @torch.no_grad()
    def wrapped(self: Any, state: Dict[str, Any], overrides: Optional[Dict[str, Any]] = None) -> None:
        load_state_dict(self, state, overrides)
        weights, saved = _float32_weights(self), state.get("fp32_params", [])
        # Weights that were changed since (averaged, loaded from elsewhere) no longer round to the model's.
        if [p.shape for p in weights] == [p.shape for p in saved]:
            for p, q in zip(weights, saved):
                p.copy_(torch.where(_rounded(q, self).to(p.device) == p, q.to(p.device), p))
        if self.scaler is not None:
            for name, value in state.get("scaler", {}).items():
                setattr(self.scaler, name, value)

    return wrapped


def _rounded(weights: torch.Tensor, optimizer: Any) -> torch.Tensor:
    return weights.to(optimizer.fp16_params[0].dtype).float()


def _float32_weights(optimizer: Any) -> Any:
    weights = optimizer.fp32_params
    return list(weights.values()) if isinstance(weights, dict) else list(weights)
