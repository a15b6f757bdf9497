"""Products of queries with the tokens of the parts that each of them has chosen, ``chosen`` [B, H, T, N].

:func:`read_chosen` has two forms of them. Of both:

- ``part`` [B, H, T, N'] says whose W tokens a query meets, M = N' W of them
- ``left_out`` [B, H, T, M] is True at tokens that are not there, or not chosen
- ``place`` is where the tokens stand, for a diagonal, broadcast to [B, H, T, M]
- ``scores`` are the products of queries [B, H, T, K] with keys [B, H, T, M]
- ``mixture`` is the values by weights [B, H, T, M]: [B, H, T, K]
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from luna_fairseq.ops.luna.parts import Parts

# Most tokens of a context for which all are met: products with so few cost less than fetching some of them.
SHORT = 64
# Queries of one part that are multiplied with its tokens at a time.
BLOCK = 16


def read_chosen(parts: Parts, chosen: Tensor) -> Any:
    """The form for a context of such a length."""
    B, H, L, W = parts.key.shape[:4]
    if L * W <= SHORT:
        return AllTokens(parts, chosen)
    heads = torch.arange(B * H, device=chosen.device) * L
    rows = chosen + heads.view(B, H, 1, 1)  # of a table of the parts of all sentences and heads
    return ChosenTokens(parts, chosen, _pair(rows.flatten(0, 2), B * H * L))


class AllTokens(NamedTuple):
    """Every query meets all tokens; those that it did not choose are left out."""

    parts: Parts
    chosen: Tensor

    @property
    def part(self) -> Tensor:
        L = self.parts.key.size(2)
        return torch.arange(L, device=self.chosen.device).expand(*self.chosen.shape[:3], -1)

    @property
    def left_out(self) -> Tensor:
        others = torch.ones_like(self.part, dtype=torch.bool).scatter(3, self.chosen, False)
        return (others.unsqueeze(-1) | self.parts.empty[:, None, None]).flatten(3)

    @property
    def place(self) -> Tensor:
        return self.parts.place.flatten(1)[:, None, None]

    def scores(self, q: Tensor) -> Tensor:
        return q @ self.parts.key.flatten(2, 3).transpose(-2, -1)

    def mixture(self, weights: Tensor) -> Tensor:
        return weights @ self.parts.value.flatten(2, 3)


class ChosenTokens(NamedTuple):
    """Every query meets the tokens of the parts that it chose."""

    parts: Parts
    part: Tensor
    pairs: Any

    @property
    def left_out(self) -> Tensor:
        return self._of_tokens(self.parts.empty)

    @property
    def place(self) -> Tensor:
        return self._of_tokens(self.parts.place)

    def scores(self, q: Tensor) -> Tensor:
        scores = self.pairs.scores(q.flatten(0, 2), self.parts.key.flatten(0, 2))
        return scores.view(*self.part.shape[:3], -1)

    def mixture(self, weights: Tensor) -> Tensor:
        values = self.pairs.mixture(weights.flatten(0, 2), self.parts.value.flatten(0, 2))
        return values.view(*self.part.shape[:3], -1)

    def _of_tokens(self, x: Tensor) -> Tensor:
        """What ``x`` [B, L, W] says of the tokens that are met [B, H, T, M]."""
        B, L, _ = x.shape
        sentences = torch.arange(B, device=x.device) * L
        index = (self.part + sentences.view(B, 1, 1, 1)).flatten()
        return x.flatten(0, 1).index_select(0, index).view(*self.part.shape[:3], -1)


class Fetched(NamedTuple):
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


class Blocks(NamedTuple):
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
        """As :meth:`Fetched.scores`."""
        queries = q.index_select(0, self.pair // self.part.size(1)).view(len(self.block_part), -1, q.size(-1))
        scores = torch.bmm(queries, table.index_select(0, self.block_part).transpose(1, 2))
        return scores.flatten(0, 1).index_select(0, self.place).view(len(self.part), -1)

    def mixture(self, weights: Tensor, table: Tensor) -> Tensor:
        """As :meth:`Fetched.mixture`."""
        of_pairs = weights.reshape(self.part.numel(), -1).index_select(0, self.pair)
        read = torch.bmm(
            of_pairs.view(len(self.block_part), -1, table.size(1)), table.index_select(0, self.block_part)
        )
        return read.flatten(0, 1).index_select(0, self.place).view(*self.part.shape, -1).sum(dim=1)


def _pair(part: Tensor, R: int) -> Any:
    """The form for queries that chose the parts ``part`` [M, N] of R."""
    pairs = part.numel()
    if pairs < 2 * R:
        return Fetched(part)
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
    pair = torch.zeros(blocks * BLOCK, dtype=torch.long, device=part.device).scatter_(0, sorted_place, order)
    block_part = torch.searchsorted(ends, torch.arange(blocks, device=part.device), right=True).clamp(
        max=R - 1
    )
    return Blocks(part, block_part, pair, place)
