"""fairseq patch ``incomplete-batches``: keep an incomplete last batch.

Some versions of fairseq drop a last batch with fewer examples than --required-batch-size-multiple.
"""

from typing import Any

import numpy

from luna_fairseq.engine.patch import RESULTS, Function, Patch


def _drops_incomplete_batches() -> bool:
    """Return True if the installed fairseq drops the last examples of a dataset if they are too few."""
    from fairseq.data import data_utils

    try:
        batches = data_utils.batch_by_size(numpy.arange(3), lambda index: 1, required_batch_size_multiple=2)
    except ImportError:  # fairseq's extensions are not built, so fairseq cannot build batches at all
        return False
    return sum(map(len, batches)) < 3


INCOMPLETE_BATCHES = Patch(
    "incomplete-batches",
    RESULTS,
    "The last sentences of a test set are neither translated nor scored, because fairseq drops a last batch "
    "that is smaller than --required-batch-size-multiple (default 8).",
    versions="fairseq 0.12.3 (fairseq-fixed)",
    is_needed=_drops_incomplete_batches,
)


@INCOMPLETE_BATCHES.replaces("fairseq.data.data_utils:batch_by_size")
def _append_dropped_batch(batch_by_size: Function, indices: Any, *args: Any, **kwargs: Any) -> Any:
    """Call fairseq's ``batch_by_size``, and append the last examples as a smaller batch if it drops them."""
    if not isinstance(indices, numpy.ndarray):
        indices = numpy.fromiter(indices, dtype=numpy.int64)
    batches = batch_by_size(indices, *args, **kwargs)
    if kwargs.get("fixed_shapes") is not None:
        return batches
    # Batches follow the order of the indices, so the dropped sentences are the last ones.
    dropped = indices[sum(map(len, batches)) :]
    return [*batches, dropped] if len(dropped) else batches
