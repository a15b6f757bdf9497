"""Pack and unpack attention without projecting the tokens: the packed sequence P is projected instead.

Attention multiplies rows r of the packed sequence P by projected tokens W x. Because ``r . (W x)`` equals
``(W^T r) . x``, the rows can be multiplied by W^T in place of multiplying the tokens by W. The rows then
absorb the projection. This saves time if there are few rows and many tokens. The value and output projections
are absorbed in the same way. The results match ``attention.py`` with explicit linear layers, up to rounding.

For S tokens of width C, a projection costs S C^2 multiplications. If L rows of H heads absorb it, it costs
L C^2 multiplications. The products with the tokens then cost H L S C multiplications in place of L S C,
because the rows of each head are C wide.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.ops.attention import is_eager_on_cpu
from luna_fairseq.ops.masked_softmax import masked_softmax
from luna_fairseq.ops.plain_linear import linear_parameters


class HeadProjection(NamedTuple):
    """Weight and bias of a linear layer, split into H heads of width K, for tokens of width C = H K.

    Attributes:
        weight: weight [H, K, C] of each head.
        bias: bias of the layer. [H, K] if the layer maps tokens to heads, or [C] if it maps heads to the
            output.
    """

    weight: Tensor
    bias: Tensor


def split_input_projection(weight: Tensor, bias: Tensor, num_heads: int) -> HeadProjection:
    """Split the weight and bias of a query, key or value projection into heads.

    The result is a view, so no memory is copied.

    Args:
        weight: weight [H K, C] of the projection from width C to H heads of width K.
        bias: bias [H K] of the projection.
        num_heads: number of heads H.

    Returns:
        Weight [H, K, C] and bias [H, K] of each head.
    """
    return HeadProjection(weight.unflatten(0, (num_heads, -1)), bias.unflatten(0, (num_heads, -1)))


def split_output_projection(weight: Tensor, bias: Tensor, num_heads: int) -> HeadProjection:
    """Split the weight of the output projection into heads.

    The result is a view, so no memory is copied.

    Args:
        weight: weight [C, H K] of the projection from H heads of width K to width C.
        bias: bias [C] of the projection, which is not split.
        num_heads: number of heads H.

    Returns:
        Weight [H, K, C] of each head, and bias [C] of the output.
    """
    return HeadProjection(weight.t().unflatten(0, (num_heads, -1)), bias)


def should_absorb(rows: Tensor, tokens: Tensor, *projections: nn.Module, products: int = 2) -> bool:
    """Return True if it is faster to project the rows of the packed sequence P than to project the tokens.

    ``r . (W x)`` equals ``(W^T r) . x`` for a row r, a token x and a projection weight W. The result is True
    only if multiplying rows by W^T takes less time and no more memory. Only CPUs were benchmarked, in float32
    (C = 256 and 512, K = 64, L = 16 and 32, forward and backward, torch 2.13). The result is therefore False
    on other devices and while torch records a graph.

    Shapes: batch size B, H heads of width K, L rows of P, and S tokens of width C.

    Args:
        rows: projected rows [B, H, L, K] of P.
        tokens: sequence [S, B, C].
        projections: token projections that would be skipped. The result is False if any of them is not a
            plain linear layer (for example, a quantized layer).
        products: number of matrix products between rows and tokens (default: 2, the logits and the output).

    Returns:
        True if the projections should be absorbed by the rows.
    """
    if not is_eager_on_cpu(tokens) or rows.dtype != tokens.dtype:
        return False
    _, H, L, K = rows.shape
    needs_less_memory = products * H * L <= len(projections) * tokens.size(0)
    multiplies_less = 4 * products * L <= 3 * len(projections) * K
    return needs_less_memory and multiplies_less and all(linear_parameters(x) for x in projections)


def absorbed_pack(
    q: Tensor,
    context: Tensor,
    key: HeadProjection,
    value: HeadProjection,
    context_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tensor:
    """Compute pack attention without projecting the context to keys and values.

    Pack attention is softmax attention from L queries, projected from the packed sequence P, to S context
    tokens. Here the queries are multiplied by the transposed key projection, and the attention output is
    projected in place of the values. This is faster for few queries. The result equals attention with
    projected keys and values, up to rounding.

    Shapes: batch size B, H heads of width K = C / H, S tokens of width C, and L rows of P.

    Args:
        q: queries [B, H, L, K], projected from P, not yet scaled by K^-0.5.
        context: context [S, B, C].
        key: projection of the context to keys, with weight [H, K, C] and bias [H, K].
        value: projection of the context to values, with weight [H, K, C] and bias [H, K].
        context_padding_mask: mask [B, S], True at padding. An example whose context is all padding has an
            output of zeros (default: None, no padding).
        dropout: dropout probability of the attention weights (default: 0).
        bias: bias term [B, H, L, S] added to the logits (default: None, no bias).

    Returns:
        The packed context [B, H, L, K].
    """
    logits = absorbed_logits(q, context, key)
    mask = None if context_padding_mask is None else context_padding_mask[:, None, None, :]
    weights = F.dropout(masked_softmax(logits if bias is None else logits + bias, mask), dropout)
    packed = torch.bmm(weights.flatten(1, 2), context.transpose(0, 1)).unflatten(1, weights.shape[1:3])
    # The weights do not sum to one after dropout, so the bias of the values is multiplied by their sum.
    values = multiply_by_head(packed, value.weight.transpose(1, 2))
    return values + weights.sum(dim=-1, keepdim=True) * value.bias[:, None, :]


def absorbed_unpack(
    x: Tensor,
    k: Tensor,
    v: Tensor,
    query: HeadProjection,
    output: HeadProjection,
    packed_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tensor:
    """Compute unpack attention and the output projection without projecting the input to queries.

    Unpack attention is softmax attention from T input positions to the L rows of the packed context. Here the
    keys are multiplied by the transposed query projection, and the values by the output projection. This is
    faster for few keys. The result equals attention between a query projection and an output projection, up
    to rounding.

    Shapes: batch size B, H heads of width K = C / H, L rows of the packed sequence P, and T positions of
    width C.

    Args:
        x: input [T, B, C].
        k: keys [B, H, L, K] of the packed context.
        v: values [B, H, L, K] of the packed context.
        query: projection of the input to queries, with weight [H, K, C] and bias [H, K].
        output: projection of all heads to the output, with weight [H, K, C] and bias [C].
        packed_padding_mask: mask [B, L], True at masked rows of P (default: None, no row is masked).
        dropout: dropout probability of the attention weights (default: 0).
        bias: bias term [B, H, T, L] added to the logits (default: None, no bias).

    Returns:
        The output [T, B, C], after the output projection.
    """
    logits = absorbed_logits(k, x, query).transpose(2, 3).contiguous()
    mask = None if packed_padding_mask is None else packed_padding_mask[:, None, None, :]
    weights = F.dropout(masked_softmax(logits if bias is None else logits + bias, mask), dropout)
    weights = weights.transpose(2, 3).flatten(1, 2)  # [B, H L, T]
    rows = multiply_by_head(v, output.weight).flatten(1, 2)  # [B, H L, C]
    return torch.bmm(weights.transpose(1, 2), rows).transpose(0, 1).contiguous() + output.bias


def absorbed_logits(rows: Tensor, tokens: Tensor, projection: HeadProjection) -> Tensor:
    """Compute the logits ``rows . projection(tokens) / sqrt(K)`` without projecting the tokens.

    The rows of the packed sequence P are multiplied by the transposed projection instead. The result matches
    the formula up to rounding.

    Shapes: batch size B, H heads of width K = C / H, L rows of P, and S tokens of width C.

    Args:
        rows: projected rows [B, H, L, K], not yet scaled by K^-0.5.
        tokens: tokens [S, B, C].
        projection: projection of the tokens to heads, with weight [H, K, C] and bias [H, K].

    Returns:
        The logits [B, H, L, S].
    """
    wide, start = absorb_projection(rows, projection)
    logits = torch.baddbmm(start.flatten(1, 2).unsqueeze(-1), wide.flatten(1, 2), tokens.permute(1, 2, 0))
    return logits.unflatten(1, rows.shape[1:3])


def absorb_projection(rows: Tensor, projection: HeadProjection) -> Tuple[Tensor, Tensor]:
    """Multiply rows by the transpose of a projection, to avoid projecting the tokens.

    For a row r scaled by K^-0.5, a token x, and a projection with weight W and bias b, the logit
    ``r . (W x + b)`` equals ``(W^T r) . x + r . b``. This function scales the rows, and returns ``W^T r`` and
    ``r . b``.

    Shapes: batch size B, H heads of width K = C / H, L rows of the packed sequence P, and tokens of width C.

    Args:
        rows: projected rows [B, H, L, K], not yet scaled by K^-0.5.
        projection: projection of the tokens to heads, with weight [H, K, C] and bias [H, K].

    Returns:
        - products W^T r [B, H, L, C] of the transposed weight and the scaled rows.
        - products r . b [B, H, L] of the scaled rows and the bias.
    """
    rows = rows * rows.size(-1) ** -0.5
    return multiply_by_head(rows, projection.weight), (rows * projection.bias[:, None, :]).sum(dim=-1)


def multiply_by_head(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiply the rows of each head by that head's weight matrix.

    Args:
        rows: rows [B, H, L, M]: batch size B, H heads, and L rows of width M.
        weight: weight [H, M, N] of each head, from width M to width N.

    Returns:
        Products [B, H, L, N].
    """
    B, H, L, _ = rows.shape
    # One product per head: [L B, M] times [M, N].
    products = torch.bmm(rows.permute(1, 2, 0, 3).reshape(H, L * B, -1), weight)
    return products.unflatten(1, (L, B)).permute(2, 0, 1, 3).contiguous()
