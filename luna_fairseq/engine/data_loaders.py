"""fairseq patch ``data-loaders``: read each epoch with a new data loader and new worker processes."""

from typing import Any

from luna_fairseq.engine.patch import RESULTS, Function, Patch

DATA_LOADERS = Patch(
    "data-loaders",
    RESULTS,
    "With --num-workers 1 (the default) or more, masked language models have the same masks in every epoch, "
    "because worker processes keep their copy of the dataset. With --curriculum, batches are never shuffled.",
)


@DATA_LOADERS.replaces("fairseq.data.iterators:EpochBatchIterator._get_iterator_for_epoch")
def _make_new_loader(get_iterator: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Replacement for ``_get_iterator_for_epoch`` that reuses neither the last data loader nor its workers.

    fairseq 0.12.2 ignores ``persistent_workers``. Its workers end when the next loader replaces theirs.
    """
    self.reuse_dataloader = self.persistent_workers = False
    return get_iterator(self, *args, **kwargs)
