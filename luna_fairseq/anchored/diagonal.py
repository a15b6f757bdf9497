"""Diagonal prior: a bias of cross-attention toward the diagonal, where source and target advance together.

Target word t is expected to translate the source words around position o + r (t + 1/2). Each head learns r,
the ratio of source length to target length, and the strength gamma. In a document, t is counted from the
beginning of a sentence, and o is the number of source tokens before the aligned sentence; otherwise o is 0.
The bias of a source token with centre c is::

    -gamma |o + r (t + 1/2) - c| / sqrt(t + 1)

The width sqrt(t + 1) grows because sequences that occasionally skip a word drift apart like a random walk.
Dyer et al. (2013) align words with a similar prior, which requires the unknown target length.

Arguments: ``strength`` gamma [H], ``ratio`` r [H], ``query_place`` t [B, T], ``key_place`` c [B, N] and
``origin`` o [B, T] for batch size B, H heads, T queries and N keys.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.ops.attention import MAX_PENALTY


def naive_diagonal_bias(
    strength: Tensor, ratio: Tensor, query_place: Tensor, key_place: Tensor, origin: Optional[Tensor] = None
) -> Tensor:
    """Compute the bias [B, H, T, N] of the diagonal prior from its definition, as a reference for tests."""
    t, c = (x.to(strength.dtype) for x in (query_place[:, None, :, None], key_place[:, None, None, :]))
    gamma, r = strength[:, None, None], ratio[:, None, None]
    o = 0 if origin is None else origin.to(strength.dtype)[:, None, :, None]
    return -gamma * (o + r * (t + 0.5) - c).abs() / (t + 1).sqrt()


class Diagonal(NamedTuple):
    """Diagonal prior of one batch: a bias toward keys near the source position expected for a query.

    :func:`find_diagonal` computes it. Distances are divided by the width of the prior.

    Attributes:
        strength: gamma [H, 1, 1].
        expected: expected source position [B, H, T, 1] of each query, in tokens.
        width: width [B, 1, T, 1] of the prior, in tokens.
        nearest: distance [B, H, T, 1] of the key nearest to the expected position.
        further: distance [B, H, T, N] of each key from that position, minus ``nearest``.
    """

    strength: Tensor
    expected: Tensor
    width: Tensor
    nearest: Tensor
    further: Tensor

    def select(self, examples: Tensor) -> "Diagonal":
        """Return the diagonal prior of some examples of the batch, given their indices (a vector)."""
        return Diagonal(self.strength, *(x.index_select(0, examples) for x in self[1:]))

    def bias(self) -> Tensor:
        """Return the bias [B, H, T, N] of N keys: 0 for the nearest key, and at least ``-MAX_PENALTY``."""
        return (-self.strength * self.further).clamp(min=-MAX_PENALTY)

    def bias_at(self, place: Tensor) -> Tensor:
        """Return the bias [B, H, T, M] of keys at other source positions ``place``.

        It is relative to the nearest key of :meth:`bias`, and positive at a key that is nearer. The positions
        broadcast to [B, H, T, M].
        """
        # gamma * nearest - gamma / width * distance. Multiplying the factors first is cheaper, because there
        # are more distances than factors.
        nearest, factor = self.strength * self.nearest, -self.strength / self.width
        bias = torch.addcmul(nearest, (self.expected - place).abs(), factor)
        return bias.clamp(min=-MAX_PENALTY)


def find_diagonal(
    strength: Tensor,
    ratio: Tensor,
    query_place: Tensor,
    key_place: Tensor,
    masked: Optional[Tensor] = None,
    origin: Optional[Tensor] = None,
) -> Diagonal:
    """Compute the diagonal prior of a batch, in float32 or float64: a bias toward keys near the diagonal.

    strength, ratio: learned gamma and length ratio [H]. query_place: target position [B, T] of each query.
    key_place: source position [B, N] of each key. masked: [B, N], True at keys that never count as the
    nearest key. origin: number [B, T] of source tokens before the aligned sentence.
    """
    dtype = torch.promote_types(strength.dtype, torch.float32)
    gamma, r = strength.to(dtype)[:, None, None], ratio.to(dtype)[:, None, None]
    t = query_place.to(dtype)[:, None, :, None]
    expected, width = r * (t + 0.5), (t + 1).sqrt()
    if origin is not None:
        expected = expected + origin.to(dtype)[:, None, :, None]
    distance = (expected - key_place.to(dtype)[:, None, None, :]).abs() / width
    candidates = distance.detach()
    if masked is not None:
        candidates = candidates.masked_fill(masked[:, None, None, :], float("inf"))
    nearest = candidates.amin(dim=-1, keepdim=True)
    nearest = nearest.masked_fill(nearest.isinf(), 0.0)
    return Diagonal(gamma, expected, width, nearest, distance - nearest)
