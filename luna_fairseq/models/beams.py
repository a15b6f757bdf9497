"""Map the hypotheses of beam search to their source sentences, whose cached tensors they share."""

from typing import Tuple

import torch
from torch import Tensor


def group_by_sentence(sentences: Tensor) -> Tuple[Tensor, Tensor]:
    """Select the sentences that still have hypotheses, and map each hypothesis to a selected sentence.

    ``sentences`` [R] holds the sentence index of each of R hypotheses. Equal indices are adjacent. Return
    indices [N] of sentences, and for each hypothesis an index [R] into them. If the sentences have equally
    many hypotheses, each is selected once. Otherwise, a sentence is selected once per hypothesis.

    Example:
        >>> group_by_sentence(torch.tensor([0, 0, 2, 2]))
        (tensor([0, 2]), tensor([0, 0, 1, 1]))
        >>> group_by_sentence(torch.tensor([0, 0, 2]))
        (tensor([0, 0, 2]), tensor([0, 1, 2]))
    """
    remaining, index, counts = torch.unique_consecutive(sentences, return_inverse=True, return_counts=True)
    if torch.equal(counts, counts[:1].expand_as(counts)):
        return remaining, index
    return sentences, torch.arange(len(sentences), device=sentences.device)
