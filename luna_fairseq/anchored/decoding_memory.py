"""Cached keys and values of a source sentence, prepared for fast incremental decoding.

The logit scale, the padding mask, the biases of tokens and the positions of keys do not depend on the query,
and are applied once per source. diagonal.py defines the diagonal prior, a bias toward an expected position.

Shapes: batch size B, H heads of dimension K, T queries, N keys. ``padding_mask`` [B, N] is True at padding.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.geometry import TargetPlaces, measure_places
from luna_fairseq.anchored.places import FAR_AWAY
from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import MAX_PENALTY


class KeyPlaces(NamedTuple):
    """Query-independent tensors of the diagonal prior, multiplied by the strength gamma of the prior.

    The diagonal prior is a bias of attention toward keys near an expected position. A query with target
    position t expects the source position ``o + r (t + 1/2)``, where r is the ratio of source to target
    length, and o the number of source tokens before the aligned sentence. A key at position c gets the bias
    ``-gamma |o + r (t + 1/2) - c| / sqrt(t + 1)``, plus a constant for each query. Each head learns gamma
    and r. Shapes: batch size B, H heads, N keys.

    Attributes:
        place: ``-gamma c`` [B, H, 1, N].
        ratio: ``gamma r`` [B, H, 1, 1].
        strength: ``gamma`` [B, H, 1, 1].
    """

    place: Tensor
    ratio: Tensor
    strength: Tensor


class DecodingMemory(NamedTuple):
    """Cached keys and values of source sentences, prepared for fast incremental decoding.

    The N keys are the keys of all source tokens. In a look-up, the keys of the L rows of the packed context
    come first. Shapes: batch size B, H heads of dimension K.

    Attributes:
        key: transposed keys [B, H, K, N], scaled by K^-0.5.
        value: values [B, H, N, K], which are 0 at padding.
        bias: bias [B, H or 1, 1, N] of the logits. Padding has the most negative finite value.
        places: positions of the keys for the diagonal prior, a bias toward keys near an expected source
            position. None if there is no diagonal prior.
        first: number of leading keys among which the diagonal prior finds the key nearest to the expected
            position: L in a look-up, otherwise N. The prior is 0 at this key.
        mean_pack_weights: always None.
    """

    key: Tensor
    value: Tensor
    bias: Tensor
    places: Optional[KeyPlaces]
    first: int
    mean_pack_weights: Optional[Tensor] = None

    def attend(
        self, q: Tensor, target: Optional[TargetPlaces], dropout: float = 0.0
    ) -> Tuple[Tensor, Tensor]:
        """Compute attention from unscaled queries q [B, H, T, K] to the cached keys.

        ``target`` holds the target positions of the queries, which a diagonal prior needs. Return the output
        [B, H, T, K] and the attention weights [B, H, T, N].
        """
        # Batched products over B x H take half of the operator calls of matmul.
        heads = q.shape[:2]
        bias, q, key, value = (x.flatten(0, 1) for x in (self.compute_bias(target), q, self.key, self.value))
        weights = torch.baddbmm(bias, q, key).softmax(dim=-1)
        dropped = F.dropout(weights, dropout) if dropout else weights
        return torch.bmm(dropped, value).unflatten(0, heads), weights.unflatten(0, heads)

    def compute_bias(self, target: Optional[TargetPlaces]) -> Tensor:
        """Return the bias [B, H, T, N] of the attention logits from T queries to N keys.

        The result is the cached ``bias``, plus the diagonal prior if there is one. The prior is 0 at the
        nearest of the ``first`` leading keys, and at least ``-MAX_PENALTY``. To compute the prior, ``target``
        must hold the target positions of the queries.
        """
        if self.places is None:
            return self.bias.expand(-1, self.key.size(1), -1, -1)
        if target is None:
            raise InputError(
                "a diagonal prior needs the positions of the queries, got none. "
                "Pass the geometry of the batch"
            )
        if target.middle is None:
            target = measure_places(target, self.key.dtype)
        apart = torch.addcmul(self.places.place, self.places.ratio, target.middle)
        if target.origin is not None:
            apart = apart + self.places.strength * target.origin.view(len(self.key), 1, -1, 1)
        distance = apart.abs() / target.width
        nearest = distance.detach()[..., : self.first].amin(dim=-1, keepdim=True)
        return self.bias - (distance - nearest).clamp(max=MAX_PENALTY)


def prepare_keys(
    key: Tensor, value: Tensor, bias: Tensor, padding_mask: Optional[Tensor]
) -> Tuple[Tensor, Tensor, Tensor]:
    """Scale, transpose and mask the keys, values and biases of a :class:`DecodingMemory`.

    Keys and values are [B, H, N, K] for N keys, ``bias`` [B, H or 1, 1, N] is added to the logits, and
    ``padding_mask`` [B, N] is True at padding. Return keys [B, H, K, N] scaled by K^-0.5, values that are 0
    at padding, and biases that mask padding.
    """
    key = (key * key.size(-1) ** -0.5).transpose(2, 3).contiguous()
    if padding_mask is not None:
        bias = bias.masked_fill(padding_mask[:, None, None, :], torch.finfo(bias.dtype).min)
        value = value.masked_fill(padding_mask[:, None, :, None], 0.0)
    return key, value.contiguous(), bias


def prepare_places(
    strength: Tensor, ratio: Tensor, place: Tensor, padding_mask: Optional[Tensor]
) -> KeyPlaces:
    """Multiply key positions ``place`` [B, N] and the length ratio [H] by the diagonal prior's strength [H].

    Keys where ``padding_mask`` [B, N] is True are first moved far away.
    """
    if padding_mask is not None:
        place = place.masked_fill(padding_mask, FAR_AWAY)
    gamma = strength.view(1, -1, 1, 1).expand(len(place), -1, -1, -1)
    return KeyPlaces(-gamma * place.to(gamma.dtype)[:, None, None, :], gamma * ratio.view(-1, 1, 1), gamma)
