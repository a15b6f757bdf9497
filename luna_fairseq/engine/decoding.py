"""Batches of sentences, and beam search over them."""

from typing import Any

import numpy
import torch

from luna_fairseq.checks.search import check_search
from luna_fairseq.engine.mend import RIGHT, Function, Mend


def _throws_away() -> bool:
    from fairseq.data import data_utils

    try:
        batches = data_utils.batch_by_size(numpy.arange(3), lambda index: 1, required_batch_size_multiple=2)
    except ImportError:  # its extensions are not built: there are no batches at all
        return False
    return sum(map(len, batches)) < 3


INCOMPLETE_BATCHES = Mend(
    "incomplete-batches",
    RIGHT,
    "with --required-batch-size-multiple (default 8) a last batch of fewer sentences is thrown away, "
    "also when decoding: a score is then of another test set",
    versions="fairseq 0.12.3 (fairseq-fixed)",
    needed=_throws_away,
)

BEAM_SEARCH = Mend(
    "beam-search",
    RIGHT,
    "--diverse-beam-groups looks up a sentence's penalties by its number in the test set, not by its place "
    "in the batch: an IndexError, or another sentence's penalties; a prompt beyond --max-len-b is cut",
)


@INCOMPLETE_BATCHES.around("fairseq.data.data_utils:batch_by_size")
def _with_incomplete_batch(batch_by_size: Function, indices: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(indices, numpy.ndarray):
        indices = numpy.fromiter(indices, dtype=numpy.int64)
    batches = batch_by_size(indices, *args, **kwargs)
    if kwargs.get("fixed_shapes") is not None:
        return batches
    # Batches follow the order of the indices: what is missing at the end is what was thrown away.
    left = indices[sum(map(len, batches)) :]
    return [*batches, left] if len(left) else batches


# Not around the search's own step, which TorchScript compiles.
@BEAM_SEARCH.around(
    "fairseq.sequence_generator:SequenceGenerator.generate",
    "fairseq.sequence_generator:SequenceGeneratorWithAlignment.generate",
)
def _numbered(generate: Function, self: Any, models: Any, sample: Any, *args: Any, **kwargs: Any) -> Any:
    if "id" in sample:
        sample = {**sample, "id": torch.arange(len(sample["id"]), device=sample["id"].device)}
    check_search(self, sample, kwargs.get("prefix_tokens"))
    return generate(self, models, sample, *args, **kwargs)
