"""Assignment of beam-search hypotheses to source sentences."""

from typing import Tuple

import torch
from torch import Tensor


def group_by_sentence(sentences: Tensor) -> Tuple[Tensor, Tensor]:
    """Return the entries to keep in a decoder's memory, and the new index of each hypothesis's entry.

    ``sentences`` has the present index of each hypothesis. If the hypotheses of each sentence are adjacent
    and equally many, they share an entry. Otherwise each hypothesis gets its own copy.
    """
    remaining, index, counts = torch.unique_consecutive(sentences, return_inverse=True, return_counts=True)
    if torch.equal(counts, counts[:1].expand_as(counts)):
        return remaining, index
    return sentences, torch.arange(len(sentences), device=sentences.device)
