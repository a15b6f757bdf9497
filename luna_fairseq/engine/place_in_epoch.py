"""Resume a run after the batches that it has read, also on another number of processes."""

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
    "A resumed run reads some batches of the epoch twice and others never, because fairseq shuffles again, "
    "or because the number of processes or --max-tokens has changed.",
)

_ITERATOR = "fairseq.data.iterators:EpochBatchIterator"
# Keys that are added to the state of fairseq's iterator.
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
    # States of a version below 2 name a place beyond the end for the end of the epoch.
    if not state_dict.get("iterations_in_epoch") or state_dict.get("version", 1) < 2:
        return load_state_dict(self, state_dict)
    self.epoch = state_dict["epoch"]
    processes, now = state_dict.get(_PROCESSES, self.num_shards), self.num_shards
    # Each of n processes reads every n-th batch, so the batches that were read are the first ones.
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


def _fingerprint(iterator: Any) -> int:
    """Return a checksum of the sentences of every batch, in the order before shuffling."""
    batches = iterator.frozen_batches
    # Computed once for each list of batches: it stays the same in every epoch, or is made anew.
    if getattr(iterator, "fingerprinted", None) is not batches:
        iterator.fingerprinted, iterator.fingerprint = batches, 0
        for batch in batches:
            indices = numpy.asarray(batch)
            whole = indices.dtype.kind in "iu"  # batches of a task may hold pairs or other objects
            content = indices.astype(numpy.int64).tobytes() if whole else repr(batch).encode()
            iterator.fingerprint = zlib.crc32(content + b"|", iterator.fingerprint)
    return int(iterator.fingerprint)
