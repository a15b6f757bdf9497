"""Products of queries with the tokens of the segments that they read, without a gather for every query.

M queries read N segments each, from a table of R segments of W tokens: keys or values [R, W, K]. A pair is a
query and one of its segments.
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
    """Choose how the products are computed: in blocks if most segments are read by several queries.

    Args:
        segment: segments that each query reads [M, N]
        R: number of segments in the table
    """
    return Fetched(segment) if segment.numel() < 2 * R else in_blocks(segment, R)


def scores(pairs: "Pairs", q: Tensor, keys: Tensor) -> Tensor:
    """Compute the products of each query with the keys of its segments' tokens, with gradients.

    Args:
        pairs: segments that each query reads
        q: queries [M, K]
        keys: table of keys [R, W, K]

    Returns:
        products [M, N * W]
    """
    with torch.autocast(q.device.type, enabled=False):
        return _Scores.apply(type(pairs), q, keys, *pairs)


def mixture(pairs: "Pairs", weights: Tensor, values: Tensor) -> Tensor:
    """Weighted sum of the values of each query's segments, with gradients.

    Args:
        pairs: segments that each query reads
        weights: weights of the tokens of these segments [M, N * W]
        values: table of values [R, W, K]

    Returns:
        sums [M, K]
    """
    with torch.autocast(weights.device.type, enabled=False):
        return _Mixture.apply(type(pairs), weights, values, *pairs)


class _Scores(torch.autograd.Function):
    """Autograd function of :func:`scores`, which saves only its inputs.

    The gradient of the queries is a mixture of keys, that of the keys a sum of outer products.
    """

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
    """Autograd function of :func:`mixture`, which saves only its inputs.

    The gradient of the weights are scores of the values, that of the values a sum of outer products.
    """

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
    """Gather the tokens of its segments for each query: for few queries, as in decoding.

    Attributes:
        segment: segments that each query reads [M, N]
    """

    segment: Tensor

    def scores(self, x: Tensor, table: Tensor) -> Tensor:
        """Compute the products of ``x`` [M, K] with the tokens of its segments: [M, N * W]."""
        return torch.bmm(self._fetch(table), x.unsqueeze(-1)).squeeze(-1)

    def mixture(self, weights: Tensor, table: Tensor) -> Tensor:
        """Compute the weighted sum of each query's tokens: weights [M, N * W] -> [M, K]."""
        return torch.bmm(weights.unsqueeze(1), self._fetch(table)).squeeze(1)

    def outer(self, weights: Tensor, x: Tensor, R: int) -> Tensor:
        """Sum, for each token of the table, ``x`` [M, K] times the weight that each query gives the token.

        Args:
            weights: [M, N * W]
            x: [M, K]
            R: number of segments in the table

        Returns:
            sums [R, W, K]
        """
        N = self.segment.size(1)
        products = weights.reshape(len(x) * N, -1, 1) * x.repeat_interleave(N, dim=0).unsqueeze(1)
        return products.new_zeros(R, *products.shape[1:]).index_add_(0, self.segment.flatten(), products)

    def _fetch(self, table: Tensor) -> Tensor:
        return table.index_select(0, self.segment.flatten()).view(len(self.segment), -1, table.size(-1))


class Blocks(NamedTuple):
    """Pairs sorted by segment, in blocks of c pairs of one segment.

    A pair is a query and one of its N segments. Pair p is query ``p // N`` with its segment number ``p % N``.
    The places of a segment's last block that have no pair, and whole surplus blocks at the end, are empty.
    There are always ``M N // c + R`` blocks, enough for any choice, so that no size depends on the choice.

    Invariants: ``pair[place[p]] == p`` for every pair p, and ``block_segment[place[p] // c]`` is its segment.

    Example: M = 3 queries choose N = 2 of R = 3 segments each, ``segment = [[2, 0], [0, 1], [2, 0]]``, c = 2.
    Segment 0 has pairs 1, 2, 5, segment 1 has pair 3, segment 2 has pairs 0, 4. The blocks are::

        block            0      1      2      3      4      5
        block_segment    0      0      1      2      2      2
        pair             1 2    5 -    3 -    0 4    - -    - -    (- is stored as 6)
        place            [6, 0, 1, 4, 7, 2]

    Attributes:
        segment: segment of each pair [M, N]
        block_segment: segment of each block [blocks]; arbitrary for surplus blocks
        pair: pair at each place of the blocks [blocks * c]; M N at an empty place
        place: place of each pair [M * N]
    """

    segment: Tensor
    block_segment: Tensor
    pair: Tensor
    place: Tensor

    def scores(self, x: Tensor, table: Tensor) -> Tensor:
        """Compute :meth:`Fetched.scores` by blocks."""
        laid = x.new_empty(len(self.block_segment), self._size(), table.size(1))
        for blocks, places in self._spans(x):
            keys = table.index_select(0, self.block_segment[blocks]).transpose(1, 2)
            torch.bmm(self._rows(x, places), keys, out=laid[blocks])
        return laid.flatten(0, 1).index_select(0, self.place).view(len(x), -1)

    def mixture(self, weights: Tensor, table: Tensor) -> Tensor:
        """Compute :meth:`Fetched.mixture` by blocks."""
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
        """Compute :meth:`Fetched.outer` by blocks."""
        of_pairs = self._weights(weights).transpose(1, 2)
        sums = x.new_zeros(R, of_pairs.size(1), x.size(1))
        for blocks, places in self._spans(x):
            products = torch.bmm(of_pairs[blocks], self._rows(x, places))
            sums.index_add_(0, self.block_segment[blocks], products)
        return sums

    def _size(self) -> int:
        """Return c, the number of places in a block."""
        return len(self.pair) // len(self.block_segment)

    def _spans(self, x: Tensor) -> List[Tuple[slice, slice]]:
        """Return slices of blocks that are computed at once, each with the slice of its places.

        On a CPU, one slice of vectors as wide as ``x`` [.., K] fits into the cache.
        """
        c = self._size()
        size = len(self.block_segment) if x.is_cuda else max(1, IN_CACHE // (c * x.size(-1)))
        return [(span, slice(c * span.start, c * span.stop)) for span in spans(len(self.block_segment), size)]

    def _rows(self, x: Tensor, places: slice) -> Tensor:
        """Gather ``x`` [M, K] for the pairs at the ``places``: [blocks, c, K], arbitrary at empty places."""
        row = (self.pair[places] // self.segment.size(1)).clamp(max=len(x) - 1)
        return x.index_select(0, row).unflatten(0, (-1, self._size()))

    def _weights(self, weights: Tensor) -> Tensor:
        """Gather weights [M, N * W] for the pair at each place: [blocks, c, W], 0 at empty places."""
        of_pairs = weights.reshape(self.segment.numel(), -1)
        laid = torch.cat([of_pairs, of_pairs.new_zeros(1, of_pairs.size(1))]).index_select(0, self.pair)
        return laid.unflatten(0, (len(self.block_segment), -1))


Pairs = Union[Fetched, Blocks]


def in_blocks(segment: Tensor, R: int) -> Blocks:
    """Sort pairs into blocks by counting.

    Segment r has ``counts[r]`` pairs, which fill ``counts[r] / BLOCK`` blocks, rounded up. Its blocks end
    before block ``ends[r]``, where those of segment r + 1 begin. Within a segment, pairs keep their order.

    Args:
        segment: segment of each pair [M, N], 0 to R - 1
        R: number of segments
    """
    pairs = segment.numel()
    blocks = pairs // BLOCK + R
    order = segment.flatten().argsort(stable=True)
    counts = torch.zeros(R, dtype=torch.long, device=segment.device)
    counts.scatter_add_(0, segment.flatten(), torch.ones_like(segment.flatten()))
    blocks_of_segment = (counts + BLOCK - 1) // BLOCK
    ends = blocks_of_segment.cumsum(dim=0)
    sorted_segment = segment.flatten().index_select(0, order)
    first_pair, first_block = counts.cumsum(dim=0) - counts, ends - blocks_of_segment
    rank = torch.arange(pairs, device=segment.device) - first_pair.index_select(0, sorted_segment)
    sorted_place = first_block.index_select(0, sorted_segment) * BLOCK + rank
    place = torch.empty_like(order).scatter_(0, order, sorted_place)
    pair = torch.full((blocks * BLOCK,), pairs, device=segment.device).scatter_(0, sorted_place, order)
    # The segment of a block is the first whose blocks end after it; surplus blocks get the last segment.
    block = torch.arange(blocks, device=segment.device)
    block_segment = torch.searchsorted(ends, block, right=True).clamp(max=R - 1)
    return Blocks(segment, block_segment, pair, place)
