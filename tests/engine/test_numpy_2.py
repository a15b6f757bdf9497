"""fairseq's sentence blocks with the numpy there is."""

import numpy
import torch

import luna_fairseq  # noqa: F401  mends fairseq
from fairseq.data import BucketPadLengthDataset, TokenBlockDataset


def test_blocks_of_one_sentence():
    sentences = [torch.tensor([5, 6, 2]), torch.tensor([7, 2])]
    blocks = TokenBlockDataset(sentences, [3, 2], block_size=None, pad=1, eos=2, break_mode="eos")
    assert [blocks[i].tolist() for i in range(len(blocks))] == [[5, 6, 2], [7, 2]]
    assert int(numpy.__version__.split(".")[0]) < 2 or not hasattr(numpy, "compat")


def test_batches_of_a_few_lengths():
    data = [torch.ones(length) for length in (1, 2, 3, 9)]
    lengths = BucketPadLengthDataset(data, [1, 2, 3, 9], num_buckets=2, pad_idx=1, left_pad=False).buckets
    assert lengths.tolist() == [2, 9]
