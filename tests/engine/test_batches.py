"""Every sentence of a data set is in one batch."""

import numpy as np
import pytest

import luna_fairseq.engine  # noqa: F401  changes fairseq
from fairseq.data import data_utils


@pytest.mark.parametrize("count", [1, 3, 8, 20, 61])
@pytest.mark.parametrize("max_tokens", [60, 1000])
def test_every_sentence_is_in_one_batch(count, max_tokens):
    sizes = np.full(count, 5)
    batches = data_utils.batch_by_size(
        np.arange(count)[::-1].copy(),
        lambda index: 5,
        num_tokens_vec=sizes,
        max_tokens=max_tokens,
        required_batch_size_multiple=8,
    )
    assert sorted(index for batch in batches for index in batch) == list(range(count))
    assert all(len(batch) * 5 <= max_tokens for batch in batches)
