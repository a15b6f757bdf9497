"""Pairs of a query and a part that it reads, and the products of queries with the tokens of their parts.

There are M queries with N parts each, of a table of R parts with W tokens each.
"""

from typing import Any, NamedTuple, Tuple

import torch
from torch import Tensor

# Queries of one part that are multiplied with its tokens at a time.
BLOCK = 16


def pair_up(part: Tensor, R: int) -> Any:
    """The form for queries that read the parts ``part`` [M, N] of a table of R."""
    return Fetched(part) if part.numel() < 2 * R else in_blocks(part, R)


class Fetched(NamedTuple):
    """The tokens of its parts are fetched for each query: ``part`` [M, N]."""

    part: Tensor

    def fetch(self, table: Tensor) -> Tensor:
        """Keys or values of the tokens, from a ``table`` [R, W, K] of all parts; one of two other functions
        takes them."""
        return table.index_select(0, self.part.flatten()).view(len(self.part), -1, table.size(-1))

    def scores(self, q: Tensor, keys: Tensor) -> Tensor:
        """Products of each query [M, K] with the tokens of its parts: [M, N W]."""
        return torch.bmm(keys, q.unsqueeze(-1)).squeeze(-1)

    def mixture(self, weights: Tensor, values: Tensor) -> Tensor:
        """The tokens of each query's parts by their weights [M, N W]: [M, K]."""
        return torch.bmm(weights.unsqueeze(1), values).squeeze(1)


class Blocks(NamedTuple):
    """Pairs of the same part stand together in blocks of c. There are as many blocks as there can be: no size
    depends on the choice.

    Attributes:
        part: of each pair [M, N]
        block_part: of each block [blocks]
        pair: which one stands at each place of the blocks [blocks c]; M N at a place that is empty
        place: where each pair stands [M N]
    """

    part: Tensor
    block_part: Tensor
    pair: Tensor
    place: Tensor

    def fetch(self, table: Tensor) -> Tensor:
        """As :meth:`Fetched.fetch`."""
        return table.index_select(0, self.block_part)

    def scores(self, q: Tensor, keys: Tensor) -> Tensor:
        """As :meth:`Fetched.scores`."""
        laid = _ToBlocks.apply(q, self.pair, self.place).view(len(keys), -1, q.size(-1))
        scores = torch.bmm(laid, keys.transpose(1, 2)).flatten(0, 1)
        return _FromBlocks.apply(scores, self.pair, self.place, 1).view(len(q), -1)

    def mixture(self, weights: Tensor, values: Tensor) -> Tensor:
        """As :meth:`Fetched.mixture`."""
        of_pairs = weights.reshape(self.part.numel(), -1)
        laid = _ToBlocks.apply(of_pairs, self.pair, self.place).view(len(values), -1, values.size(1))
        read = torch.bmm(laid, values).flatten(0, 1)
        return _FromBlocks.apply(read, self.pair, self.place, self.part.size(1))


def in_blocks(part: Tensor, R: int) -> Blocks:
    """The blocks for the parts ``part`` [M, N] of a table of R."""
    pairs = part.numel()
    blocks = pairs // BLOCK + R
    order = part.flatten().argsort(stable=True)
    counts = torch.zeros(R, dtype=torch.long, device=part.device)
    counts.scatter_add_(0, part.flatten(), torch.ones_like(part.flatten()))
    ends = ((counts + BLOCK - 1) // BLOCK).cumsum(dim=0)  # of each part's blocks
    sorted_part = part.flatten().index_select(0, order)
    first_pair, first_block = counts.cumsum(dim=0) - counts, ends - (counts + BLOCK - 1) // BLOCK
    rank = torch.arange(pairs, device=part.device) - first_pair.index_select(0, sorted_part)
    sorted_place = first_block.index_select(0, sorted_part) * BLOCK + rank
    place = torch.empty_like(order).scatter_(0, order, sorted_place)
    pair = torch.full((blocks * BLOCK,), pairs, device=part.device).scatter_(0, sorted_place, order)
    block_part = torch.searchsorted(ends, torch.arange(blocks, device=part.device), right=True).clamp(
        max=R - 1
    )
    return Blocks(part, block_part, pair, place)


# Each of these two is the other's gradient, so that it is fetched as well: torch's own for what is fetched
# adds row by row, on a GPU in an order that changes from run to run.


class _ToBlocks(torch.autograd.Function):
    """Rows of pairs [M N, D], or of their queries [M, D], at the pairs' places [blocks c, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pair: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.number = len(place) // len(x)
        return _lay(x, pair, ctx.number)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        return _collect(grad, place, ctx.number), None, None


class _FromBlocks(torch.autograd.Function):
    """Of the rows at the pairs' places [blocks c, D] the sums of so many pairs [M N / number, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pair: Tensor, place: Tensor, number: int) -> Tensor:
        ctx.save_for_backward(pair)
        ctx.number = number
        return _collect(x, place, number)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None, None, None]:
        (pair,) = ctx.saved_tensors
        return _lay(grad, pair, ctx.number), None, None, None


def _lay(x: Tensor, pair: Tensor, number: int) -> Tensor:
    """The row of each place's pair, of which ``number`` share one; zeros at places that are empty."""
    return torch.cat([x, x.new_zeros(1, x.size(1))]).index_select(0, pair // number)


def _collect(x: Tensor, place: Tensor, number: int) -> Tensor:
    """The sum over each ``number`` pairs of what stands at their places."""
    rows = x.index_select(0, place)
    return rows if number == 1 else rows.view(-1, number, x.size(1)).sum(dim=1)
