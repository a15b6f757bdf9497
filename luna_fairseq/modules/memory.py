"""Cached keys and values of a packed context, used by unpack attention at every decoding step."""

from typing import Any, Callable, NamedTuple, Optional, Tuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.absorbed import HeadProjection, absorb_projection, multiply_by_head

Nested = TypeVar("Nested", bound=Tuple[Any, ...])


def map_tensors(function: Callable[[Tensor], Tensor], values: Nested) -> Nested:
    """Apply a function to every tensor of a nested tuple.

    Args:
        function: function that maps a tensor to a tensor.
        values: tuple or named tuple that can contain tensors, tuples and other values.

    Returns:
        Tuple of the same type with the new tensors. Other values are unchanged. If a tuple contains the same
        tensor twice, the function is applied once and the result is used twice.
    """
    results = {id(x): function(x) for x in values if isinstance(x, Tensor)}

    def apply(x: Any) -> Any:
        if isinstance(x, Tensor):
            return results[id(x)]
        if isinstance(x, tuple):
            return map_tensors(function, x)
        return x

    new = [apply(x) for x in values]
    return type(values)(*new) if hasattr(values, "_fields") else type(values)(new)


class ReadWeights(NamedTuple):
    """Weights of queries over what they attend to: the rows of P, the context's tokens, or both.

    Shapes: batch size B, H heads, T queries, L rows of P, S context tokens.

    Attributes:
        rows: weights [B, H, T, L] over the rows, or None if the queries do not attend to P.
        tokens: weights [B, H, T, S] over the tokens that queries attend to directly (default: None).
    """

    rows: Optional[Tensor]
    tokens: Optional[Tensor] = None

    def total(self, pack_weights: Optional[Tensor]) -> Any:
        """Return the weights [B, H, T, S] over the tokens, directly and through rows [B, H or 1, L, S]."""
        if self.rows is None:
            return self.tokens
        through_rows = self.rows @ pack_weights
        return through_rows if self.tokens is None else through_rows + self.tokens


class PackedMemory(NamedTuple):
    """Keys and values of a packed context, computed once and reused at every decoding step.

    A packed context Y_P has L rows and summarizes a context of S tokens.

    Shapes: batch size B, H heads of dimension K.

    Attributes:
        key: keys [B, H, L, K] projected from Y_P.
        value: values [B, H, L, K] projected from Y_P. The same tensor as ``key`` if keys and values share a
            projection.
        pack_weights: weights [B, L, S] of the rows over the context, averaged over heads (default: None,
            weights were not requested).
    """

    key: Tensor
    value: Tensor
    pack_weights: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "PackedMemory":
        """Return the keys and values of selected source sentences, in the given order.

        Args:
            sentences: indices of the sentences to return, as a vector.

        Returns:
            Keys and values with one batch entry per index.
        """
        return map_tensors(lambda x: x.index_select(0, sentences), self)


class AbsorbedMemory(NamedTuple):
    """Keys and values of a packed context, multiplied by the query projection and the output projection.

    For a head with key k and value v, the logit ``(W_q x + b_q) . k`` equals ``x . (W_q^T k) + b_q . k``. The
    output ``W_o (a v)`` for an attention weight a equals ``a (W_o v)``. The products with k and v are
    computed once per sentence. A decoding step then loads only these products instead of the two projection
    matrices.

    Shapes: batch size B, width C, H heads of dimension K, L rows of the packed context.

    Attributes:
        key: keys [B, C, H * L] times the query projection, scaled by K^-0.5.
        key_bias: products [B, 1, H * L] of the scaled keys with the bias of the query projection. The most
            negative finite value of the dtype at padding.
        value: values [B, H * L, C] times the output projection. 0 at padding.
        value_bias: bias [B, 1, C] of the output projection.
        pack_weights: always None, because this layout does not provide attention weights over the context.
    """

    key: Tensor
    key_bias: Tensor
    value: Tensor
    value_bias: Tensor
    pack_weights: Optional[Tensor] = None

    def select(self, sentences: Tensor) -> "AbsorbedMemory":
        """Return the keys and values of selected source sentences, in the given order.

        Args:
            sentences: indices of the sentences to return, as a vector.

        Returns:
            Keys and values with one batch entry per index.
        """
        return map_tensors(lambda x: x.index_select(0, sentences), self)

    def read(self, query: Tensor, num_heads: int, dropout: float = 0.0) -> Tensor:
        """Compute unpack attention and the output projection for queries that have not been projected.

        Args:
            query: T queries X [B, T, C], for batch size B and width C.
            num_heads: number of heads H.
            dropout: dropout probability of the attention weights (default: 0).

        Returns:
            Output Y_X [B, T, C].
        """
        logits = torch.baddbmm(self.key_bias, query, self.key)
        weights = logits.unflatten(-1, (num_heads, -1)).softmax(dim=-1)
        if dropout:
            weights = F.dropout(weights, dropout)
        return torch.baddbmm(self.value_bias, weights.flatten(-2), self.value)


def absorb_projections(
    memory: PackedMemory,
    query: HeadProjection,
    output: HeadProjection,
    packed_padding_mask: Optional[Tensor] = None,
) -> AbsorbedMemory:
    """Fold the query projection into cached keys, and the output projection into cached values.

    Unpack attention can then use queries that have not been projected, and its result needs no output
    projection.

    Shapes: batch size B, width C, H heads of dimension K, L rows of the packed sequence P.

    Args:
        memory: keys and values [B, H, L, K].
        query: projection from the input [C] to the queries [H, K] of all heads.
        output: projection from the results [H, K] of all heads to the output [C].
        packed_padding_mask: boolean mask [B, L], True at padded rows of P (default: None, no padding).

    Returns:
        The transformed keys [B, C, H * L] and values [B, H * L, C], with their biases.
    """
    key, key_bias = absorb_projection(memory.key, query)  # [B, H, L, C] and [B, H, L]
    value = multiply_by_head(memory.value, output.weight)  # [B, H, L, C]
    if packed_padding_mask is not None:
        padding = packed_padding_mask[:, None, :]
        key_bias = key_bias.masked_fill(padding, torch.finfo(key_bias.dtype).min)
        value = value.masked_fill(padding.unsqueeze(-1), 0.0)
    return AbsorbedMemory(
        key=key.flatten(1, 2).transpose(1, 2).contiguous(),
        key_bias=key_bias.flatten(1).unsqueeze(1),
        value=value.flatten(1, 2),
        value_bias=output.bias.expand(len(key), 1, -1).contiguous(),
    )
