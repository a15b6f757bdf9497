"""Pack and unpack attention without projecting the tokens: the packed sequence P is projected instead.

Attention multiplies rows r of the packed sequence P by projected tokens W x. Because ``r . (W x)`` equals
``(W^T r) . x``, the rows can be multiplied by W^T in place of multiplying the tokens by W: the rows absorb
the projection. The value and output projections are absorbed in the same way. The results match projected
tokens up to rounding.

For S tokens of width C, a projection costs S C^2 multiplications. If L rows of H heads absorb it, it costs L
C^2 multiplications. The products with the tokens then cost H L S C multiplications in place of L S C, because
the rows of each head are C wide.

Shapes: batch size B, H heads of width K = C / H, L rows of P, S context tokens, T positions of X.
"""

from typing import NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from luna_fairseq.ops.attention import is_eager_on_cpu, masked_softmax


class HeadProjection(NamedTuple):
    """Weight [H, K, C] of a linear layer, split into heads. The bias is [H, K], or [C] for an output."""

    weight: Tensor
    bias: Tensor


def split_input_projection(weight: Tensor, bias: Tensor, num_heads: int) -> HeadProjection:
    """Split a weight [H * K, C] and bias [H * K] of a query, key or value projection into heads (views)."""
    return HeadProjection(weight.unflatten(0, (num_heads, -1)), bias.unflatten(0, (num_heads, -1)))


def split_output_projection(weight: Tensor, bias: Tensor, num_heads: int) -> HeadProjection:
    """Split the weight [C, H * K] of an output projection into heads (a view). Its bias [C] is not split."""
    return HeadProjection(weight.t().unflatten(0, (num_heads, -1)), bias)


def has_hooks(layer: nn.Module) -> bool:
    """Return True if a call of the layer runs hooks, or a ``forward`` that was assigned to this instance.

    Hooks are those of the layer and torch's global hooks.
    """
    own = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
    of_all = torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
    of_all = of_all or torch_module._global_backward_hooks
    # torch 1 has no hooks before the backward pass.
    own = own or getattr(layer, "_backward_pre_hooks", None)
    of_all = of_all or getattr(torch_module, "_global_backward_pre_hooks", None)
    return bool(own or of_all or "forward" in vars(layer))


def is_plain_linear(layer: nn.Module) -> bool:
    """Return True if a call of the layer computes ``weight x + bias`` and nothing else.

    A class other than ``nn.Linear`` itself must set the class attribute ``computes_plain_linear``, which its
    subclasses do not inherit.
    """
    is_linear = type(layer) is nn.Linear or vars(type(layer)).get("computes_plain_linear", False)
    return is_linear and not has_hooks(layer)


def can_absorb(projection: nn.Module) -> bool:
    """Return True if the projection is a plain linear layer with a bias, so that rows can absorb it."""
    return is_plain_linear(projection) and projection.bias is not None


def should_absorb(rows: Tensor, tokens: Tensor, projections: Sequence[nn.Module], products: int = 2) -> bool:
    """Return True if multiplying the rows by W^T is faster than projecting the tokens, and saves memory.

    Return False for shapes where this is not the case. Also return False on a GPU, while torch records a
    graph, for half precision, if rows and tokens differ in dtype, and if a projection is not a plain linear
    layer with a bias. Only CPUs were benchmarked, in float32 (C = 256 and 512, K = 64, L = 16 and 32, forward
    and backward, torch 2.13).

    Args:
        rows: projected rows [B, H, L, K] of P.
        tokens: sequence [S, B, C].
        projections: projections of the tokens that would be skipped.
        products: number of matrix products with the tokens, 2 for attention and 1 for logits alone.
    """
    # Shapes are compared in eager mode only, because a recorded graph would be limited to one outcome.
    if not is_eager_on_cpu(tokens) or rows.dtype != tokens.dtype:
        return False
    _, H, L, K = rows.shape
    # The rows of each head [H, L, C] replace the projected tokens [S, C] of an example.
    needs_less_memory = products * H * L <= len(projections) * tokens.size(0)
    # The wide products cost H L C multiplications for each token, and must save at least a quarter of the
    # C^2 = H K C multiplications of each projection.
    multiplies_less = 4 * products * L <= 3 * len(projections) * K
    return needs_less_memory and multiplies_less and all(map(can_absorb, projections))


def absorbed_pack(
    q: Tensor,
    context: Tensor,
    key: HeadProjection,
    value: HeadProjection,
    context_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tensor:
    """Compute pack attention [B, H, L, K] of queries q [B, H, L, K] to the context [S, B, C].

    context_padding_mask [B, S] is True at padding; an example of padding alone has an output of zeros. The
    bias broadcasts to the logits [B, H, L, S]. Dropout of the weights is applied whenever ``dropout`` is not
    0, so the caller passes 0 in evaluation.
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
    """Compute unpack attention [T, B, C] of x [T, B, C] to keys and values [B, H, L, K].

    The result includes the output projection. packed_padding_mask [B, L] is True at masked rows. The bias
    broadcasts to the logits [B, H, T, L]. Dropout as in :func:`absorbed_pack`.
    """
    logits = absorbed_logits(k, x, query).transpose(2, 3).contiguous()
    mask = None if packed_padding_mask is None else packed_padding_mask[:, None, None, :]
    weights = F.dropout(masked_softmax(logits if bias is None else logits + bias, mask), dropout)
    weights = weights.transpose(2, 3).flatten(1, 2)  # [B, H L, T]
    rows = multiply_by_head(v, output.weight).flatten(1, 2)  # [B, H L, C]
    return torch.bmm(weights.transpose(1, 2), rows).transpose(0, 1).contiguous() + output.bias


def absorbed_logits(rows: Tensor, tokens: Tensor, projection: HeadProjection) -> Tensor:
    """Compute ``rows . projection(tokens) / sqrt(K)`` [B, H, L, S] without projecting the tokens [S, B, C].

    The rows are [B, H, L, K].
    """
    wide, start = absorb_projection(rows, projection)
    logits = torch.baddbmm(start.flatten(1, 2).unsqueeze(-1), wide.flatten(1, 2), tokens.permute(1, 2, 0))
    return logits.unflatten(1, rows.shape[1:3])


def absorb_projection(rows: Tensor, projection: HeadProjection) -> Tuple[Tensor, Tensor]:
    """Return ``W^T r`` [B, H, L, C] and ``r . b`` [B, H, L] of rows r [B, H, L, K], scaled by K^-0.5.

    The logit ``r . (W x + b)`` of a token x is ``(W^T r) . x + r . b``.
    """
    rows = rows * rows.size(-1) ** -0.5
    return multiply_by_head(rows, projection.weight), (rows * projection.bias[:, None, :]).sum(dim=-1)


def multiply_by_head(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiply rows [B, H, L, M] by the weight [H, M, N] of their head, to vectors [B, H, L, N]."""
    B, H, L, _ = rows.shape
    # One product per head: [L B, M] times [M, N].
    products = torch.bmm(rows.permute(1, 2, 0, 3).reshape(H, L * B, -1), weight)
    return products.unflatten(1, (L, B)).permute(2, 0, 1, 3).contiguous()
