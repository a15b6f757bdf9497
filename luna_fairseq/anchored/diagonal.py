"""Attention to the source that begins near the diagonal: a target is expected to be written at the source's
pace.

The word at place t of the target is looked for at r t of the source, with a ratio r of the lengths that each
head learns; what is further away than the square root of t, which is how far two sequences of words drift
apart that now and then skip one, counts less. Places are those of the middle of a token: t + 1/2. Dyer et
al. (2013) align words with such a prior, by the length of the target, which no decoder knows. Where
sentences of a document follow one another, t may be counted from the beginning of the sentence, and the
diagonal then begins where the source has that one: its origin.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.ops.softmax import MAX_PENALTY


def naive_diagonal_bias(
    strength: Tensor, ratio: Tensor, query_place: Tensor, key_place: Tensor, origin: Optional[Tensor] = None
) -> Tensor:
    """The definition: ``-gamma |o + r (t + 1/2) - c| / sqrt(t + 1)``.

    Args:
        strength, ratio: gamma and r of each head [H]
        query_place: t, the number of each query's token in the target, or in its sentence [B, T]
        key_place: c, the middle of each key in tokens of the source [B, N]
        origin: o, the tokens of the source before that sentence [B, T] (default: 0)

    Returns:
        what is added to the logits [B, H, T, N]
    """
    t, c = (x.to(strength.dtype) for x in (query_place[:, None, :, None], key_place[:, None, None, :]))
    gamma, r = strength[:, None, None], ratio[:, None, None]
    o = 0 if origin is None else origin.to(strength.dtype)[:, None, :, None]
    return -gamma * (o + r * (t + 0.5) - c).abs() / (t + 1).sqrt()


class Diagonal(NamedTuple):
    """Where each query expects what it reads; see :func:`find_diagonal`.

    Attributes:
        strength: gamma [H, 1, 1]
        expected: o + r (t + 1/2) [B, H, T, 1]
        width: sqrt(t + 1) [B, 1, T, 1]
        nearest: how far from there the nearest key is, in widths [B, H, T, 1]
        further: how much further than that each key is [B, H, T, N]
    """

    strength: Tensor
    expected: Tensor
    width: Tensor
    nearest: Tensor
    further: Tensor

    def bias(self) -> Tensor:
        """What is added to the logits of the keys [B, H, T, N]: what :func:`naive_diagonal_bias` defines,
        less the same for all keys of a query, and no less than ``-MAX_PENALTY``."""
        return self._of(self.further)

    def bias_at(self, place: Tensor) -> Tensor:
        """The same for other keys, of the ``place`` [B, H, T, M]."""
        return self._of((self.expected - place).abs() / self.width - self.nearest)

    def _of(self, further: Tensor) -> Tensor:
        return (-self.strength * further).clamp(min=-MAX_PENALTY)


def find_diagonal(
    strength: Tensor,
    ratio: Tensor,
    query_place: Tensor,
    key_place: Tensor,
    left_out: Optional[Tensor] = None,
    origin: Optional[Tensor] = None,
) -> Diagonal:
    """Arguments as of :func:`naive_diagonal_bias`; left_out: keys that are not there [B, N]. In float32 or
    wider."""
    dtype = torch.promote_types(strength.dtype, torch.float32)
    gamma, r = strength.to(dtype)[:, None, None], ratio.to(dtype)[:, None, None]
    t = query_place.to(dtype)[:, None, :, None]
    expected, width = r * (t + 0.5), (t + 1).sqrt()
    if origin is not None:
        expected = expected + origin.to(dtype)[:, None, :, None]
    distance = (expected - key_place.to(dtype)[:, None, None, :]).abs() / width
    there = distance.detach()
    if left_out is not None:
        there = there.masked_fill(left_out[:, None, None, :], float("inf"))
    nearest = there.amin(dim=-1, keepdim=True)
    nearest = nearest.masked_fill(nearest.isinf(), 0.0)
    return Diagonal(gamma, expected, width, nearest, distance - nearest)
