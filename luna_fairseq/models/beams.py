"""Map the hypotheses of beam search to source sentences, so that a source is stored only once."""

from typing import Tuple

import torch
from torch import Tensor


def group_by_sentence(sentences: Tensor) -> Tuple[Tensor, Tensor]:
    """Return the indices of the sentences to keep, and each hypothesis's index into the kept sentences.

    ``sentences`` [R] holds the index of the sentence of each of R hypotheses. If all sentences have the same
    number of hypotheses, each sentence is kept once. Otherwise each hypothesis gets its own entry.
    """
    remaining, index, counts = torch.unique_consecutive(sentences, return_inverse=True, return_counts=True)
    if torch.equal(counts, counts[:1].expand_as(counts)):
        return remaining, index
    return sentences, torch.arange(len(sentences), device=sentences.device)
