"""Unpack attention that looks up tokens: the rows of P as an index into the context.

A row of many tokens cannot be read word by word. So a query, after it has weighed the rows, reads beside them
the tokens of the few segments that it weighs most; in one softmax, so that nothing has to be balanced by
hand. Which tokens belong to a row is its place (``places.py``). Each query and head chooses by its own
logits: a decoder looks at no later target.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.anchored.chosen import chosen_segments, read_chosen
from luna_fairseq.anchored.diagonal import Diagonal
from luna_fairseq.anchored.segments import Segments, is_dense, segment_of_tokens
from luna_fairseq.ops.masked_softmax import masked_softmax


def naive_lookup_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    token_k: Tensor,
    token_v: Tensor,
    gate: Tensor,
    number: int,
    context_padding_mask: Tensor,
    packed_padding_mask: Tensor,
    dropout: float = 0.0,
    row_bias: Optional[Tensor] = None,
    token_bias: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor, Tensor]:
    """The definition, with a weight for every query and token.

    Args:
        q: queries [B, H, T, K], not yet scaled by K^-0.5
        k, v: keys and values of the packed context [B, H, L, K]
        token_k, token_v: keys and values of the context's tokens [B, H, S, K]
        gate: added to the logits of tokens [H]
        number: segments that a query and head looks up, those with the largest logits; all where there are
            fewer, and in a context of no more than 64 tokens
        context_padding_mask: [B, S], True at padding
        packed_padding_mask: [B, L], True at rows of P that are left out
        dropout: probability with which a weight is dropped
        row_bias, token_bias: added to the logits of rows [B, H, T, L] and tokens [B, H, T, S]

    Returns:
        output [B, H, T, K]; weights before dropout of the rows [B, H, T, L] and of the tokens [B, H, T, S]
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    L = k.size(2)
    with torch.autocast(q.device.type, enabled=False):
        scaled = q.to(dtype) * q.size(-1) ** -0.5
        rows = scaled @ k.to(dtype).transpose(-2, -1)
        tokens = scaled @ token_k.to(dtype).transpose(-2, -1) + gate.to(dtype)[:, None, None]
        if row_bias is not None and token_bias is not None:
            rows, tokens = rows + row_bias, tokens + token_bias
        chosen = chosen_segments(rows, packed_padding_mask, number)
        looked_up = torch.zeros_like(rows, dtype=torch.bool).scatter(3, chosen, True)
        segment = segment_of_tokens(context_padding_mask, packed_padding_mask).clamp(max=L - 1)
        read = looked_up.gather(3, segment[:, None, None, :].expand(-1, *rows.shape[1:3], -1))
        read = read | is_dense(context_padding_mask)[:, None, None, None]
        left_out = torch.cat(
            [
                packed_padding_mask[:, None, None, :].expand_as(rows),
                context_padding_mask[:, None, None, :] | ~read,
            ],
            dim=-1,
        )
        logits = torch.cat([rows, tokens], dim=-1)
        weights = masked_softmax(logits, left_out)
        output = F.dropout(weights, dropout) @ torch.cat([v, token_v], dim=2).to(dtype)
    weights = weights.to(q.dtype)
    return output.to(q.dtype), weights[..., :L], weights[..., L:]


class LookedUp(NamedTuple):
    """What :func:`lookup_attention` returns; weights are those before dropout.

    Attributes:
        output: [B, H, T, K]
        row_weights: [B, H, T, L]
        token_weights: weights of the tokens of the chosen segments [B, H, T, N, W]
        segment: these segments [B, H, T, N]
    """

    output: Tensor
    row_weights: Tensor
    token_weights: Tensor
    segment: Tensor


def lookup_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Segments,
    gate: Tensor,
    number: int,
    packed_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    diagonal: Optional[Diagonal] = None,
) -> LookedUp:
    """Compute what :func:`naive_lookup_attention` defines, at the cost of L + max(number W, 64) keys a query.

    The bound holds in every batch. A query reads 64 tokens where it chose fewer only if short contexts, of at
    most 64 tokens, stand beside longer ones.

    Args:
        q, k, v, gate, number, packed_padding_mask, dropout: those of :func:`naive_lookup_attention`
        segments: the context's tokens by segment
        diagonal: bias of rows and tokens; its keys are the rows (default: no bias)
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    scaled = q * q.size(-1) ** -0.5
    rows = (scaled @ k.transpose(-2, -1)).to(dtype)
    if diagonal is not None:
        rows = rows + diagonal.bias()
    read = read_chosen(segments, rows, packed_padding_mask, number)
    tokens = read.scores(scaled).to(dtype) + gate.to(dtype)[:, None, None]
    if diagonal is not None:
        tokens = tokens + diagonal.bias_at(read.place)
    if packed_padding_mask is not None:
        rows_left_out = packed_padding_mask[:, None, None, :].expand_as(rows)
    else:
        rows_left_out = torch.zeros_like(rows, dtype=torch.bool)
    sizes = [rows.size(-1), tokens.size(-1)]
    left_out = torch.cat([rows_left_out, read.masked], dim=-1)
    weights = masked_softmax(torch.cat([rows, tokens], dim=-1), left_out).to(q.dtype)
    of_rows, of_tokens = F.dropout(weights, dropout).split(sizes, dim=-1)
    row_weights, token_weights = weights.split(sizes, dim=-1)
    token_weights = token_weights.unflatten(-1, (read.segment.size(-1), -1))
    return LookedUp(of_rows @ v + read.mixture(of_tokens), row_weights, token_weights, read.segment)


def weights_of_context(looked_up: LookedUp, position: Tensor, pack_weights: Tensor) -> Tensor:
    """Weights over the context [B, H, T, S]: what was read through the rows, and beside them.

    Args:
        looked_up: result of :func:`lookup_attention`
        position: where the tokens of each segment stand [B, L, W]
        pack_weights: the rows' own weights over the context [B, H or 1, L, S]
    """
    through_rows = looked_up.row_weights @ pack_weights
    B, H, T, N, W = looked_up.token_weights.shape
    read = (
        position[:, None]
        .expand(-1, H, -1, -1)
        .gather(2, looked_up.segment.reshape(B, H, T * N, 1).expand(-1, -1, -1, W))
    )
    return through_rows.scatter_add(3, read.view(B, H, T, N * W), looked_up.token_weights.flatten(3))
