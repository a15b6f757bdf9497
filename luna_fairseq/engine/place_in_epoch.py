"""Where in the data a resumed run goes on: in the same batches, also on another number of processes."""

import inspect
import logging
import zlib
from typing import Any, Dict

import numpy

from luna_fairseq.engine.mend import RIGHT, Function, Mend

logger = logging.getLogger(__name__)

PLACE_IN_EPOCH = Mend(
    "place-in-epoch",
    RIGHT,
    "a resumed run reads other batches of the epoch than are left, on another number of processes too, "
    "with a larger --max-tokens ends in a traceback, and makes an update more where --max-update is reached",
)

_ITERATOR = "fairseq.data.iterators:EpochBatchIterator"
# Beside fairseq's own keys in the iterator's state.
_PROCESSES, _BATCHES = "processes", "batches"


@PLACE_IN_EPOCH.around("fairseq.tasks.fairseq_task:FairseqTask.get_batch_iterator")
def _as_in_the_first_epoch(get_batch_iterator: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    call = inspect.signature(get_batch_iterator).bind(self, *args, **kwargs)
    given, dataset = call.arguments, call.arguments["dataset"]
    epoch = given.get("epoch", 1)
    anew = given.get("disable_iterator_cache", False) or given.get("update_epoch_batch_itr", False)
    known = dataset in self.dataset_to_epoch_iter
    if known or anew or epoch <= 1 or not self.can_reuse_epoch_itr(dataset):
        return get_batch_iterator(self, *args, **kwargs)
    given["epoch"] = 1
    iterator = get_batch_iterator(*call.args, **call.kwargs)
    dataset.set_epoch(epoch)
    iterator.epoch = epoch
    return iterator


@PLACE_IN_EPOCH.around(f"{_ITERATOR}.state_dict")
def _with_its_batches(state_dict: Function, self: Any) -> Dict[str, Any]:
    return {**state_dict(self), _PROCESSES: self.num_shards, _BATCHES: _fingerprint(self)}


@PLACE_IN_EPOCH.around(f"{_ITERATOR}.load_state_dict")
def _after_what_was_read(load_state_dict: Function, self: Any, state_dict: Dict[str, Any]) -> Any:
    # fairseq's versions before 2 take a place beyond the end for the end.
    if not state_dict.get("iterations_in_epoch") or state_dict.get("version", 1) < 2:
        return load_state_dict(self, state_dict)
    self.epoch = state_dict["epoch"]
    processes, now = state_dict.get(_PROCESSES, self.num_shards), self.num_shards
    # Each process reads every n-th batch, so that the first ones of the epoch are those that were read.
    read = state_dict["iterations_in_epoch"] * processes
    place, again = divmod(read, now)
    same = state_dict.get(_BATCHES, _fingerprint(self)) == _fingerprint(self)
    if not same or place >= len(self) or (self.grouped_shuffling and processes != now):
        logger.warning(
            f"the batches are not those that this run was reading (other data, batch size or grouping): "
            f"epoch {self.epoch} begins anew"
        )
        place = 0
    elif processes != now:
        logger.warning(
            f"goes on with {now} process{'es' * (now > 1)} after {processes}: "
            f"{read - again} of the {read} batches of epoch {self.epoch} that were read are left out"
        )
    return load_state_dict(self, {**state_dict, "iterations_in_epoch": place})


@PLACE_IN_EPOCH.around("fairseq_cli.train:train")
def _unless_finished(train: Function, cfg: Any, trainer: Any, task: Any, epoch_itr: Any) -> Any:
    most, updates = cfg.optimization.max_update, trainer.get_num_updates()
    if not 0 < most <= updates:
        return train(cfg, trainer, task, epoch_itr)
    logger.warning(f"nothing to train: {updates:,} updates are made, --max-update is {most:,}")
    return [None], True


def _fingerprint(iterator: Any) -> int:
    """Of the sentences in each batch, in the order before they are shuffled."""
    batches = iterator.frozen_batches
    # Kept as long as they are: they are the same in every epoch, or made anew for it.
    if getattr(iterator, "fingerprinted", None) is not batches:
        iterator.fingerprinted, iterator.fingerprint = batches, 0
        for batch in batches:
            indices = numpy.asarray(batch)
            whole = indices.dtype.kind in "iu"  # a task's own batches may be of pairs, or of anything
            content = indices.astype(numpy.int64).tobytes() if whole else repr(batch).encode()
            iterator.fingerprint = zlib.crc32(content + b"|", iterator.fingerprint)
    return int(iterator.fingerprint)
