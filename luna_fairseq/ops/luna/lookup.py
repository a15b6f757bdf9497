"""Unpack attention that looks up tokens: the rows of P as an index into the context.

A row of many tokens cannot be read word by word. So a query, after it has weighed the rows, reads beside them
the tokens of the few parts that it weighs most; in one softmax, so that nothing has to be balanced by hand.
Which tokens belong to a row is its place (``anchors.py``). Each query and head chooses by its own logits: a
decoder looks at no later target.
"""

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.luna.anchors import counted
from luna_fairseq.ops.luna.diagonal import Diagonal
from luna_fairseq.ops.luna.naive import masked_softmax

# Queries of one part that are multiplied with its tokens at a time.
_BLOCK = 16


class Parts(NamedTuple):
    """The tokens of the context by parts. W is the most that a part has, S / L rounded up.

    Attributes:
        key: [B, H, L, W, K]
        value: [B, H, L, W, K]
        empty: [B, L, W], True where a part has fewer tokens
        place: for a diagonal, the middle of each token, in tokens from the beginning [B, L, W]
    """

    key: Tensor
    value: Tensor
    empty: Tensor
    place: Any = None


def part_of_tokens(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tensor:
    """The row of P that each token belongs to [B, S], of no meaning at padding. Masks: [B, S], [B, L], True:
    left out."""
    token, tokens, rows = counted(context_padding_mask, packed_padding_mask)
    return (2 * token + 1) * rows[:, None] // (2 * tokens[:, None])


def token_positions(context_padding_mask: Tensor, packed_padding_mask: Tensor) -> Tuple[Tensor, Tensor]:
    """Where the tokens of each part stand in the context [B, L, W], and what of that is empty [B, L, W]."""
    B, S = context_padding_mask.shape
    L = packed_padding_mask.size(1)
    _, tokens, rows = counted(context_padding_mask, packed_padding_mask)
    tokens, rows = tokens[:, None], rows[:, None]
    part = torch.arange(L + 1, device=tokens.device)
    first = -(
        (rows - 2 * tokens * part) // (2 * rows)
    )  # the first t with (t + 1/2) L / n at or above the part
    token = first[:, :L, None] + torch.arange(-(-S // L), device=tokens.device)
    empty = token >= torch.minimum(first[:, 1:], tokens)[:, :, None]
    real_first = context_padding_mask.to(torch.uint8).argsort(dim=1, stable=True)
    position = real_first.gather(1, token.clamp(max=S - 1).flatten(1)).view(B, L, -1)
    return position, empty | context_padding_mask.all(dim=1)[:, None, None]


def by_parts(key: Tensor, value: Tensor, position: Tensor, empty: Tensor) -> Parts:
    """Tokens' keys and values [B, H, S, K], laid by parts; see :func:`token_positions`."""
    return Parts(lay_by_parts(key, position), lay_by_parts(value, position), empty)


def lay_by_parts(x: Tensor, position: Tensor) -> Tensor:
    """``x`` [B, H, S, K] by parts [B, H, L, W, K], of the ``position`` [B, L, W]."""
    where = position.flatten(1)[:, None, :, None].expand(-1, x.size(1), -1, x.size(3))
    return x.gather(2, where).unflatten(2, tuple(position.shape[1:]))


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
        number: parts that a query and head looks up, those with the largest logits; all where there are fewer
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
    diagonal: Optional[Diagonal] = None,
) -> LookedUp:
    """What :func:`naive_lookup_attention` defines, at the cost of L + number W tokens a query.

    Arguments as there, but the tokens by parts, and the biases of rows and tokens by a diagonal, whose keys
    are the rows. Where there are many queries, those that chose one part are put together in blocks, so that
    its tokens are fetched once for a block; few, as in decoding, fetch the tokens of their parts each.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    scaled = q * q.size(-1) ** -0.5
    rows = (scaled @ k.transpose(-2, -1)).to(dtype)
    if diagonal is not None:
        rows = rows + diagonal.bias()
    chosen = chosen_parts(rows, packed_padding_mask, number)
    pairs = _pair(_table_rows(chosen, k.size(2)).flatten(0, 2), parts.key.shape[:3].numel())
    tokens = pairs.scores(scaled.flatten(0, 2), parts.key.flatten(0, 2))
    tokens = tokens.view(*rows.shape[:3], -1).to(dtype) + gate.to(dtype)[:, None, None]
    if diagonal is not None:
        tokens = tokens + diagonal.bias_at(_of_parts(parts.place, chosen))
    if packed_padding_mask is not None:
        rows_left_out = packed_padding_mask[:, None, None, :].expand_as(rows)
    else:
        rows_left_out = torch.zeros_like(rows, dtype=torch.bool)
    left_out = torch.cat([rows_left_out, _of_parts(parts.empty, chosen)], dim=-1)
    weights = masked_softmax(torch.cat([rows, tokens], dim=-1), left_out).to(q.dtype)
    of_rows, of_tokens = F.dropout(weights, dropout).split([rows.size(-1), tokens.size(-1)], dim=-1)
    read = pairs.mixture(of_tokens.flatten(0, 2), parts.value.flatten(0, 2))
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
    read = (
        position[:, None]
        .expand(-1, H, -1, -1)
        .gather(2, looked_up.chosen.view(B, H, T * N, 1).expand(-1, -1, -1, W))
    )
    return through_rows.scatter_add(3, read.view(B, H, T, N * W), looked_up.token_weights.flatten(3))


def chosen_parts(rows: Tensor, packed_padding_mask: Optional[Tensor], number: int) -> Tensor:
    """The parts with the largest of the logits ``rows`` [B, H, T, L]: [B, H, T, N]. No gradient passes
    through the choice."""
    rows = rows.detach()
    if packed_padding_mask is not None:
        rows = rows.masked_fill(packed_padding_mask[:, None, None, :], float("-inf"))
    return rows.topk(min(number, rows.size(-1)), dim=-1, sorted=False).indices


def _table_rows(chosen: Tensor, L: int) -> Tensor:
    """``chosen`` [B, H, T, N] as rows of a table [B H L, ...]."""
    B, H = chosen.shape[:2]
    return chosen + (torch.arange(B * H, device=chosen.device) * L).view(B, H, 1, 1)


def _of_parts(x: Tensor, chosen: Tensor) -> Tensor:
    """What ``x`` [B, L, W] says of the tokens of the chosen parts [B, H, T, N W]."""
    B, L, _ = x.shape
    index = (chosen + (torch.arange(B, device=chosen.device) * L).view(B, 1, 1, 1)).flatten()
    return x.flatten(0, 1).index_select(0, index).view(*chosen.shape[:3], -1)


class _Fetched(NamedTuple):
    """Pairs of a query and a part, each with the part's tokens fetched for it: ``part`` [M, N] of M queries
    in a table of parts."""

    part: Tensor

    def scores(self, q: Tensor, table: Tensor) -> Tensor:
        """Products of each query [M, K] with the tokens of its parts, of ``table`` [R, W, K]: [M, N W]."""
        return torch.bmm(self._tokens(table), q.unsqueeze(-1)).squeeze(-1)

    def mixture(self, weights: Tensor, table: Tensor) -> Tensor:
        """The tokens of each query's parts by their weights [M, N W]: [M, K]."""
        return torch.bmm(weights.unsqueeze(1), self._tokens(table)).squeeze(1)

    def _tokens(self, table: Tensor) -> Tensor:
        return table.index_select(0, self.part.flatten()).view(len(self.part), -1, table.size(-1))


class _Blocks(NamedTuple):
    """The same pairs, those of a part together in blocks of c, which are as many as there can be: no size
    depends on the choice.

    Attributes:
        part: of each pair [M, N]
        block_part: of each block [blocks]
        pair: which one stands at each place of the blocks [blocks c]; any one at a place that is empty
        place: where each pair stands [M N]
    """

    part: Tensor
    block_part: Tensor
    pair: Tensor
    place: Tensor

    def scores(self, q: Tensor, table: Tensor) -> Tensor:
        """As :meth:`_Fetched.scores`."""
        queries = q.index_select(0, self.pair // self.part.size(1)).view(len(self.block_part), -1, q.size(-1))
        scores = torch.bmm(queries, table.index_select(0, self.block_part).transpose(1, 2))
        return scores.flatten(0, 1).index_select(0, self.place).view(len(self.part), -1)

    def mixture(self, weights: Tensor, table: Tensor) -> Tensor:
        """As :meth:`_Fetched.mixture`."""
        of_pairs = weights.reshape(self.part.numel(), -1).index_select(0, self.pair)
        read = torch.bmm(
            of_pairs.view(len(self.block_part), -1, table.size(1)), table.index_select(0, self.block_part)
        )
        return read.flatten(0, 1).index_select(0, self.place).view(*self.part.shape, -1).sum(dim=1)


def _pair(part: Tensor, R: int) -> Any:
    """The form for queries that chose the parts ``part`` [M, N] of R."""
    pairs = part.numel()
    if pairs < 2 * R:
        return _Fetched(part)
    blocks = pairs // _BLOCK + R
    order = part.flatten().argsort(stable=True)
    counts = torch.zeros(R, dtype=torch.long, device=part.device)
    counts.scatter_add_(0, part.flatten(), torch.ones_like(part.flatten()))
    ends = ((counts + _BLOCK - 1) // _BLOCK).cumsum(dim=0)  # of each part's blocks
    sorted_part = part.flatten().index_select(0, order)
    first_pair, first_block = counts.cumsum(dim=0) - counts, ends - (counts + _BLOCK - 1) // _BLOCK
    rank = torch.arange(pairs, device=part.device) - first_pair.index_select(0, sorted_part)
    sorted_place = first_block.index_select(0, sorted_part) * _BLOCK + rank
    place = torch.empty_like(order).scatter_(0, order, sorted_place)
    pair = torch.zeros(blocks * _BLOCK, dtype=torch.long, device=part.device).scatter_(0, sorted_place, order)
    block_part = torch.searchsorted(ends, torch.arange(blocks, device=part.device), right=True).clamp(
        max=R - 1
    )
    return _Blocks(part, block_part, pair, place)
