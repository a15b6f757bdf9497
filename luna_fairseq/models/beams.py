"""Assignment of beam-search hypotheses to source sentences."""

from typing import Tuple

import torch
from torch import Tensor


def group_by_sentence(sentences: Tensor) -> Tuple[Tensor, Tensor]:
    """Return the entries to keep of a decoder's memory, and the entry of each hypothesis among them.

    sentences: index of the sentence of each hypothesis. The hypotheses of a sentence share an entry if all
    sentences have equally many, adjacent ones. Otherwise each hypothesis has its own entry.
    """
    remaining, index, counts = torch.unique_consecutive(sentences, return_inverse=True, return_counts=True)
    if torch.equal(counts, counts[:1].expand_as(counts)):
        return remaining, index
    return sentences, torch.arange(len(sentences), device=sentences.device)
