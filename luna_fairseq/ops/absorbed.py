"""Pack and unpack attention without projecting the tokens: the packed sequence P is projected instead.

The tables at the end of the file define when this implementation of the two operations is chosen.

Attention multiplies rows r of the packed sequence P by projected tokens W x. Because ``r . (W x)`` equals
``(W^T r) . x``, the rows can be multiplied by W^T, and the tokens then need no multiplication by W. The rows
are said to absorb the projection. The value and output projections are absorbed in the same way. The results
match projected tokens up to rounding.

For S tokens of width C, a projection costs S C^2 multiplications. If L rows of H heads absorb the projection,
it costs L C^2 multiplications. The products with the tokens then cost H L S C multiplications in place of L S
C, because the rows of each head are C wide.

Shapes: batch size B, H heads of width K = C / H, L rows of P, S context tokens, T positions of X.
"""

from typing import Any, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from luna_fairseq.ops.attention import is_eager_on_cpu, key_mask, masked_softmax
from luna_fairseq.ops.forms import Form, FormTable, otherwise


class HeadProjection(NamedTuple):
    """Weight [H, K, C] and bias of a linear layer, split into H heads of width K.

    An input projection has C inputs and the bias [H, K]. An output projection has C outputs and the bias [C].
    """

    weight: Tensor
    bias: Tensor


def split_input_projection(weight: Tensor, bias: Tensor, num_heads: int) -> HeadProjection:
    """Split an input projection's weight [H * K, C] and bias [H * K] into views [H, K, C] and [H, K]."""
    return HeadProjection(weight.unflatten(0, (num_heads, -1)), bias.unflatten(0, (num_heads, -1)))


def split_output_projection(weight: Tensor, bias: Tensor, num_heads: int) -> HeadProjection:
    """Split an output projection's weight [C, H * K] into heads [H, K, C], as a view. The bias stays [C]."""
    return HeadProjection(weight.t().unflatten(0, (num_heads, -1)), bias)


def has_hooks(layer: nn.Module) -> bool:
    """Return True if the layer has hooks or an instance attribute ``forward``, or if global hooks are set."""
    own = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
    of_all = torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
    of_all = of_all or torch_module._global_backward_hooks
    # torch 1 has no hooks before the backward pass.
    own = own or getattr(layer, "_backward_pre_hooks", None)
    of_all = of_all or getattr(torch_module, "_global_backward_pre_hooks", None)
    return bool(own or of_all or "forward" in vars(layer))


def is_plain_linear(layer: nn.Module) -> bool:
    """Return True if calling the layer computes ``W x + b`` (or ``W x`` without a bias) and nothing else.

    A class other than ``nn.Linear`` must set ``computes_plain_linear`` itself, not inherit the attribute.
    """
    is_linear = type(layer) is nn.Linear or vars(type(layer)).get("computes_plain_linear", False)
    return is_linear and not has_hooks(layer)


def can_absorb(projections: Sequence[nn.Module]) -> bool:
    """Return True if all projections are plain linear layers with a bias, which rows of P can absorb."""
    for projection in projections:
        if not is_plain_linear(projection) or projection.bias is None:
            return False
    return True


def should_absorb(rows: Tensor, tokens: Tensor, projections: Sequence[nn.Module], products: int = 2) -> bool:
    """Return True if multiplying the rows by W^T is faster than projecting the tokens, and saves memory.

    The result depends on the shapes. Return False on a GPU, while torch captures a graph, for half precision,
    if rows and tokens differ in dtype, and if a projection is not a plain linear layer with a bias.

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
    return needs_less_memory and multiplies_less and can_absorb(projections)


def absorbed_pack(
    q: Tensor,
    context: Tensor,
    key: HeadProjection,
    value: HeadProjection,
    context_padding_mask: Optional[Tensor],
    dropout: float,
    bias: Optional[Tensor] = None,
) -> Tensor:
    """Compute pack attention to the context [S, B, C] without projecting the context.

    Instead, the key projection is applied to q, and the value projection to weighted sums of the context.
    q is the projected packed sequence P [B, H, L, K], for H heads of width K and L rows. The result has the
    same shape. context_padding_mask [B, S] is True at padding. An example that is all padding yields zeros.
    The bias broadcasts to the logits [B, H, L, S]. ``dropout`` is also applied in evaluation mode.
    """
    logits = absorbed_logits(q, context, key)
    mask = key_mask(context_padding_mask)
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
    packed_padding_mask: Optional[Tensor],
    dropout: float,
    bias: Optional[Tensor] = None,
) -> Tensor:
    """Compute unpack attention, including the output projection, without projecting x [T, B, C].

    Instead, the query projection is applied to the keys, and the output projection to the values.
    x holds the queries, and the result is [T, B, C]. k and v [B, H, L, K] are the keys and values of the L
    rows of the packed context, for H heads of width K. packed_padding_mask [B, L] is True at masked rows. The
    bias broadcasts to the logits [B, H, T, L]. ``dropout`` is also applied in evaluation mode.
    """
    logits = absorbed_logits(k, x, query).transpose(2, 3).contiguous()
    mask = key_mask(packed_padding_mask)
    weights = F.dropout(masked_softmax(logits if bias is None else logits + bias, mask), dropout)
    weights = weights.transpose(2, 3).flatten(1, 2)  # [B, H L, T]
    rows = multiply_by_head(v, output.weight).flatten(1, 2)  # [B, H L, C]
    return torch.bmm(weights.transpose(1, 2), rows).transpose(0, 1).contiguous() + output.bias


def absorbed_logits(rows: Tensor, tokens: Tensor, projection: HeadProjection) -> Tensor:
    """Compute the logits ``r . (W x + b) / sqrt(K)`` without projecting the tokens x [S, B, C].

    ``rows`` [B, H, L, K] are the vectors r. ``projection`` holds W and b by head. The result is [B, H, L, S].
    """
    wide, start = absorb_projection(rows, projection)
    logits = torch.baddbmm(start.flatten(1, 2).unsqueeze(-1), wide.flatten(1, 2), tokens.permute(1, 2, 0))
    return logits.unflatten(1, rows.shape[1:3])


def absorb_projection(rows: Tensor, projection: HeadProjection) -> Tuple[Tensor, Tensor]:
    """Return ``W^T r`` [B, H, L, C] and ``r . b`` [B, H, L] for rows r [B, H, L, K], scaled by K^-0.5.

    For a token x with the projection ``W x + b``, the logit ``r . (W x + b)`` is ``(W^T r) . x + r . b``.
    """
    rows = rows * rows.size(-1) ** -0.5
    return multiply_by_head(rows, projection.weight), (rows * projection.bias[:, None, :]).sum(dim=-1)


def multiply_by_head(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiply vectors [B, H, L, M] by one matrix per head, ``weight`` [H, M, N]. Return [B, H, L, N]."""
    B, H, L, M = rows.shape
    # One product per head: [L B, M] times [M, N].
    products = torch.bmm(rows.permute(1, 2, 0, 3).reshape(H, L * B, M), weight)
    return products.unflatten(1, (L, B)).permute(2, 0, 1, 3).contiguous()


class AbsorbedMemory(NamedTuple):
    """Keys and values of a packed context, multiplied by the query projection and the output projection.

    For a head with key k and value v, the logit ``(W_q x + b_q) . k`` equals ``x . (W_q^T k) + b_q . k``. The
    output ``W_o (a v)`` for an attention weight a equals ``a (W_o v)``. The products with k and v are
    computed once per sentence. A decoding step then loads only these products instead of the two projection
    matrices. Shapes: B sentences, L rows, H heads of dimension K, model width C = H * K.

    Attributes:
        key: product of the keys with the query projection, [B, C, H * L], scaled by K^-0.5.
        key_bias: product of the scaled keys with the bias of the query projection, [B, 1, H * L]. The most
            negative finite value of the dtype at padding.
        value: product of the values with the output projection, [B, H * L, C]. 0 at padding.
        value_bias: bias of the output projection, [B, 1, C].
        mean_pack_weights: always None.
    """

    key: Tensor
    key_bias: Tensor
    value: Tensor
    value_bias: Tensor
    mean_pack_weights: Optional[Tensor] = None

    def attend(self, query: Tensor, num_heads: int, dropout: float = 0.0) -> Tensor:
        """Compute unpack attention for unprojected queries X [B, T, C]. The output is [B, T, C]."""
        logits = torch.baddbmm(self.key_bias, query, self.key)
        weights = logits.unflatten(-1, (num_heads, -1)).softmax(dim=-1)
        if dropout:
            weights = F.dropout(weights, dropout)
        return torch.baddbmm(self.value_bias, weights.flatten(-2), self.value)


def absorb_projections(
    k: Tensor,
    v: Tensor,
    query: HeadProjection,
    output: HeadProjection,
    packed_padding_mask: Optional[Tensor] = None,
) -> AbsorbedMemory:
    """Multiply keys by the query projection and values by the output projection.

    Decoding steps then need neither projection. ``k`` and ``v`` [B, H, L, K] are the keys and values of the L
    rows of the packed context. ``packed_padding_mask`` [B, L] is True at padded rows.
    """
    key, key_bias = absorb_projection(k, query)  # [B, H, L, C] and [B, H, L]
    value = multiply_by_head(v, output.weight)  # [B, H, L, C]
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


PACK_FORMS = FormTable(
    "pack attention",
    Form(
        "absorbed",
        "should_absorb: a CPU, no graph, plain linear layers, at least H L tokens (tied: 2 H L), L at most "
        "3/4 of the head width (tied: 3/8)",
        "1.3 and 1.5 times as fast for 4 x 256 and 1 x 1,024 tokens, 0.56 times for 32 x 30 (base size, l = "
        "16, tied)",
        should_absorb,
        lambda q, context, projections: can_absorb(projections),
    ),
    Form(
        "projected",
        "otherwise, and if weights are wanted",
        "keys and values are projected, then SOFTMAX_FORMS",
        otherwise,
    ),
)


def should_prepare(key: Tensor, projections: Sequence[nn.Module]) -> bool:
    """Return True if multiplying keys and values by the two projections in advance makes decoding faster.

    The projections are the query and output projections of unpack attention, which must be plain linear
    layers. The keys are [B, H, L, K] for B sources. The products must be at most half as large as the two
    matrices, so that a decoding step reads less memory. The result is False on a GPU and while torch captures
    a graph. If "prepared" is forced in ``UNPACK_FORMS``, only the layers are checked.
    """
    B, _, L, K = key.shape
    forced = UNPACK_FORMS.forced()
    if forced is None and not (is_eager_on_cpu(key) and 2 * B * L <= K):
        return False
    return forced in (None, "prepared") and can_absorb(projections)


def _is_prepared(query: Tensor, memory: Any, *others: Any) -> bool:
    return isinstance(memory, AbsorbedMemory)


def _has_plain_queries(query: Tensor, memory: Any, absorbs_queries: bool) -> bool:
    # One hypothesis for each sentence: the queries [T, B, C] are as many as the sentences.
    is_projected = absorbs_queries and not isinstance(memory, AbsorbedMemory)
    return is_projected and query.size(1) == memory.key.size(0)


def _should_absorb_query(
    query: Tensor, memory: Any, projections: Sequence[nn.Module], absorbs_queries: bool
) -> bool:
    has_plain_queries = _has_plain_queries(query, memory, absorbs_queries)
    return has_plain_queries and should_absorb(memory.key, query, projections)


def _can_absorb_query(
    query: Tensor, memory: Any, projections: Sequence[nn.Module], absorbs_queries: bool
) -> bool:
    return _has_plain_queries(query, memory, absorbs_queries) and can_absorb(projections)


UNPACK_FORMS = FormTable(
    "unpack attention",
    Form(
        "prepared",
        "decoding, and should_prepare: a CPU, no graph, a small batch, plain linear layers",
        "90 of 144 operator calls of six layers in a decoding step, and half of the memory read",
        _is_prepared,
        _is_prepared,
    ),
    Form(
        "absorbed",
        "should_absorb: a CPU, no graph, long targets, one hypothesis a sentence, plain linear layers",
        "2.3 and 2.8 times as fast for 4 x 256 and 1 x 1,024 tokens, 0.86 times for 32 x 30",
        _should_absorb_query,
        _can_absorb_query,
    ),
    Form(
        "projected",
        "otherwise, and if weights are wanted",
        "queries are projected, then SOFTMAX_FORMS or the forms of an extension",
        otherwise,
        lambda query, memory, *others: not isinstance(memory, AbsorbedMemory),
    ),
)
