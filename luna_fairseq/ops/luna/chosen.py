"""The parts that each query chooses, and its products with their tokens.

Of what was ``chosen`` [B, H, T, N] :class:`ChosenTokens` is what a query meets, M = N W tokens.
"""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.ops.luna.parts import Parts

# Queries of one part that are multiplied with its tokens at a time.
BLOCK = 16


def chosen_parts(rows: Tensor, packed_padding_mask: Optional[Tensor], number: int) -> Tensor:
    """The parts with the largest of the logits ``rows`` [B, H, T, L]: [B, H, T, N]. No gradient passes
    through the choice."""
    rows = rows.detach()
    if packed_padding_mask is not None:
        rows = rows.masked_fill(packed_padding_mask[:, None, None, :], float("-inf"))
    return rows.topk(min(number, rows.size(-1)), dim=-1, sorted=False).indices


def read_chosen(parts: Parts, chosen: Tensor) -> "ChosenTokens":
    """The tokens of the ``parts`` that were ``chosen`` [B, H, T, N]."""
    B, H, L = parts.key.shape[:3]
    heads = torch.arange(B * H, device=chosen.device) * L
    rows = chosen + heads.view(B, H, 1, 1)  # of a table of the parts of all sentences and heads
    return ChosenTokens(parts, chosen, _pair(rows.flatten(0, 2), B * H * L))


class ChosenTokens(NamedTuple):
    """Every query meets the tokens of the parts that it chose.

    Attributes:
        parts: the tokens of all parts
        part: what was chosen [B, H, T, N]
        pairs: queries with a part of the table of all parts
    """

    parts: Parts
    part: Tensor
    pairs: Any

    @property
    def left_out(self) -> Tensor:
        """True at tokens that are not there [B, H, T, M]."""
        return self._of_tokens(self.parts.empty)

    @property
    def place(self) -> Tensor:
        """Where the tokens stand, for a diagonal [B, H, T, M]."""
        return self._of_tokens(self.parts.place)

    def scores(self, q: Tensor) -> Tensor:
        """Products of queries [B, H, T, K] with keys [B, H, T, M]."""
        scores = self.pairs.scores(q.flatten(0, 2), self.parts.key.flatten(0, 2))
        return scores.view(*self.part.shape[:3], -1)

    def mixture(self, weights: Tensor) -> Tensor:
        """Values by weights [B, H, T, M]: [B, H, T, K]."""
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
