"""Map the hypotheses of beam search to source sentences, so that hypotheses can share a stored source."""

from typing import Tuple

import torch
from torch import Tensor


def group_by_sentence(sentences: Tensor) -> Tuple[Tensor, Tensor]:
    """Return the indices of the sentences to keep, and each hypothesis's index into the kept sentences.

    ``sentences`` [R] holds the sentence index of each of R hypotheses. The hypotheses of a sentence are
    adjacent. Sentences without a hypothesis are not kept. If all others have equally many hypotheses, each is
    kept once. Otherwise each hypothesis gets its own entry, because attention needs B groups of equal size.

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
