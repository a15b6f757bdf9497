"""Pairs of a query and a segment that it reads, and the products of queries with the tokens of their
segments.

There are M queries with N segments each, of a table of R segments with W tokens each.
"""

from typing import Any, List, NamedTuple, Tuple, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from luna_fairseq.ops.chunks import spans

# Queries of one segment that are multiplied with its tokens at a time.
BLOCK = 16
# Numbers that a CPU lays side by side for a product, so that they stay in its cache. A GPU does all at once.
IN_CACHE = 1 << 17
_BAGS_IN_BFLOAT16 = int(torch.__version__.split(".")[0]) >= 2  # on a CPU


def pair_up(segment: Tensor, R: int) -> "Pairs":
    """The form for queries that read the segments ``segment`` [M, N] of a table of R."""
    return Fetched(segment) if segment.numel() < 2 * R else in_blocks(segment, R)


def scores(pairs: "Pairs", q: Tensor, keys: Tensor) -> Tensor:
    """Products of each query [M, K] with the tokens of its segments [M, N W], of a table of keys [R, W,
    K]."""
    with torch.autocast(q.device.type, enabled=False):
        return _Scores.apply(type(pairs), q, keys, *pairs)


def mixture(pairs: "Pairs", weights: Tensor, values: Tensor) -> Tensor:
    """The tokens of each query's segments by their weights [M, N W]: [M, K], of a table of values [R, W,
    K]."""
    with torch.autocast(weights.device.type, enabled=False):
        return _Mixture.apply(type(pairs), weights, values, *pairs)


class _Scores(torch.autograd.Function):
    """The gradient of scores is a mixture, and that of the table a sum of outer products. Nothing is kept for
    it but the inputs."""

    @staticmethod
    def forward(ctx: Any, form: Any, q: Tensor, keys: Tensor, *pairs: Tensor) -> Tensor:
        ctx.form = form
        ctx.save_for_backward(q, keys, *pairs)
        return form(*pairs).scores(q, keys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Any, ...]:
        q, keys, *pairs = ctx.saved_tensors
        form = ctx.form(*pairs)
        # The caller's autocast may be on here, whatever it was in the forward pass.
        with torch.autocast(grad.device.type, enabled=False):
            of_q, of_keys = form.mixture(grad, keys), form.outer(grad, q, len(keys))
        return (None, of_q, of_keys, *[None] * len(pairs))


class _Mixture(torch.autograd.Function):
    """The other way round."""

    @staticmethod
    def forward(ctx: Any, form: Any, weights: Tensor, values: Tensor, *pairs: Tensor) -> Tensor:
        ctx.form = form
        ctx.save_for_backward(weights, values, *pairs)
        return form(*pairs).mixture(weights, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Any, ...]:
        weights, values, *pairs = ctx.saved_tensors
        form = ctx.form(*pairs)
        with torch.autocast(grad.device.type, enabled=False):
            of_weights, of_values = form.scores(grad, values), form.outer(weights, grad, len(values))
        return (None, of_weights, of_values, *[None] * len(pairs))


class Fetched(NamedTuple):
    """The tokens of its segments are fetched for each query: ``segment`` [M, N]."""

    segment: Tensor

    def scores(self, x: Tensor, table: Tensor) -> Tensor:
        """Products of each row [M, K] with the tokens of its segments [M, N W]."""
        return torch.bmm(self._fetch(table), x.unsqueeze(-1)).squeeze(-1)

    def mixture(self, weights: Tensor, table: Tensor) -> Tensor:
        """The tokens of each row's segments by their weights [M, N W]: [M, K]."""
        return torch.bmm(weights.unsqueeze(1), self._fetch(table)).squeeze(1)

    def outer(self, weights: Tensor, x: Tensor, R: int) -> Tensor:
        """For each token of the table the sum of the rows [M, K] by the weights [M, N W] that they give it:
        [R, W, K]."""
        N = self.segment.size(1)
        products = weights.reshape(len(x) * N, -1, 1) * x.repeat_interleave(N, dim=0).unsqueeze(1)
        return products.new_zeros(R, *products.shape[1:]).index_add_(0, self.segment.flatten(), products)

    def _fetch(self, table: Tensor) -> Tensor:
        return table.index_select(0, self.segment.flatten()).view(len(self.segment), -1, table.size(-1))


class Blocks(NamedTuple):
    """Pairs of the same segment stand together in blocks of c. There are as many blocks as there can be: no
    size depends on the choice.

    Attributes:
        segment: of each pair [M, N]
        block_segment: of each block [blocks]
        pair: which one stands at each place of the blocks [blocks c]; M N at a place that is empty
        place: where each pair stands [M N]
    """

    segment: Tensor
    block_segment: Tensor
    pair: Tensor
    place: Tensor

    def scores(self, x: Tensor, table: Tensor) -> Tensor:
        """As :meth:`Fetched.scores`."""
        laid = x.new_empty(len(self.block_segment), self._size(), table.size(1))
        for blocks, places in self._spans(x):
            keys = table.index_select(0, self.block_segment[blocks]).transpose(1, 2)
            torch.bmm(self._rows(x, places), keys, out=laid[blocks])
        return laid.flatten(0, 1).index_select(0, self.place).view(len(x), -1)

    def mixture(self, weights: Tensor, table: Tensor) -> Tensor:
        """As :meth:`Fetched.mixture`."""
        laid = table.new_empty(len(self.block_segment), self._size(), table.size(2))
        of_pairs = self._weights(weights)
        for blocks, _ in self._spans(table):
            values = table.index_select(0, self.block_segment[blocks])
            torch.bmm(of_pairs[blocks], values, out=laid[blocks])
        laid, place = laid.flatten(0, 1), self.place.view_as(self.segment)
        if laid.dtype == torch.bfloat16 and not _BAGS_IN_BFLOAT16:
            return F.embedding_bag(place, laid.float(), mode="sum").to(laid.dtype)
        return F.embedding_bag(place, laid, mode="sum")

    def outer(self, weights: Tensor, x: Tensor, R: int) -> Tensor:
        """As :meth:`Fetched.outer`."""
        of_pairs = self._weights(weights).transpose(1, 2)
        sums = x.new_zeros(R, of_pairs.size(1), x.size(1))
        for blocks, places in self._spans(x):
            products = torch.bmm(of_pairs[blocks], self._rows(x, places))
            sums.index_add_(0, self.block_segment[blocks], products)
        return sums

    def _size(self) -> int:
        """c, places of a block."""
        return len(self.pair) // len(self.block_segment)

    def _spans(self, x: Tensor) -> List[Tuple[slice, slice]]:
        """Blocks of rows as wide as those of ``x`` [.., K] that are done at once, and their places."""
        c = self._size()
        size = len(self.block_segment) if x.is_cuda else max(1, IN_CACHE // (c * x.size(-1)))
        return [(span, slice(c * span.start, c * span.stop)) for span in spans(len(self.block_segment), size)]

    def _rows(self, x: Tensor, places: slice) -> Tensor:
        """The row [M, K] of the pair at each of the ``places``, by blocks [.., c, K]; any at an empty one."""
        row = (self.pair[places] // self.segment.size(1)).clamp(max=len(x) - 1)
        return x.index_select(0, row).unflatten(0, (-1, self._size()))

    def _weights(self, weights: Tensor) -> Tensor:
        """The weights [M, N W] of the pair at each place [blocks, c, W], 0 at an empty one."""
        of_pairs = weights.reshape(self.segment.numel(), -1)
        laid = torch.cat([of_pairs, of_pairs.new_zeros(1, of_pairs.size(1))]).index_select(0, self.pair)
        return laid.unflatten(0, (len(self.block_segment), -1))


Pairs = Union[Fetched, Blocks]


def in_blocks(segment: Tensor, R: int) -> Blocks:
    """The blocks for the segments ``segment`` [M, N] of a table of R."""
    pairs = segment.numel()
    blocks = pairs // BLOCK + R
    order = segment.flatten().argsort(stable=True)
    counts = torch.zeros(R, dtype=torch.long, device=segment.device)
    counts.scatter_add_(0, segment.flatten(), torch.ones_like(segment.flatten()))
    ends = ((counts + BLOCK - 1) // BLOCK).cumsum(dim=0)  # of each segment's blocks
    sorted_segment = segment.flatten().index_select(0, order)
    first_pair, first_block = counts.cumsum(dim=0) - counts, ends - (counts + BLOCK - 1) // BLOCK
    rank = torch.arange(pairs, device=segment.device) - first_pair.index_select(0, sorted_segment)
    sorted_place = first_block.index_select(0, sorted_segment) * BLOCK + rank
    place = torch.empty_like(order).scatter_(0, order, sorted_place)
    pair = torch.full((blocks * BLOCK,), pairs, device=segment.device).scatter_(0, sorted_place, order)
    block_segment = torch.searchsorted(ends, torch.arange(blocks, device=segment.device), right=True).clamp(
        max=R - 1
    )
    return Blocks(segment, block_segment, pair, place)
