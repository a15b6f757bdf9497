"""Batches of sentences."""

from typing import Any

import numpy

from luna_fairseq.engine.mend import RIGHT, Function, Mend


def _drops_sentences() -> bool:
    from fairseq.data import data_utils

    try:
        batches = data_utils.batch_by_size(numpy.arange(3), lambda index: 1, required_batch_size_multiple=2)
    except ImportError:  # fairseq's extensions are not built, so that it makes no batches at all
        return False
    return sum(map(len, batches)) < 3


INCOMPLETE_BATCHES = Mend(
    "incomplete-batches",
    RIGHT,
    "The last sentences of a test set are not translated, and the score is of another test set: fairseq "
    "drops a last batch that is smaller than --required-batch-size-multiple (default 8).",
    versions="fairseq 0.12.3 (fairseq-fixed)",
    needed=_drops_sentences,
)


@INCOMPLETE_BATCHES.around("fairseq.data.data_utils:batch_by_size")
def _with_incomplete_batch(batch_by_size: Function, indices: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(indices, numpy.ndarray):
        indices = numpy.fromiter(indices, dtype=numpy.int64)
    batches = batch_by_size(indices, *args, **kwargs)
    if kwargs.get("fixed_shapes") is not None:
        return batches
    # Batches follow the order of the indices, so the dropped ones are the last.
    dropped = indices[sum(map(len, batches)) :]
    return [*batches, dropped] if len(dropped) else batches
