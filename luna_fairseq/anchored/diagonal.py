"""Diagonal prior: a bias of attention to the source for alignments near the diagonal.

The prior expects word t of the target to translate the words around place r (t + 1/2) of the source. Each
head learns the ratio r of the two lengths. The tolerance is the square root of t + 1, because two sequences
that now and then skip a word drift apart like a random walk. Source tokens that are further away get lower
logits. Dyer et al. (2013) align words with a similar prior. Their prior uses the length of the target, which
a decoder does not know.

In a document t may be counted from the beginning of the current sentence. The diagonal of a sentence then
begins at its origin, the number of source tokens before the corresponding source sentence.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.ops.softmax import MAX_PENALTY


def naive_diagonal_bias(
    strength: Tensor, ratio: Tensor, query_place: Tensor, key_place: Tensor, origin: Optional[Tensor] = None
) -> Tensor:
    """Compute the bias ``-gamma |o + r (t + 1/2) - c| / sqrt(t + 1)``, the definition of the prior.

    B is the batch size, H the number of heads, T the number of queries, and N the number of keys.

    Args:
        strength: strength gamma [H] of each head.
        ratio: ratio r [H] of source length to target length of each head.
        query_place: index t [B, T] of each query's token in the target, or in its sentence.
        key_place: middle c [B, N] of each key, in tokens of the source.
        origin: number o [B, T] of source tokens before the query's sentence (default: None, which means 0).

    Returns:
        The bias [B, H, T, N] of the logits.
    """
    t, c = (x.to(strength.dtype) for x in (query_place[:, None, :, None], key_place[:, None, None, :]))
    gamma, r = strength[:, None, None], ratio[:, None, None]
    o = 0 if origin is None else origin.to(strength.dtype)[:, None, :, None]
    return -gamma * (o + r * (t + 0.5) - c).abs() / (t + 1).sqrt()


class Diagonal(NamedTuple):
    """Expected source place of each query, computed by :func:`find_diagonal`.

    B is the batch size, H the number of heads, T the number of queries, and N the number of keys.

    Attributes:
        strength: strength gamma [H, 1, 1] of each head.
        expected: expected place o + r (t + 1/2) [B, H, T, 1], in tokens of the source.
        width: tolerance sqrt(t + 1) [B, 1, T, 1], in tokens.
        nearest: distance [B, H, T, 1] of the nearest key from the expected place, in widths.
        further: distance [B, H, T, N] of each key from the expected place minus ``nearest``, in widths.
    """

    strength: Tensor
    expected: Tensor
    width: Tensor
    nearest: Tensor
    further: Tensor

    def select(self, examples: Tensor) -> "Diagonal":
        """Return the diagonal prior for some examples, in the given order.

        Args:
            examples: indices [n] of the examples to return.

        Returns:
            The prior for these n examples.
        """
        return Diagonal(self.strength, *(x.index_select(0, examples) for x in self[1:]))

    def bias(self) -> Tensor:
        """Return the diagonal prior, a bias of the keys' logits relative to the nearest key of each query.

        The bias equals :func:`naive_diagonal_bias` up to a constant for each query, which does not change the
        softmax. It is at least ``-MAX_PENALTY``.

        Returns:
            The bias [B, H, T, N].
        """
        return (-self.strength * self.further).clamp(min=-MAX_PENALTY)

    def bias_at(self, place: Tensor) -> Tensor:
        """Return the diagonal prior for other keys, relative to the same nearest key as :meth:`bias`.

        Args:
            place: middle [B, H, T, M] of each key, in tokens of the source.

        Returns:
            The bias [B, H, T, M].
        """
        # gamma * nearest - gamma / width * distance: the factors are small, the distances are many.
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
    """Compute the expected source place of each query, and the distance of each key from this place.

    The computation uses float32, or float64 for float64 strengths.

    B is the batch size, H the number of heads, T the number of queries, and N the number of keys.

    Args:
        strength: strength gamma [H] of each head.
        ratio: ratio r [H] of source length to target length of each head.
        query_place: index t [B, T] of each query's token in the target, or in its sentence.
        key_place: middle c [B, N] of each key, in tokens of the source.
        masked: mask [B, N] of the keys, True at padding; such a key is never the nearest (default: None).
        origin: number o [B, T] of source tokens before the query's sentence (default: None, which means 0).

    Returns:
        The diagonal, which computes biases of these and of other keys.

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
