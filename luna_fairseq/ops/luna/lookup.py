"""Unpack attention that looks up tokens: the rows of P as an index into the context.

A row of many tokens cannot be read word by word. So a query, after it has weighed the rows, reads beside them the tokens of
the few parts that it weighs most; in one softmax, so that nothing has to be balanced by hand. Which tokens belong to a row
is its place (``anchors.py``). Each query and head chooses by its own logits: a decoder looks at no later target.
"""

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.luna.anchors import counted
from luna_fairseq.ops.luna.naive import masked_softmax

# Gathered numbers held at a time: 16 MiB of float32.
_BLOCK = 1 << 22


class Parts(NamedTuple):
    """The tokens of the context by parts. W is the most that a part has, S / L rounded up.

    Attributes:
        key: [B, H, L, W, K]
        value: [B, H, L, W, K]
        empty: [B, L, W], True where a part has fewer tokens
    """

    key: Tensor
    value: Tensor
    empty: Tensor


def part_of_tokens(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tensor:
    """The row of P that each token belongs to [B, S], of no meaning at padding. Masks: [B, S], [B, L], True: left out."""
    token, tokens, rows = counted(context_padding_mask, packed_padding_mask)
    return (2 * token + 1) * rows[:, None] // (2 * tokens[:, None])


def token_positions(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tuple[Tensor, Tensor]:
    """Where the tokens of each part stand in the context [B, L, W], and what of that is empty [B, L, W]."""
    B, S = context_padding_mask.shape
    L = packed_padding_mask.size(1)
    _, tokens, rows = counted(context_padding_mask, packed_padding_mask)
    tokens, rows = tokens[:, None], rows[:, None]
    part = torch.arange(L + 1, device=tokens.device)
    first = -((rows - 2 * tokens * part) // (2 * rows))  # the first t with (t + 1/2) L / n at or above the part
    token = first[:, :L, None] + torch.arange(-(-S // L), device=tokens.device)
    empty = token >= torch.minimum(first[:, 1:], tokens)[:, :, None]
    real_first = context_padding_mask.to(torch.uint8).argsort(dim=1, stable=True)
    position = real_first.gather(1, token.clamp(max=S - 1).flatten(1)).view(B, L, -1)
    return position, empty | context_padding_mask.all(dim=1)[:, None, None]


def by_parts(key: Tensor, value: Tensor, position: Tensor, empty: Tensor) -> Parts:
    """Tokens' keys and values [B, H, S, K], which may be one tensor, laid by parts; see :func:`token_positions`."""
    where = position.flatten(1)[:, None, :, None]

    def lay(x: Tensor) -> Tensor:
        index = where.expand(-1, x.size(1), -1, x.size(3))
        return x.gather(2, index).unflatten(2, tuple(position.shape[1:]))

    laid = lay(key)
    return Parts(laid, laid if value is key else lay(value), empty)


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
) -> Tuple[Tensor, Tensor, Tensor]:
    """The definition, with a weight for every query and token.

    Args:
        q: queries [B, H, T, K], not yet scaled by K^-0.5
        k, v: keys and values of the packed context [B, H, L, K]
        token_k, token_v: keys and values of the context's tokens [B, H, S, K]
        gate: added to the logits of tokens [H]
        number: parts that a query and head looks up, those with the largest logits; all where there are fewer
        context_padding_mask: [B, S], True at padding
        packed_padding_mask: [B, L], True at rows of P that are left out
        dropout: probability with which a weight is dropped

    Returns:
        output [B, H, T, K]; weights before dropout of the rows [B, H, T, L] and of the tokens [B, H, T, S]
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    L = k.size(2)
    with torch.autocast(q.device.type, enabled=False):
        scaled = q.to(dtype) * q.size(-1) ** -0.5
        rows = scaled @ k.to(dtype).transpose(-2, -1)
        tokens = scaled @ token_k.to(dtype).transpose(-2, -1) + gate.to(dtype)[:, None, None]
        chosen = chosen_parts(rows, packed_padding_mask, number)
        looked_up = torch.zeros_like(rows, dtype=torch.bool).scatter(3, chosen, True)
        part = part_of_tokens(context_padding_mask, packed_padding_mask).clamp(max=L - 1)
        read = looked_up.gather(3, part[:, None, None, :].expand(-1, *rows.shape[1:3], -1))
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
        token_weights: weights of the tokens of the chosen parts [B, H, T, N, W]
        chosen: these parts [B, H, T, N]
    """

    output: Tensor
    row_weights: Tensor
    token_weights: Tensor
    chosen: Tensor


def lookup_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    parts: Parts,
    gate: Tensor,
    number: int,
    packed_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
) -> LookedUp:
    """What :func:`naive_lookup_attention` defines, at the cost of L + number W tokens a query.

    Arguments as there, but the tokens by parts. For the backward pass it keeps the weights and the parts, and gathers again.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    scaled = q * q.size(-1) ** -0.5
    rows = (scaled @ k.transpose(-2, -1)).to(dtype)
    chosen = chosen_parts(rows, packed_padding_mask, number)
    index = _table_rows(chosen, k.size(2)).flatten(0, 2)  # [B H T, N]
    tokens = _Scores.apply(scaled.flatten(0, 2), parts.key.flatten(0, 2), index)
    tokens = tokens.view(*rows.shape[:3], -1).to(dtype) + gate.to(dtype)[:, None, None]
    if packed_padding_mask is not None:
        rows_left_out = packed_padding_mask[:, None, None, :].expand_as(rows)
    else:
        rows_left_out = torch.zeros_like(rows, dtype=torch.bool)
    left_out = torch.cat([rows_left_out, _empty(parts.empty, chosen)], dim=-1)
    weights = masked_softmax(torch.cat([rows, tokens], dim=-1), left_out).to(q.dtype)
    of_rows, of_tokens = F.dropout(weights, dropout).split([rows.size(-1), tokens.size(-1)], dim=-1)
    read = _Mixture.apply(of_tokens.flatten(0, 2), parts.value.flatten(0, 2), index)
    row_weights, token_weights = weights.split([rows.size(-1), tokens.size(-1)], dim=-1)
    token_weights = token_weights.unflatten(-1, (chosen.size(-1), -1))
    return LookedUp(of_rows @ v + read.view_as(q), row_weights, token_weights, chosen)


def weights_of_context(looked_up: LookedUp, position: Tensor, pack_weights: Tensor) -> Tensor:
    """Weights over the context [B, H, T, S]: what was read through the rows, and beside them.

    Args:
        looked_up: result of :func:`lookup_attention`
        position: where the tokens of each part stand [B, L, W]
        pack_weights: the rows' own weights over the context [B, H or 1, L, S]
    """
    through_rows = looked_up.row_weights @ pack_weights
    B, H, T, N, W = looked_up.token_weights.shape
    read = position[:, None].expand(-1, H, -1, -1).gather(2, looked_up.chosen.view(B, H, T * N, 1).expand(-1, -1, -1, W))
    return through_rows.scatter_add(3, read.view(B, H, T, N * W), looked_up.token_weights.flatten(3))


def chosen_parts(rows: Tensor, packed_padding_mask: Optional[Tensor], number: int) -> Tensor:
    """The parts with the largest of the logits ``rows`` [B, H, T, L]: [B, H, T, N]. No gradient passes through the choice."""
    rows = rows.detach()
    if packed_padding_mask is not None:
        rows = rows.masked_fill(packed_padding_mask[:, None, None, :], float("-inf"))
    return rows.topk(min(number, rows.size(-1)), dim=-1, sorted=False).indices


def _table_rows(chosen: Tensor, L: int) -> Tensor:
    """``chosen`` [B, H, T, N] as rows of a table [B H L, ...]."""
    B, H = chosen.shape[:2]
    return chosen + (torch.arange(B * H, device=chosen.device) * L).view(B, H, 1, 1)


def _empty(empty: Tensor, chosen: Tensor) -> Tensor:
    """What is empty of the chosen parts [B, H, T, N W], of ``empty`` [B, L, W]."""
    B, L, W = empty.shape
    index = (chosen + (torch.arange(B, device=chosen.device) * L).view(B, 1, 1, 1)).flatten()
    return empty.flatten(0, 1).index_select(0, index).view(*chosen.shape[:3], -1)


def _blocks(index: Tensor, table: Tensor) -> Tuple[Tuple[Tensor, ...], int]:
    """``index`` [M, N] in blocks of queries, so that no more than _BLOCK numbers of ``table`` [R, W, K] are gathered at once."""
    size = max(1, _BLOCK // max(1, index.size(1) * table[0].numel()))
    return index.split(size), size


def _gathered(table: Tensor, index: Tensor) -> Tensor:
    """Parts [m, N W, K] of ``table`` [R, W, K] for ``index`` [m, N]."""
    return table.index_select(0, index.flatten()).view(len(index), -1, table.size(-1))


def _sums_like(table: Tensor) -> Tensor:
    """Zeros to add up gradients in: many queries read one part."""
    return torch.zeros(table.shape, dtype=torch.promote_types(table.dtype, torch.float32), device=table.device)


class _Scores(torch.autograd.Function):
    """Products of each query [M, K] with the tokens of its parts: [M, N W]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(q, table, index)
        blocks, size = _blocks(index, table)
        scores = [torch.bmm(_gathered(table, i), x.unsqueeze(-1)) for i, x in zip(blocks, q.split(size))]
        return torch.cat(scores).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, Tensor, None]:
        q, table, index = ctx.saved_tensors
        grad_q, grad_table = torch.empty_like(q), _sums_like(table)
        blocks, size = _blocks(index, table)
        for i, x, g, out in zip(blocks, q.split(size), grad.split(size), grad_q.split(size)):
            out.copy_(torch.bmm(g.unsqueeze(1), _gathered(table, i)).squeeze(1))
            added = torch.bmm(g.unsqueeze(-1), x.unsqueeze(1))
            grad_table.index_add_(0, i.flatten(), added.view(-1, *table.shape[1:]).to(grad_table.dtype))
        return grad_q, grad_table.to(table.dtype), None


class _Mixture(torch.autograd.Function):
    """The tokens of each query's parts by their weights [M, N W]: [M, K]."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(weights, table, index)
        blocks, size = _blocks(index, table)
        mixed = [torch.bmm(w.unsqueeze(1), _gathered(table, i)) for i, w in zip(blocks, weights.split(size))]
        return torch.cat(mixed).squeeze(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, Tensor, None]:
        weights, table, index = ctx.saved_tensors
        grad_weights, grad_table = torch.empty_like(weights), _sums_like(table)
        blocks, size = _blocks(index, table)
        for i, w, g, out in zip(blocks, weights.split(size), grad.split(size), grad_weights.split(size)):
            out.copy_(torch.bmm(_gathered(table, i), g.unsqueeze(-1)).squeeze(-1))
            added = torch.bmm(w.unsqueeze(-1), g.unsqueeze(1))
            grad_table.index_add_(0, i.flatten(), added.view(-1, *table.shape[1:]).to(grad_table.dtype))
        return grad_weights, grad_table.to(table.dtype), None
