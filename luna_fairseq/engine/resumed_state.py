"""What fairseq loses when a run is resumed: the order of the data, the float32 weights of --fp16 and --bf16, patience."""

import functools
import sys
from typing import Any, Callable, Dict, Optional

import torch


def keep_state_when_resumed() -> None:
    """Have a resumed run go on exactly as if it had never stopped."""
    _make_batches_as_the_first_epoch_did()
    _keep_float32_weights()
    _keep_patience()


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


def _keep_patience() -> None:
    """Have ``--patience`` go on counting in a run that is started again.

    fairseq keeps how long the metric has not improved in the process alone: a run that was killed would go on for
    longer than one that was not.
    """
    from fairseq.trainer import Trainer

    if not hasattr(Trainer.load_checkpoint, "mended"):
        Trainer.save_checkpoint = _saving_patience(Trainer.save_checkpoint)
        Trainer.load_checkpoint = _loading_patience(Trainer.load_checkpoint)


def _saving_patience(save_checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save_checkpoint)
    def wrapped(self: Any, filename: str, extra_state: Any) -> Any:
        counter = _early_stopping()
        if hasattr(counter, "best"):
            extra_state = {**extra_state, "patience": [float(counter.best), counter.num_runs]}
        return save_checkpoint(self, filename, extra_state)

    return wrapped


def _loading_patience(load_checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load_checkpoint)
    def wrapped(self: Any, *args: Any, reset_meters: bool = False, **kwargs: Any) -> Any:
        extra_state = load_checkpoint(self, *args, reset_meters=reset_meters, **kwargs)
        counter = _early_stopping()
        if counter is not None and extra_state and "patience" in extra_state and not reset_meters:
            counter.best, counter.num_runs = extra_state["patience"]
        return extra_state

    wrapped.mended = True  # type: ignore[attr-defined]
    return wrapped


def _early_stopping() -> Any:
    """fairseq-train's function that counts, on which it keeps the count; None in another program."""
    programs = (sys.modules.get(name) for name in ("__main__", "fairseq_cli.train"))
    return next((f for f in (getattr(m, "should_stop_early", None) for m in programs) if f), None)
