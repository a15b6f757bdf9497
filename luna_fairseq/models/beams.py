"""Assignment of beam-search hypotheses to source sentences."""

from typing import Tuple

import torch
from torch import Tensor


def group_by_sentence(sentences: Tensor) -> Tuple[Tensor, Tensor]:
    """Return the sentences to keep in a decoder's memory, and the new index of each hypothesis's sentence.

    A memory has one entry per sentence, if the hypotheses of each sentence are adjacent and equally many.
    Otherwise each hypothesis gets its own copy of the entry.

    Args:
        sentences: index of the sentence of each hypothesis in the present memory, a vector.

    Returns:
        Tuple of the indices of the entries to keep, and the index of each hypothesis's sentence among them.

    Example:
        >>> group_by_sentence(torch.tensor([0, 0, 2, 2]))  # the second sentence is finished
        (tensor([0, 2]), tensor([0, 0, 1, 1]))
    """
    remaining, index, counts = torch.unique_consecutive(sentences, return_inverse=True, return_counts=True)
    if torch.equal(counts, counts[:1].expand_as(counts)):
        return remaining, index
    return sentences, torch.arange(len(sentences), device=sentences.device)
