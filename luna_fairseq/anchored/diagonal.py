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

    Args:
        strength: strength gamma of each head [H]
        ratio: ratio r of source length to target length of each head [H]
        query_place: number t of each query's token in the target, or in its sentence [B, T]
        key_place: middle c of each key, in tokens of the source [B, N]
        origin: number o of source tokens before the query's sentence [B, T] (default: None, 0)

    Returns:
        bias of the logits [B, H, T, N]
    """
    t, c = (x.to(strength.dtype) for x in (query_place[:, None, :, None], key_place[:, None, None, :]))
    gamma, r = strength[:, None, None], ratio[:, None, None]
    o = 0 if origin is None else origin.to(strength.dtype)[:, None, :, None]
    return -gamma * (o + r * (t + 0.5) - c).abs() / (t + 1).sqrt()


class Diagonal(NamedTuple):
    """Expected source place of each query, computed by :func:`find_diagonal`.

    Attributes:
        strength: strength gamma of each head [H, 1, 1]
        expected: expected place o + r (t + 1/2), in tokens of the source [B, H, T, 1]
        width: tolerance sqrt(t + 1), in tokens [B, 1, T, 1]
        nearest: distance of the nearest key from the expected place, in widths [B, H, T, 1]
        further: distance of each key from the expected place minus ``nearest``, in widths [B, H, T, N]
    """

    strength: Tensor
    expected: Tensor
    width: Tensor
    nearest: Tensor
    further: Tensor

    def select(self, examples: Tensor) -> "Diagonal":
        """Return the diagonal of ``examples`` [B'], in their order."""
        return Diagonal(self.strength, *(x.index_select(0, examples) for x in self[1:]))

    def bias(self) -> Tensor:
        """Return the diagonal prior, a bias of the keys' logits relative to the nearest key of each query.

        The bias equals :func:`naive_diagonal_bias` up to a constant for each query, which does not change the
        softmax. It is at least ``-MAX_PENALTY``.

        Returns:
            bias [B, H, T, N]
        """
        return (-self.strength * self.further).clamp(min=-MAX_PENALTY)

    def bias_at(self, place: Tensor) -> Tensor:
        """Return the diagonal prior for other keys, relative to the same nearest key as :meth:`bias`.

        Args:
            place: middle of each key, in tokens of the source [B, H, T, M]

        Returns:
            bias [B, H, T, M]
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

    Args:
        strength: strength gamma of each head [H]
        ratio: ratio r of source length to target length of each head [H]
        query_place: number t of each query's token in the target, or in its sentence [B, T]
        key_place: middle c of each key, in tokens of the source [B, N]
        masked: mask of the keys [B, N], True at padding; such a key is never the nearest (default: None)
        origin: number o of source tokens before the query's sentence [B, T] (default: None, 0)

    Returns:
        the diagonal, which computes biases of these and of other keys

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
