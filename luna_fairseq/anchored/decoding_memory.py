"""Cached keys and values of a source sentence, prepared for fast incremental decoding.

In each decoding step, every query attends to all N keys. Everything that does not depend on the query is
computed once per source: the logit scale, the padding mask, the token biases and the key positions. A
decoding step then needs few operations.

The diagonal prior is a bias that favours keys near the source position expected for a target token. For
target token t, a head with strength gamma and ratio r adds ``-gamma |r (t + 1/2) - c| / sqrt(t + 1)`` to the
logit of a key whose centre is at source position c.
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
    """Source positions of the keys for a diagonal prior, multiplied by the strength gamma of each head.

    A diagonal prior favours keys near the source position ``r (t + 1/2)`` that is expected for target token
    t. Each head learns gamma, and the ratio r of source length to target length.

    Shapes: batch size B, H heads, N keys.

    Attributes:
        place: gamma times the centre of each key [B, H, 1, N], in tokens from the start of the source.
        ratio: gamma times r [B, H, 1, 1].
        strength: gamma [B, H, 1, 1].
    """

    place: Tensor
    ratio: Tensor
    strength: Tensor


class DecodingMemory(NamedTuple):
    """Cached keys and values of source sentences, laid out for fast incremental decoding.

    Every query attends to all N keys. The keys belong to the rows of the packed sequence P, to the source
    tokens, or to both. A diagonal prior is a bias that favours keys near the source position expected for a
    target token.

    Shapes: batch size B, H heads of dimension K.

    Attributes:
        key: transposed keys [B, H, K, N], scaled by K^-0.5.
        value: values [B, H, N, K], 0 at padding.
        bias: bias [B, H or 1, 1, N] added to the logits of all queries. The most negative finite value of the
            dtype at padding.
        places: source positions of the keys, multiplied by the strength of the prior. None if there is no
            diagonal prior.
        first: number of leading keys among which the nearest key is searched. The diagonal prior is
            normalized so that it is 0 for this key.
        pack_weights: always None, because this layout does not provide attention weights over the source
            tokens.
    """

    key: Tensor
    value: Tensor
    bias: Tensor
    places: Optional[KeyPlaces]
    first: int
    pack_weights: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "DecodingMemory":
        """Return the keys and values of selected source sentences, in the given order.

        Args:
            sentences: indices of the sentences to return, as a vector.

        Returns:
            Keys and values with one batch entry per index.
        """
        return map_tensors(lambda x: x.index_select(0, sentences), self)

    def read(self, q: Tensor, target: Optional[TargetPlaces], dropout: float = 0.0) -> Tuple[Tensor, Tensor]:
        """Compute attention of the queries over all N keys: ``softmax(q K^T / sqrt(K) + bias) V``.

        Shapes: batch size B, T queries, H heads of dimension K.

        Args:
            q: queries [B, H, T, K], not yet scaled by K^-0.5.
            target: target positions of the queries, or None if there is no diagonal prior.
            dropout: dropout probability of the attention weights (default: 0).

        Returns:
            Tuple of two values:

            - output [B, H, T, K], the weighted sum of the values.
            - attention weights [B, H, T, N] before dropout.
        """
        weights = (q @ self.key + self.compute_bias(target)).softmax(dim=-1)
        dropped = F.dropout(weights, dropout) if dropout else weights
        return dropped @ self.value, weights

    def compute_bias(self, target: Optional[TargetPlaces]) -> Tensor:
        """Compute the bias of the attention logits, including the diagonal prior if there is one.

        For a query at target position t and a key at source position c, the prior is
        ``-gamma |o + r (t + 1/2) - c| / sqrt(t + 1)``. Here, o is the number of source tokens before the
        query's sentence. The prior is normalized to 0 for the nearest key and clamped to at least
        ``-MAX_PENALTY``.

        Shapes: batch size B, T queries, H heads, N keys.

        Args:
            target: target positions t and offsets o of the queries, or None if there is no diagonal prior.

        Returns:
            Bias [B, H, T, N], or [B, H or 1, 1, N] if there is no diagonal prior.

        Raises:
            InputError: There is a diagonal prior, but ``target`` is None.
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
    """Scale and transpose the keys, and apply the padding mask to values and bias, once before decoding.

    Shapes: batch size B, H heads of dimension K, N keys.

    Args:
        key: keys [B, H, N, K].
        value: values [B, H, N, K].
        bias: bias [B, H or 1, 1, N] of the attention logits.
        padding_mask: mask [B, N], True at padding keys, or None if there is no padding.

    Returns:
        Tuple of three values, the first three fields of a :class:`DecodingMemory`:

        - transposed keys [B, H, K, N], scaled by K^-0.5.
        - values [B, H, N, K], 0 at padding.
        - bias [B, H or 1, 1, N], the most negative finite value of the dtype at padding.
    """
    key = (key * key.size(-1) ** -0.5).transpose(2, 3).contiguous()
    if padding_mask is not None:
        bias = bias.masked_fill(padding_mask[:, None, None, :], torch.finfo(bias.dtype).min)
        value = value.masked_fill(padding_mask[:, None, :, None], 0.0)
    return key, value.contiguous(), bias


def prepare_places(
    strength: Tensor, ratio: Tensor, place: Tensor, padding_mask: Optional[Tensor]
) -> KeyPlaces:
    """Multiply the source positions of the keys by the strength of the diagonal prior, once before decoding.

    The diagonal prior adds ``-gamma |r (t + 1/2) - c| / sqrt(t + 1)`` to the logit of a key at source
    position c, for a query at target position t. The products gamma * c and gamma * r do not depend on the
    query.

    Shapes: batch size B, H heads, N keys.

    Args:
        strength: learned strength gamma [H] of each head.
        ratio: learned ratio r [H] of source length to target length.
        place: centre c [B, N] of each key, in tokens from the start of the source.
        padding_mask: mask [B, N], True at padding keys, or None if there is no padding.

    Returns:
        Named tuple of gamma * c [B, H, 1, N], gamma * r [B, H, 1, 1] and gamma [B, H, 1, 1]. At padding keys,
        c is 1e15, so that they are never the nearest key.
    """
    if padding_mask is not None:
        place = place.masked_fill(padding_mask, FAR_AWAY)
    gamma = strength.view(1, -1, 1, 1).expand(len(place), -1, -1, -1)
    return KeyPlaces(gamma * place.to(gamma.dtype)[:, None, None, :], gamma * ratio.view(-1, 1, 1), gamma)
