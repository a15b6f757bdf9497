"""In beam search, what belongs to a source sentence is computed and kept once, for all of its hypotheses.

The hypotheses of a sentence stand in a row: with B sentences and n hypotheses each, tensors of hypotheses have B n rows.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError


def hypotheses_each(hypotheses: int, sentences: int) -> int:
    """n. Raises InputError unless every sentence has as many hypotheses."""
    if hypotheses % sentences:
        raise InputError(f"{hypotheses} hypotheses cannot belong to {sentences} sentences, as many to each")
    return hypotheses // sentences


def beams_to_positions(x: Tensor, n: int) -> Tensor:
    """[B n, H, T, K] -> [B, H, n T, K]: the n hypotheses of a sentence as more queries to what they have in common."""
    if n == 1:
        return x
    return x.unflatten(0, (-1, n)).transpose(1, 2).flatten(2, 3)


def positions_to_beams(x: Tensor, n: int) -> Tensor:
    """[B, H, n T, K] -> [B n, H, T, K]."""
    if n == 1:
        return x
    return x.unflatten(2, (n, -1)).transpose(1, 2).flatten(0, 1)


def sentences_of(hypotheses: int, sentences: int, device: torch.device) -> Tensor:
    """The sentence 0 .. B-1 that each hypothesis belongs to [B n]."""
    return torch.arange(sentences, device=device).repeat_interleave(hypotheses_each(hypotheses, sentences))


def regroup(sentences: Tensor, new_order: Tensor) -> Optional[Tuple[Tensor, Tensor]]:
    """What :func:`sentences_of` [B n] becomes when hypothesis i takes the place of ``new_order[i]`` [N'].

    Returns:
        the sentences that are left, in order [B'], and for each hypothesis which of these it belongs to [N']; None
        when hypotheses only changed places within their sentences. Where sentences no longer have as many hypotheses
        in a row each, every hypothesis gets a sentence of its own: B' = N'
    """
    moved = sentences.index_select(0, new_order)
    if torch.equal(moved, sentences):
        return None
    left, now, counts = torch.unique_consecutive(moved, return_inverse=True, return_counts=True)
    if torch.equal(counts, counts[:1].expand_as(counts)):
        return left, now
    return moved, torch.arange(len(moved), device=moved.device)
