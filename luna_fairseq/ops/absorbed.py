"""Pack and unpack attention in which the rows of the packed sequence P absorb the projections of the tokens.

Attention multiplies projected rows of P by projected tokens. The product ``r . (W x)`` equals
``(W^T r) . x``, and P has few rows. It saves time to multiply the L rows of every head by W^T, in place of
multiplying all S tokens by W. The same holds for the projection of the values and of the output. All results
equal those of ``attention.py`` between linear layers, up to rounding.

For S tokens of width C, a projection costs S C^2 multiplications. Its absorbed form costs L C^2 for the rows,
and H L S C for products of rows that are C wide instead of K = C / H.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.ops.attention import is_eager_on_cpu
from luna_fairseq.ops.causal_luna.inputs import PACK_ACTIVATIONS
from luna_fairseq.ops.masked_softmax import masked_softmax


class HeadProjection(NamedTuple):
    """Weight and bias of a linear layer, divided into heads.

    H is the number of heads, K the head width, and C = H K the width of the tokens.

    Attributes:
        weight: weight [H, K, C] of each head.
        bias: bias [H, K] of a projection to heads, or bias [C] of a projection of all heads to the output.
    """

    weight: Tensor
    bias: Tensor


def projection_to_heads(weight: Tensor, bias: Tensor, num_heads: int) -> HeadProjection:
    """Divide a projection of tokens to queries, keys or values into heads, without a copy.

    Args:
        weight: weight [H K, C] of the projection from width C to H heads of width K.
        bias: bias [H K] of the projection.
        num_heads: number of heads H.

    Returns:
        Weight [H, K, C] and bias [H, K] of each head.
    """
    return HeadProjection(weight.unflatten(0, (num_heads, -1)), bias.unflatten(0, (num_heads, -1)))


def projection_of_heads(weight: Tensor, bias: Tensor, num_heads: int) -> HeadProjection:
    """Divide the output projection, which reads all heads, into heads, without a copy.

    Args:
        weight: weight [C, H K] of the projection from H heads of width K to width C.
        bias: bias [C] of the projection.
        num_heads: number of heads H.

    Returns:
        Weight [H, K, C] of each head, and bias [C] of the output.
    """
    return HeadProjection(weight.t().unflatten(0, (num_heads, -1)), bias)


def saves_time(rows: Tensor, tokens: Tensor, *projections: nn.Module, products: int = 2) -> bool:
    """Return True if it is faster to absorb projections of tokens into the rows of the packed sequence P.

    The absorbed form must also need no more memory. Only CPUs were measured, in float32 (C = 256 and 512, K =
    64, L = 16 and 32, forward and backward, torch 2.13). Layers other than a plain linear layer, such as
    quantised ones, cannot be absorbed.

    Args:
        rows: projected rows [B, H, L, K] of P.
        tokens: sequence [S, B, C].
        projections: projections of the tokens that the absorbed form saves.
        products: number of products with the tokens in the absorbed form (default: 2, logits and output).

    Returns:
        True if the absorbed form should be used.
    """
    if not is_eager_on_cpu(tokens) or rows.dtype != tokens.dtype:
        return False
    _, H, L, K = rows.shape
    needs_less_memory = products * H * L <= len(projections) * tokens.size(0)
    multiplies_less = 4 * products * L <= 3 * len(projections) * K
    return needs_less_memory and multiplies_less and all(map(is_plain, projections))


def is_plain(module: nn.Module) -> bool:
    """Return True if a module is torch's linear layer with a bias and without hooks.

    Hooks would not be called if the projection is absorbed.

    Args:
        module: projection of the tokens.

    Returns:
        True if the projection can be absorbed.
    """
    has_hooks = module._forward_pre_hooks or module._forward_hooks or module._backward_hooks
    return type(module) is nn.Linear and module.bias is not None and not has_hooks


def absorbed_pack(
    q: Tensor,
    context: Tensor,
    key: HeadProjection,
    value: HeadProjection,
    context_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tensor:
    """Compute pack attention to a context whose keys and values are not projected.

    B is the batch size, H the number of heads, L the number of rows of the packed sequence P, S the length
    and C the width of the context, and K = C / H the head width.

    Args:
        q: queries [B, H, L, K], projected from P, not yet scaled by K^-0.5.
        context: context [S, B, C].
        key: projection of the context to keys.
        value: projection of the context to values.
        context_padding_mask: mask [B, S], True at padding. An example whose context is all padding gets an
            output of zeros (default: None, no padding).
        dropout: dropout probability of the weights (default: 0).
        bias: term [B, H, L, S] that is added to the logits (default: None, no bias).

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
    """Compute unpack attention of a sequence whose queries are not projected, with the output projection.

    B is the batch size, H the number of heads, L the number of rows of the packed sequence P, T the length
    and C the width of X, and K = C / H the head width.

    Args:
        x: sequence X [T, B, C].
        k: keys [B, H, L, K] of the packed context.
        v: values [B, H, L, K] of the packed context.
        query: projection of X to queries.
        output: projection of all heads to the output.
        packed_padding_mask: mask [B, L], True at masked rows of P (default: None, no row is masked).
        dropout: dropout probability of the weights (default: 0).
        bias: term [B, H, T, L] that is added to the logits (default: None, no bias).

    Returns:
        The output Y_X [T, B, C].
    """
    logits = absorbed_logits(k, x, query).transpose(2, 3).contiguous()
    mask = None if packed_padding_mask is None else packed_padding_mask[:, None, None, :]
    weights = F.dropout(masked_softmax(logits if bias is None else logits + bias, mask), dropout)
    weights = weights.transpose(2, 3).flatten(1, 2)  # [B, H L, T]
    rows = multiply_by_head(v, output.weight).flatten(1, 2)  # [B, H L, C]
    return torch.bmm(weights.transpose(1, 2), rows).transpose(0, 1).contiguous() + output.bias


def absorbed_pack_weights(pack_q: Tensor, x: Tensor, key: HeadProjection, activation: str) -> Tensor:
    """Compute the causal pack weights A_pack of a sequence whose keys are not projected.

    B is the batch size, H the number of heads, L the number of rows of the packed sequence P, T the length
    and C the width of X, and K = C / H the head width.

    Args:
        pack_q: projection [B, H, L, K] of P, not yet scaled by K^-0.5.
        x: sequence X [T, B, C].
        key: projection of X to the keys of pack attention.
        activation: omega, "softplus" or "elu".

    Returns:
        The weights [B, H, T, L], as those of :func:`luna_fairseq.ops.causal_luna.pack_weights`.
    """
    return PACK_ACTIVATIONS[activation](absorbed_logits(pack_q, x, key).transpose(2, 3).contiguous())


def absorbed_logits(rows: Tensor, tokens: Tensor, projection: HeadProjection) -> Tensor:
    """Compute the logits between rows of the packed sequence P and tokens that are not projected.

    B is the batch size, H the number of heads, L the number of rows, S the number and C the width of the
    tokens, and K = C / H the head width.

    Args:
        rows: projected rows [B, H, L, K], not yet scaled by K^-0.5.
        tokens: tokens [S, B, C] that are not projected.
        projection: projection of the tokens to heads.

    Returns:
        The logits [B, H, L, S].
    """
    wide, start = absorb_projection(rows, projection)
    logits = torch.baddbmm(start.flatten(1, 2).unsqueeze(-1), wide.flatten(1, 2), tokens.permute(1, 2, 0))
    return logits.unflatten(1, rows.shape[1:3])


def absorb_projection(rows: Tensor, projection: HeadProjection) -> Tuple[Tensor, Tensor]:
    """Multiply rows by the projection of the tokens that they will be multiplied by.

    For a row r of a head, ``r . (W x + b)`` equals ``(W^T r) . x + r . b``. B is the batch size, H the number
    of heads, L the number of rows, C the width of the tokens, and K = C / H the head width.

    Args:
        rows: projected rows [B, H, L, K], not yet scaled by K^-0.5.
        projection: projection of the tokens to heads.

    Returns:
        - scaled rows [B, H, L, C], to be multiplied by tokens that are not projected.
        - products [B, H, L] of the scaled rows with the bias.
    """
    rows = rows * rows.size(-1) ** -0.5
    return multiply_by_head(rows, projection.weight), (rows * projection.bias[:, None, :]).sum(dim=-1)


def multiply_by_head(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiply the rows of each head by the weight of this head.

    B is the batch size, H the number of heads and L the number of rows.

    Args:
        rows: rows [B, H, L, M] of width M.
        weight: weight [H, M, N] of each head, from width M to width N.

    Returns:
        Products [B, H, L, N].
    """
    B, H, L, _ = rows.shape
    # One product for each head: [L B, M] times [M, N].
    products = torch.bmm(rows.permute(1, 2, 0, 3).reshape(H, L * B, -1), weight)
    return products.unflatten(1, (L, B)).permute(2, 0, 1, 3).contiguous()
