"""fairseq patch ``averaged-weights``: correct moving averages of the weights (--store-ema)."""

import contextlib
import logging
from typing import Any, Collection, Dict, Iterator

import torch

from luna_fairseq.engine.patch import RESULTS, Function, Patch

logger = logging.getLogger(__name__)

# Key in a checkpoint's extra_state: updates since the last step of the averages (--ema-update-freq).
_COUNTER = "luna_fairseq.ema_counter"

AVERAGED_WEIGHTS = Patch(
    "averaged-weights",
    RESULTS,
    "The averages of --store-ema are wrong: a tied embedding is averaged once for each of its names. With "
    "--fp16 or --bf16 and without --ema-fp32, most averages never change, because their steps are rounded "
    "away. A model with a buffer of integers, such as a seed, fails at the first update.",
)


@AVERAGED_WEIGHTS.replaces("fairseq.models.ema.ema:EMA._step_internal")
def _average_each_tensor_once(step: Function, self: Any, new_model: Any, updates: Any = None) -> Any:
    """Replacement for ``EMA._step_internal`` that averages a tensor shared by several names only once.

    Tensors of integers, such as seeds, are copied from the model.
    """
    weights = new_model.state_dict()
    self.skip_keys = {
        *self.skip_keys,
        *(name for name, x in weights.items() if torch.is_tensor(x) and not torch.is_floating_point(x)),
    }
    return step(self, _WithoutNames(new_model, _repeated_names(self)), updates)


@AVERAGED_WEIGHTS.replaces("fairseq.models.ema.ema:EMA.restore")
def _restore_all_names(restore: Function, self: Any, state_dict: Any, build_fp32_params: bool = False) -> Any:
    """Replacement for ``EMA.restore`` that restores the averages under every name of a tied parameter."""
    repeated = {name: first for name, first in _repeated_names(self).items() if first in state_dict}
    state_dict = {**{name: state_dict[first] for name, first in repeated.items()}, **state_dict}
    return restore(self, state_dict, build_fp32_params)


def _repeated_names(ema: Any) -> Dict[str, str]:
    """Map each name of a tied tensor in ``ema``, except the tensor's first name, to the first name."""
    first: Dict[Any, str] = {}
    repeated = {}
    for name, average in (ema.fp32_params if ema.config.ema_fp32 else ema.model.state_dict()).items():
        place = (average.data_ptr(), average.dtype, average.shape, average.stride())
        if first.setdefault(place, name) != name and average.numel() > 0:
            repeated[name] = first[place]
    return repeated


class _WithoutNames:
    """Wrapper around a model whose ``state_dict()`` omits the entries named in ``names``."""

    def __init__(self, model: Any, names: Collection[str]) -> None:
        self.model, self.names = model, names

    def state_dict(self) -> Dict[str, Any]:
        return {name: p for name, p in self.model.state_dict().items() if name not in self.names}


@AVERAGED_WEIGHTS.replaces("fairseq.trainer:Trainer._build_ema")
def _average_in_float32(build: Function, self: Any) -> None:
    """Replacement for ``Trainer._build_ema`` that sets --ema-fp32 if --store-ema averages 16-bit weights."""
    common, ema = self.cfg.common, self.cfg.ema
    if ema.store_ema and (common.fp16 or common.bf16) and not ema.ema_fp32:
        logger.info("--store-ema averages in float32 (--ema-fp32), because the weights have 16 bits")
        ema.ema_fp32 = True
    build(self)


def averages_state(trainer: Any) -> Dict[str, Any]:
    """Return the checkpoint entry with the counter of ``--ema-update-freq``. {} without ``--store-ema``."""
    return {_COUNTER: trainer.ema.update_freq_counter} if trainer.cfg.ema.store_ema else {}


@contextlib.contextmanager
def load_without_averages(trainer: Any) -> Iterator[None]:
    """Context manager in which fairseq's trainer loads a checkpoint without its moving averages.

    Otherwise, fairseq would raise KeyError for a checkpoint that has no averages. :func:`restore_averages`
    loads the averages afterwards.
    """
    ema = trainer.cfg.ema
    store_ema, ema.store_ema = ema.store_ema, False
    try:
        yield
    finally:
        ema.store_ema = store_ema


def restore_averages(trainer: Any, path: Any, extra_state: Dict[str, Any], weights: Any) -> None:
    """Restore the moving averages of --store-ema from the ``extra_state`` of the checkpoint ``path``.

    If the checkpoint has no averages, its ``weights`` become the initial averages.
    """
    if not trainer.cfg.ema.store_ema:
        return
    if "ema" not in extra_state:
        logger.warning(f"{path} has no EMA (--store-ema), so the average starts from its weights")
    averages = extra_state.get("ema", weights)
    trainer.ema.restore(averages, build_fp32_params=False)
    if trainer.cfg.ema.ema_fp32:
        trainer.ema.build_fp32_params(extra_state.get("ema_fp32_params", averages))
    trainer.ema.update_freq_counter = extra_state.get(_COUNTER, 0)
