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
from luna_fairseq.ops.attention import in_a_graph
from luna_fairseq.ops.softmax import MAX_PENALTY

# Place of a key that is padding, which is therefore never the nearest key.
FAR_AWAY = 1e15


class KeyPlaces(NamedTuple):
    """Places of the keys for a diagonal prior, multiplied by the strength gamma of each head.

    Attributes:
        place: middle of each key times gamma [B, H, 1, N]
        ratio: ratio of source length to target length times gamma [B, H, 1, 1]
        strength: gamma [B, H, 1, 1]
    """

    place: Tensor
    ratio: Tensor
    strength: Tensor


class DecodingMemory(NamedTuple):
    """Keys and values that every query reads, in the form that decoding needs.

    Attributes:
        key: transposed keys, scaled by K^-0.5 [B, H, K, N]
        value: values, 0 at padding [B, H, N, K]
        bias: bias of the logits that does not depend on the query [B, H or 1, 1, N]: the gate of tokens, and
            the smallest number at padding
        places: places of the keys; None without a diagonal prior
        first: number of leading keys among which the nearest key of a diagonal is searched
        pack_weights: None, because a memory with weights is not prepared (default: None)
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
            sentences: indices of the sentences to return [B']
        """
        return map_tensors(lambda x: x.index_select(0, sentences), self)

    def read(self, q: Tensor, target: Optional[TargetPlaces], dropout: float = 0.0) -> Tuple[Tensor, Tensor]:
        """Compute the attention of queries to all keys.

        Args:
            q: queries [B, H, n T, K], not yet scaled by K^-0.5
            target: places of the queries of n hypotheses [B n, T]; read only with a diagonal prior
            dropout: dropout probability of the weights (default: 0)

        Returns:
            output [B, H, n T, K], and the weights before dropout [B, H, n T, N]
        """
        weights = (q @ self.key + self.bias_of(target)).softmax(dim=-1)
        dropped = F.dropout(weights, dropout) if dropout else weights
        return dropped @ self.value, weights

    def bias_of(self, target: Optional[TargetPlaces]) -> Tensor:
        """Return the bias of the logits [B, H or 1, n T or 1, N], with the diagonal prior.

        The prior is that of :meth:`luna_fairseq.anchored.diagonal.Diagonal.bias`.

        Args:
            target: places of the queries [B n, T]

        Raises:
            InputError: the places of the queries are missing
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


def can_prepare(key: Tensor) -> bool:
    """Return True for keys on a CPU in float32 or float64, outside of a graph. Other cases were not measured.

    Args:
        key: keys of a memory
    """
    is_plain = key.device.type == "cpu" and key.dtype in (torch.float32, torch.float64)
    return is_plain and not in_a_graph()


def prepare_keys(
    key: Tensor, value: Tensor, bias: Tensor, padding_mask: Optional[Tensor]
) -> Tuple[Tensor, Tensor, Tensor]:
    """Return the keys, values and the bias of a :class:`DecodingMemory`.

    Args:
        key: keys [B, H, N, K]
        value: values [B, H, N, K]
        bias: bias of the logits of real keys [B, H or 1, 1, N]
        padding_mask: mask of the keys [B, N], True at padding; None without padding
    """
    key = (key * key.size(-1) ** -0.5).transpose(2, 3).contiguous()
    if padding_mask is not None:
        bias = bias.masked_fill(padding_mask[:, None, None, :], torch.finfo(bias.dtype).min)
        value = value.masked_fill(padding_mask[:, None, :, None], 0.0)
    return key, value.contiguous(), bias


def prepare_places(
    strength: Tensor, ratio: Tensor, place: Tensor, padding_mask: Optional[Tensor]
) -> KeyPlaces:
    """Return the places of the keys of a :class:`DecodingMemory`.

    Args:
        strength: strength gamma of each head [H]
        ratio: ratio of source length to target length of each head [H]
        place: middle of each key, in tokens of the source [B, N]
        padding_mask: mask of the keys [B, N], True at padding; None without padding
    """
    if padding_mask is not None:
        place = place.masked_fill(padding_mask, FAR_AWAY)
    gamma = strength.view(1, -1, 1, 1).expand(len(place), -1, -1, -1)
    return KeyPlaces(gamma * place.to(gamma.dtype)[:, None, None, :], gamma * ratio.view(-1, 1, 1), gamma)
