"""Diagonal prior: a bias of cross-attention toward the diagonal, where source and target advance together.

The prior expects target word t to translate the source words around position r (t + 1/2). Each head learns r,
the ratio of source length to target length. Source tokens that are farther away receive lower logits. The
width of the prior is sqrt(t + 1) words, because two sequences that occasionally skip a word drift apart like
a random walk. The bias of a source token with centre c is ``-gamma |r (t + 1/2) - c| / sqrt(t + 1)``, with a
learned strength gamma.

Dyer et al. (2013) align words with a similar prior, which requires the target length. A decoder does not know
this length.

In a document, t may be counted from the beginning of the current sentence. The diagonal then starts at the
corresponding source sentence.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.ops.softmax import MAX_PENALTY


def naive_diagonal_bias(
    strength: Tensor, ratio: Tensor, query_place: Tensor, key_place: Tensor, origin: Optional[Tensor] = None
) -> Tensor:
    """Compute the diagonal prior from its definition, ``-gamma |o + r (t + 1/2) - c| / sqrt(t + 1)``.

    The prior is a bias of the logits that favours keys near the source position ``o + r (t + 1/2)``, which is
    expected for a query at target position t.

    Shapes: batch size B, H heads, T queries, N keys.

    Args:
        strength: strength gamma [H] per head.
        ratio: ratio r [H] of source length to target length per head.
        query_place: zero-based index t [B, T] of each query's token in the target. In a document, it restarts
            at each sentence.
        key_place: centre c [B, N] of each key, in tokens from the start of the source.
        origin: number o [B, T] of source tokens before the source sentence aligned with the query's sentence
            (default: None, 0).

    Returns:
        Bias [B, H, T, N] of the attention logits.
    """
    t, c = (x.to(strength.dtype) for x in (query_place[:, None, :, None], key_place[:, None, None, :]))
    gamma, r = strength[:, None, None], ratio[:, None, None]
    o = 0 if origin is None else origin.to(strength.dtype)[:, None, :, None]
    return -gamma * (o + r * (t + 0.5) - c).abs() / (t + 1).sqrt()


class Diagonal(NamedTuple):
    """Diagonal prior for one batch: expected source position of each query, and distances of the keys.

    A query at target position t expects source position ``r (t + 1/2)``, where r is the learned ratio of
    source length to target length. The bias of a key falls with its distance from this position. Distances
    are divided by the width ``sqrt(t + 1)`` of the prior. :func:`find_diagonal` creates this tuple.

    Shapes: batch size B, H heads, T queries, N keys.

    Attributes:
        strength: strength gamma [H, 1, 1] per head, which multiplies the distances.
        expected: expected source position [B, H, T, 1] of each query, in tokens.
        width: width [B, 1, T, 1] of the prior for each query, in tokens.
        nearest: distance [B, H, T, 1] of the key nearest to the expected position, in widths.
        further: distance [B, H, T, N] of each key from the expected position, in widths, minus ``nearest``.
    """

    strength: Tensor
    expected: Tensor
    width: Tensor
    nearest: Tensor
    further: Tensor

    def select(self, examples: Tensor) -> "Diagonal":
        """Return the diagonal prior for selected examples of the batch, in the given order.

        Args:
            examples: indices of the examples to return, as a vector.

        Returns:
            The prior for these examples.
        """
        return Diagonal(self.strength, *(x.index_select(0, examples) for x in self[1:]))

    def bias(self) -> Tensor:
        """Return the bias added to the attention logits, normalized to 0 for the nearest key of each query.

        The bias is ``-strength * further``, clamped to at least ``-MAX_PENALTY``. Up to one constant per
        query, which does not change the softmax, it equals ``-gamma |o + r (t + 1/2) - c| / sqrt(t + 1)``.

        Returns:
            Bias [B, H, T, N], for batch size B, H heads, T queries and N keys.
        """
        return (-self.strength * self.further).clamp(min=-MAX_PENALTY)

    def bias_at(self, place: Tensor) -> Tensor:
        """Return the bias of the logits for other keys, relative to the nearest key used by :meth:`bias`.

        The bias is ``strength * (nearest - |expected - place| / width)``, clamped to at least
        ``-MAX_PENALTY``. It is positive for a key that is nearer than the nearest key.

        Args:
            place: centre of each key, in tokens from the start of the source, [B, H, T, M] for batch size B,
                H heads, T queries and M keys. Dimensions of size 1 are broadcast.

        Returns:
            Bias [B, H, T, M].
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
    """Compute the expected source position of each query, and the distance of each key from this position.

    A query at target position t expects source position ``o + r (t + 1/2)``. Distances from this position are
    divided by ``sqrt(t + 1)``. The computation uses float32, or float64 for float64 strengths.

    Shapes: batch size B, H heads, T queries, N keys.

    Args:
        strength: strength gamma [H] per head.
        ratio: ratio r [H] of source length to target length per head.
        query_place: zero-based index t [B, T] of each query's token in the target. In a document, it restarts
            at each sentence.
        key_place: centre c [B, N] of each key, in tokens from the start of the source.
        masked: mask [B, N], True at padding, which is never the nearest key (default: None, no padding).
        origin: number o [B, T] of source tokens before the source sentence aligned with the query's sentence
            (default: None, 0).

    Returns:
        A :class:`Diagonal`, which computes the bias of these keys and of other keys.

    Example:
        >>> places = torch.tensor([[0]]), torch.tensor([[0.5, 1.5, 2.5]])
        >>> diagonal = find_diagonal(torch.ones(1), torch.ones(1), *places)
        >>> diagonal.bias().flatten()
        tensor([-0., -1., -2.])
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
