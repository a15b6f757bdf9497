"""fairseq patch ``place-in-epoch``: a resumed run continues its epoch after the last processed batch.

This also works if the number of processes has changed.
"""

import inspect
import logging
import zlib
from typing import Any, Dict

import numpy

from luna_fairseq.engine.patch import RESULTS, Function, Patch

logger = logging.getLogger(__name__)

PLACE_IN_EPOCH = Patch(
    "place-in-epoch",
    RESULTS,
    "A resumed run reads some batches of an epoch twice and others never, because fairseq shuffles the "
    "batches again, or because the number of processes or --max-tokens has changed.",
)

_ITERATOR = "fairseq.data.iterators:EpochBatchIterator"
# Keys of the entries added to the state of fairseq's iterator.
_PROCESSES, _BATCHES = "processes", "batches"


@PLACE_IN_EPOCH.replaces("fairseq.trainer:Trainer.get_train_iterator")
def _tell_task_about_seed(get_train_iterator: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Replacement for ``get_train_iterator`` that tells the task if the seed grows by 1 with each epoch."""
    self.task.seed_grows = self.cfg.dataset.update_ordered_indices_seed
    return get_train_iterator(self, *args, **kwargs)


@PLACE_IN_EPOCH.replaces("fairseq.tasks.fairseq_task:FairseqTask.get_batch_iterator")
def _batch_as_in_first_epoch(get_batch_iterator: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Replacement for ``get_batch_iterator`` that gives a resumed run the batches of an uninterrupted run.

    An uninterrupted run builds its batches once, in the first epoch, and shuffles them in each epoch. A
    resumed run therefore builds the batches of the first epoch, and then advances to its current epoch.
    """
    call = inspect.signature(get_batch_iterator).bind(self, *args, **kwargs)
    arguments, dataset = call.arguments, call.arguments["dataset"]
    epoch = arguments.get("epoch", 1)
    makes_new = arguments.get("disable_iterator_cache", False) or arguments.get(
        "update_epoch_batch_itr", False
    )
    is_cached = dataset in self.dataset_to_epoch_iter
    if is_cached or makes_new or epoch <= 1 or not self.can_reuse_epoch_itr(dataset):
        return get_batch_iterator(self, *args, **kwargs)
    arguments["epoch"] = 1
    if getattr(self, "seed_grows", False):
        arguments["seed"] -= epoch - 1
    iterator = get_batch_iterator(*call.args, **call.kwargs)
    dataset.set_epoch(epoch)
    iterator.epoch = epoch
    return iterator


@PLACE_IN_EPOCH.replaces(f"{_ITERATOR}.state_dict")
def _save_batches(state_dict: Function, self: Any) -> Dict[str, Any]:
    """Replacement for the epoch iterator's ``state_dict`` that adds the process count and a checksum.

    When the state is restored, the checksum shows whether the batches have changed.
    """
    return {**state_dict(self), _PROCESSES: self.num_shards, _BATCHES: _fingerprint(self)}


@PLACE_IN_EPOCH.replaces(f"{_ITERATOR}.load_state_dict")
def _restore_position(load_state_dict: Function, self: Any, state_dict: Dict[str, Any]) -> Any:
    """Replacement for the epoch iterator's ``load_state_dict`` that skips the batches already processed.

    If the batches have changed, the epoch is repeated and a warning is logged.
    """
    # In states with a version less than 2, the end of an epoch is a position past the last batch.
    if not state_dict.get("iterations_in_epoch") or state_dict.get("version", 1) < 2:
        return load_state_dict(self, state_dict)
    self.epoch = state_dict["epoch"]
    before, now = state_dict.get(_PROCESSES, self.num_shards), self.num_shards
    # Each of n processes reads every n-th batch, so the batches that were read are the first ones.
    read = state_dict["iterations_in_epoch"] * before
    position, repeated = divmod(read, now)
    is_same = state_dict.get(_BATCHES, _fingerprint(self)) == _fingerprint(self)
    if not is_same or position >= len(self) or (self.grouped_shuffling and before != now):
        logger.warning(
            "the batches of this run have changed (other data, batch size or grouping), so epoch "
            f"{self.epoch} is repeated"
        )
        position = 0
    elif before != now:
        logger.warning(
            f"training resumes with {now} process{'es' * (now > 1)} in place of {before}, and skips "
            f"{read - repeated} of the {read} batches of epoch {self.epoch} that were read"
        )
    return load_state_dict(self, {**state_dict, "iterations_in_epoch": position})


def _fingerprint(iterator: Any) -> int:
    """Return a checksum of an epoch iterator's batches, in their order before shuffling."""
    batches = iterator.frozen_batches
    # The checksum is computed once per list of batches, because such a list never changes.
    if getattr(iterator, "fingerprinted", None) is not batches:
        iterator.fingerprinted, iterator.fingerprint = batches, 0
        for batch in batches:
            indices = numpy.asarray(batch)
            is_integer = indices.dtype.kind in "iu"  # a task may build batches of pairs or other objects
            content = indices.astype(numpy.int64).tobytes() if is_integer else repr(batch).encode()
            iterator.fingerprint = zlib.crc32(content + b"|", iterator.fingerprint)
    return int(iterator.fingerprint)
