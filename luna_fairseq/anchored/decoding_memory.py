"""Keys and values of a source, prepared for decoding steps in which every query reads every key.

The scale of the logits, padding, the gate of tokens and the places of the keys do not depend on the query.
They are computed once for a source, so that a step needs few operations.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.geometry import TargetPlaces, measure_places
from luna_fairseq.errors import InputError
from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.ops.softmax import MAX_PENALTY

# Place of a key that is padding, which is therefore never the nearest key.
FAR_AWAY = 1e15


class KeyPlaces(NamedTuple):
    """Places of the keys for a diagonal prior, multiplied by the strength gamma of each head.

    B is the batch size, H the number of heads, and N the number of keys.

    Attributes:
        place: middle [B, H, 1, N] of each key, in tokens from the beginning, times gamma.
        ratio: ratio [B, H, 1, 1] of source length to target length, times gamma.
        strength: strength gamma [B, H, 1, 1].
    """

    place: Tensor
    ratio: Tensor
    strength: Tensor


class DecodingMemory(NamedTuple):
    """Keys and values that every query reads, in the form that decoding needs.

    B is the batch size, H the number of heads, N the number of keys, and K the head width.

    Attributes:
        key: transposed keys [B, H, K, N], scaled by K^-0.5.
        value: values [B, H, N, K], 0 at padding.
        bias: bias [B, H or 1, 1, N] of the logits that does not depend on the query: the gate of tokens, and
            the smallest number at padding.
        places: places of the keys; None without a diagonal prior.
        first: number of leading keys among which the nearest key of a diagonal is searched.
        pack_weights: None, because a memory with weights is not prepared (default: None).
    """

    key: Tensor
    value: Tensor
    bias: Tensor
    places: Optional[KeyPlaces]
    first: int
    pack_weights: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "DecodingMemory":
        """Return the memory of some sentences, in the given order.

        Args:
            sentences: indices [n] of the sentences to return.

        Returns:
            The memory of these n sentences.
        """
        return map_tensors(lambda x: x.index_select(0, sentences), self)

    def read(self, q: Tensor, target: Optional[TargetPlaces], dropout: float = 0.0) -> Tuple[Tensor, Tensor]:
        """Compute the attention of queries to all keys.

        There are T queries for each of n hypotheses of a source.

        Args:
            q: queries [B, H, n T, K], not yet scaled by K^-0.5.
            target: places [B n, T] of the queries in the target, read only with a diagonal prior.
            dropout: dropout probability of the weights (default: 0).

        Returns:
            - output [B, H, n T, K].
            - weights [B, H, n T, N] before dropout.
        """
        weights = (q @ self.key + self.bias_of(target)).softmax(dim=-1)
        dropped = F.dropout(weights, dropout) if dropout else weights
        return dropped @ self.value, weights

    def bias_of(self, target: Optional[TargetPlaces]) -> Tensor:
        """Return the bias of the logits, with the diagonal prior if there is one.

        The prior is that of :meth:`luna_fairseq.anchored.diagonal.Diagonal.bias`.

        Args:
            target: places [B n, T] of the T queries of n hypotheses in the target.

        Returns:
            The bias [B, H, n T, N], or [B, H or 1, 1, N] without a diagonal prior.

        Raises:
            InputError: The places of the queries are missing.
        """
        if self.places is None:
            return self.bias
        if target is None:
            raise InputError(
                "A diagonal prior needs the places of the queries. Pass the geometry of the batch"
            )
        if target.middle is None:
            target = measure_places(target, self.key.dtype)
        middle, width, origin = (
            None if x is None else x.reshape(len(self.key), 1, -1, 1)
            for x in (target.middle, target.width, target.origin)
        )
        expected = self.places.ratio * middle
        if origin is not None:
            expected = expected + self.places.strength * origin
        distance = (expected - self.places.place).abs() / width
        nearest = distance.detach()[..., : self.first].amin(dim=-1, keepdim=True)
        return self.bias - (distance - nearest).clamp(max=MAX_PENALTY)


def prepare_keys(
    key: Tensor, value: Tensor, bias: Tensor, padding_mask: Optional[Tensor]
) -> Tuple[Tensor, Tensor, Tensor]:
    """Convert keys, values and bias to the form of a :class:`DecodingMemory`.

    B is the batch size, H the number of heads, N the number of keys, and K the head width.

    Args:
        key: keys [B, H, N, K].
        value: values [B, H, N, K].
        bias: bias [B, H or 1, 1, N] of the logits of real keys.
        padding_mask: mask [B, N] of the keys, True at padding; None without padding.

    Returns:
        - transposed keys [B, H, K, N], scaled by K^-0.5.
        - values [B, H, N, K], 0 at padding.
        - bias [B, H or 1, 1, N], the smallest number at padding.
    """
    key = (key * key.size(-1) ** -0.5).transpose(2, 3).contiguous()
    if padding_mask is not None:
        bias = bias.masked_fill(padding_mask[:, None, None, :], torch.finfo(bias.dtype).min)
        value = value.masked_fill(padding_mask[:, None, :, None], 0.0)
    return key, value.contiguous(), bias


def prepare_places(
    strength: Tensor, ratio: Tensor, place: Tensor, padding_mask: Optional[Tensor]
) -> KeyPlaces:
    """Convert the places of the keys to the form of a :class:`DecodingMemory`.

    B is the batch size, H the number of heads, and N the number of keys.

    Args:
        strength: strength gamma [H] of each head.
        ratio: ratio [H] of source length to target length of each head.
        place: middle [B, N] of each key, in tokens of the source.
        padding_mask: mask [B, N] of the keys, True at padding; None without padding.

    Returns:
        The places, multiplied by gamma.
    """
    if padding_mask is not None:
        place = place.masked_fill(padding_mask, FAR_AWAY)
    gamma = strength.view(1, -1, 1, 1).expand(len(place), -1, -1, -1)
    return KeyPlaces(gamma * place.to(gamma.dtype)[:, None, None, :], gamma * ratio.view(-1, 1, 1), gamma)
