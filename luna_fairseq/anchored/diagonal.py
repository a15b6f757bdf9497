"""Diagonal prior: a bias of cross-attention that favours alignments near the diagonal.

The prior expects target word t to translate the source words around position r (t + 1/2). Each head learns r,
the ratio of source length to target length. The tolerance is sqrt(t + 1) words, because two sequences that
occasionally skip a word drift apart like a random walk. Source tokens that are farther away receive lower
logits. Dyer et al. (2013) align words with a similar prior, which requires the target length. A decoder does
not know this length.

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

    Shapes: batch size B, H heads, T queries, N keys.

    Args:
        strength: strength gamma [H] per head.
        ratio: ratio r [H] of source length to target length per head.
        query_place: zero-based index t [B, T] of each query's token in the target, or in its sentence.
        key_place: centre c [B, N] of each key, measured in source tokens.
        origin: number o [B, T] of source tokens before the query's sentence (default: None, 0).

    Returns:
        Bias [B, H, T, N] of the logits.
    """
    t, c = (x.to(strength.dtype) for x in (query_place[:, None, :, None], key_place[:, None, None, :]))
    gamma, r = strength[:, None, None], ratio[:, None, None]
    o = 0 if origin is None else origin.to(strength.dtype)[:, None, :, None]
    return -gamma * (o + r * (t + 0.5) - c).abs() / (t + 1).sqrt()


class Diagonal(NamedTuple):
    """Diagonal prior for one batch: the expected source position of each query, and distances of the keys.

    Distances are divided by the tolerance of the query. Create it with :func:`find_diagonal`.

    Shapes: batch size B, H heads, T queries, N keys.

    Attributes:
        strength: strength gamma [H, 1, 1] per head.
        expected: expected source position [B, H, T, 1] of each query, in tokens.
        width: tolerance [B, 1, T, 1] of each query, in tokens.
        nearest: distance [B, H, T, 1] of the key nearest to the expected position, divided by the tolerance.
        further: distance [B, H, T, N] of each key, divided by the tolerance, minus ``nearest``.
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
        """Return the bias of the attention logits, normalized to 0 for the nearest key of each query.

        The bias equals the result of :func:`naive_diagonal_bias` up to one constant per query, which does not
        change the softmax. It is at least ``-MAX_PENALTY``.

        Returns:
            Bias [B, H, T, N], for batch size B, H heads, T queries and N keys.
        """
        return (-self.strength * self.further).clamp(min=-MAX_PENALTY)

    def bias_at(self, place: Tensor) -> Tensor:
        """Return the bias for other keys, relative to the nearest key used by :meth:`bias`.

        Args:
            place: centre of each key, measured in source tokens, [B, H, T, M] for batch size B, H heads, T
                queries and M keys. Dimensions of size 1 are broadcast.

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

    The computation uses float32, or float64 for float64 strengths.

    Shapes: batch size B, H heads, T queries, N keys.

    Args:
        strength: strength gamma [H] per head.
        ratio: ratio r [H] of source length to target length per head.
        query_place: zero-based index t [B, T] of each query's token in the target, or in its sentence.
        key_place: centre c [B, N] of each key, measured in source tokens.
        masked: mask [B, N], True at padding, which is never the nearest key (default: None, no padding).
        origin: number o [B, T] of source tokens before the query's sentence (default: None, 0).

    Returns:
        The diagonal prior, which computes biases for these keys and for other keys.

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
