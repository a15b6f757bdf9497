"""Diagonal prior: a bias of cross-attention toward the diagonal, where source and target advance together.

Target token t is expected to translate the source tokens around position o + r (t + 1/2). Each head learns r,
the ratio of source length to target length, and the strength gamma. In a document, t is counted from the
beginning of a sentence, and o is the number of source tokens before the aligned sentence; otherwise o is 0.
The bias of a source token with centre c is::

    -gamma |o + r (t + 1/2) - c| / sqrt(t + 1)

The width sqrt(t + 1) grows, because sequences that occasionally skip a word drift apart like a random walk.
Dyer et al. (2013) align words with a similar prior, which requires the unknown target length.

Arguments: ``strength`` gamma [H], ``ratio`` r [H], ``query_place`` t [B, T], ``key_place`` c [B, N] and
``origin`` o [B, T] for batch size B, H heads, T queries and N keys.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.anchored.geometry import TargetPlaces, measure_places
from luna_fairseq.anchored.places import limit_penalty


def naive_diagonal_bias(
    strength: Tensor, ratio: Tensor, query_place: Tensor, key_place: Tensor, origin: Optional[Tensor] = None
) -> Tensor:
    """Compute the diagonal prior ``-gamma |o + r (t + 1/2) - c| / sqrt(t + 1)``, as a reference for tests.

    ``strength`` gamma and ``ratio`` r are [H], ``query_place`` t and ``origin`` o (default 0) are [B, T], and
    ``key_place`` c is [B, N]. The result is a bias [B, H, T, N] toward keys near an expected position.
    """
    t, c = (x.to(strength.dtype) for x in (query_place[:, None, :, None], key_place[:, None, None, :]))
    gamma, r = strength[:, None, None], ratio[:, None, None]
    o = 0 if origin is None else origin.to(strength.dtype)[:, None, :, None]
    return -gamma * (o + r * (t + 0.5) - c).abs() / (t + 1).sqrt()


class Diagonal(NamedTuple):
    """Diagonal prior of one batch: a bias toward keys near the source position expected for a query.

    The bias is ``factor * further``: a negative factor times the excess distance of each key over the nearest
    key. :func:`measure_diagonal` computes these tensors. Distances are in tokens. Shapes: batch size B, H
    heads, T queries, N keys.

    Attributes:
        factor: ``-gamma / sqrt(t + 1)`` [B, H, T, 1], for the learned strength gamma and target position t.
        expected: source position [B, H, T, 1] that is expected for each query.
        nearest: distance [B, H, T, 1] from the expected position to the nearest key.
        further: distance [B, H, T, N] from the expected position to each key, minus ``nearest``.
    """

    factor: Tensor
    expected: Tensor
    nearest: Tensor
    further: Tensor

    def select(self, examples: Tensor) -> "Diagonal":
        """Select examples of the batch by a vector of their indices."""
        return Diagonal(*(x.index_select(0, examples) for x in self))

    def bias(self) -> Tensor:
        """Return the bias [B, H, T, N] of the keys: 0 for the nearest key, and at least ``-MAX_PENALTY``."""
        return limit_penalty(self.factor * self.further)

    def bias_at(self, place: Tensor) -> Tensor:
        """Return the bias [B, H, T, M] of M other keys, whose positions ``place`` broadcast to this shape.

        A key that is closer to the expected position than the nearest of the N keys has a positive bias.
        """
        # Multiplying the factor by the nearest distance first is cheaper than subtracting all distances.
        nearest = self.factor * -self.nearest
        return limit_penalty(torch.addcmul(nearest, (self.expected - place).abs(), self.factor))


def measure_diagonal(
    strength: Tensor,
    ratio: Tensor,
    target: TargetPlaces,
    key_place: Tensor,
    masked: Optional[Tensor] = None,
    first: Optional[int] = None,
) -> Diagonal:
    """Compute the diagonal prior of a batch, given the positions of queries and keys.

    ``strength`` [H] and ``ratio`` [H] are the learned strength gamma and length ratio. ``target`` holds the
    positions of the queries, and ``key_place`` [B, N] the source position of each key. Keys where ``masked``
    [B, N] is True, and keys after the ``first`` leading keys (default: all), never count as the nearest key.
    """
    dtype = torch.promote_types(strength.dtype, torch.float32)
    if target.middle is None or target.middle.dtype != dtype:
        target = measure_places(target, dtype)
    expected = ratio.to(dtype).view(-1, 1, 1) * target.middle
    if target.origin is not None:
        expected = expected + target.origin[:, None, :, None]
    further = (expected - key_place.flatten(1)[:, None, None, :]).abs()
    candidates = further.detach() if first is None else further.detach().narrow(3, 0, first)
    if masked is None:
        nearest = candidates.amin(dim=-1, keepdim=True)
    else:
        candidates = candidates.masked_fill(masked[:, None, None, :], float("inf"))
        nearest = candidates.amin(dim=-1, keepdim=True)
        nearest = nearest.masked_fill(nearest.isinf(), 0.0)
    factor = (-strength).to(dtype).view(-1, 1, 1) / target.width
    return Diagonal(factor, expected, nearest, further - nearest)
