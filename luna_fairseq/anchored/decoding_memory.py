"""Keys and values of a source, prepared for decoding steps in which every query attends to every key.

Everything that does not depend on the query is computed once per source: the logit scale, the padding, the
token biases and the key positions. A decoding step then needs few operations.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.geometry import TargetPlaces, measure_places
from luna_fairseq.errors import InputError
from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.ops.softmax import MAX_PENALTY

# Position of padding keys, far enough away never to be the nearest key.
FAR_AWAY = 1e15


class KeyPlaces(NamedTuple):
    """Positions of the keys for a diagonal prior, multiplied by the learned strength gamma of each head.

    Shapes: batch size B, H heads, N keys.

    Attributes:
        place: centre [B, H, 1, N] of each key, measured in tokens from the start of the context, times gamma.
        ratio: ratio [B, H, 1, 1] of source length to target length, times gamma.
        strength: gamma [B, H, 1, 1].
    """

    place: Tensor
    ratio: Tensor
    strength: Tensor


class DecodingMemory(NamedTuple):
    """Keys and values attended to by every query, laid out for fast incremental decoding.

    Shapes: batch size B, H heads of width K, N keys.

    Attributes:
        key: transposed keys [B, H, K, N], scaled by K^-0.5.
        value: values [B, H, N, K], 0 at padding.
        bias: bias [B, H or 1, 1, N] of the logits, shared by all queries; the most negative finite value of
            the dtype at padding.
        places: positions of the keys, or None if there is no diagonal prior.
        first: number of leading keys that are considered when searching for the key nearest to the diagonal.
        pack_weights: always None, because this layout does not provide attention weights over the context.
    """

    key: Tensor
    value: Tensor
    bias: Tensor
    places: Optional[KeyPlaces]
    first: int
    pack_weights: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "DecodingMemory":
        """Return the keys and values of selected sentences, in the given order.

        Args:
            sentences: indices of the sentences to return, as a vector.

        Returns:
            Keys and values with one batch entry per index.
        """
        return map_tensors(lambda x: x.index_select(0, sentences), self)

    def read(self, q: Tensor, target: Optional[TargetPlaces], dropout: float = 0.0) -> Tuple[Tensor, Tensor]:
        """Compute attention of the queries over all keys.

        Shapes: batch size B, T queries, H heads of width K, N keys.

        Args:
            q: queries [B, H, T, K], not yet scaled by K^-0.5.
            target: positions of the queries in the target, used only with a diagonal prior.
            dropout: dropout probability of the attention weights (default: 0).

        Returns:
            Tuple of two values:

            - output [B, H, T, K].
            - weights [B, H, T, N] before dropout.
        """
        weights = (q @ self.key + self.compute_bias(target)).softmax(dim=-1)
        dropped = F.dropout(weights, dropout) if dropout else weights
        return dropped @ self.value, weights

    def compute_bias(self, target: Optional[TargetPlaces]) -> Tensor:
        """Return the bias of the logits, including the diagonal prior if there is one.

        The prior is computed as in :meth:`luna_fairseq.anchored.diagonal.Diagonal.bias`.

        Shapes: batch size B, T queries, H heads, N keys.

        Args:
            target: target positions of the queries, or None if there is no diagonal prior.

        Returns:
            Bias [B, H, T, N], or [B, H or 1, 1, N] if there is no diagonal prior.

        Raises:
            InputError: The positions of the queries are required but missing.
        """
        if self.places is None:
            return self.bias
        if target is None:
            raise InputError(
                "a diagonal prior needs the positions of the queries, got none. "
                "Pass the geometry of the batch"
            )
        if target.middle is None:
            target = measure_places(target, self.key.dtype)
        expected = self.places.ratio * target.middle
        if target.origin is not None:
            expected = expected + self.places.strength * target.origin.view(len(self.key), 1, -1, 1)
        distance = (expected - self.places.place).abs() / target.width
        nearest = distance.detach()[..., : self.first].amin(dim=-1, keepdim=True)
        return self.bias - (distance - nearest).clamp(max=MAX_PENALTY)


def prepare_keys(
    key: Tensor, value: Tensor, bias: Tensor, padding_mask: Optional[Tensor]
) -> Tuple[Tensor, Tensor, Tensor]:
    """Scale and transpose keys, and apply a padding mask to values and bias, for a :class:`DecodingMemory`.

    Shapes: batch size B, H heads of width K, N keys.

    Args:
        key: keys [B, H, N, K].
        value: values [B, H, N, K].
        bias: bias [B, H or 1, 1, N] of the logits.
        padding_mask: mask [B, N], True at padding keys, or None if there is no padding.

    Returns:
        Tuple of three values:

        - transposed keys [B, H, K, N], scaled by K^-0.5.
        - values [B, H, N, K], 0 at padding.
        - bias [B, H or 1, 1, N]; the most negative finite value of the dtype at padding.
    """
    key = (key * key.size(-1) ** -0.5).transpose(2, 3).contiguous()
    if padding_mask is not None:
        bias = bias.masked_fill(padding_mask[:, None, None, :], torch.finfo(bias.dtype).min)
        value = value.masked_fill(padding_mask[:, None, :, None], 0.0)
    return key, value.contiguous(), bias


def prepare_places(
    strength: Tensor, ratio: Tensor, place: Tensor, padding_mask: Optional[Tensor]
) -> KeyPlaces:
    """Scale the positions of the keys by the strength gamma of each head, for a :class:`DecodingMemory`.

    Shapes: batch size B, H heads, N keys.

    Args:
        strength: learned strength gamma [H] of the diagonal prior.
        ratio: learned ratio [H] of source length to target length.
        place: centre [B, N] of each key, measured in source tokens.
        padding_mask: mask [B, N], True at padding keys, or None if there is no padding.

    Returns:
        Gamma times the positions [B, H, 1, N], gamma times the ratio, and gamma, both [B, H, 1, 1]. Padding
        keys are placed far from every query.
    """
    if padding_mask is not None:
        place = place.masked_fill(padding_mask, FAR_AWAY)
    gamma = strength.view(1, -1, 1, 1).expand(len(place), -1, -1, -1)
    return KeyPlaces(gamma * place.to(gamma.dtype)[:, None, None, :], gamma * ratio.view(-1, 1, 1), gamma)
