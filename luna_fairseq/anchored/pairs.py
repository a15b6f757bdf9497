"""Products of queries with the tokens of the segments that they attend to, computed in blocks.

Each of M queries attends to N of R segments. A table [R, W, K] contains the keys or values of all segments,
with W tokens of width K each. A pair is a query and one of its segments. Pairs with the same segment are
multiplied together, so that the tokens of a segment are not gathered once per query.
"""

from typing import Any, List, NamedTuple, Tuple, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from luna_fairseq.ops.chunks import chunk_slices

# Number of queries in a block. One product multiplies them by the tokens of their common segment.
BLOCK = 16
# On a CPU, blocks are larger if an average segment has at least this many queries. A large block gathers the
# tokens once for more queries, but more of the last block of each segment is empty.
LARGE_BLOCK, LARGE_BLOCK_QUERIES = 64, 256
# Number of values gathered for one product on a CPU, small enough to stay in the cache. A GPU computes all
# products at once.
IN_CACHE = 1 << 17
# Before torch 2.0, embedding_bag did not support bfloat16 on a CPU.
_BAGS_IN_BFLOAT16 = int(torch.__version__.split(".")[0]) >= 2


def make_pairs(segment: Tensor, R: int) -> "Pairs":
    """Choose between products in blocks and products with one gather per query.

    Blocks are chosen if, on average, at least two queries attend to a segment.

    Args:
        segment: indices [M, N] of the N segments that each of M queries attends to.
        R: number of segments.

    Returns:
        Object that computes the products, a :class:`Blocks` or :class:`Gathered`.
    """
    return Gathered(segment) if segment.numel() < 2 * R else sort_into_blocks(segment, R)


def scores(pairs: "Pairs", q: Tensor, keys: Tensor) -> Tensor:
    """Compute the dot product of each query with the keys of its segments' tokens, with gradients.

    Shapes: M queries of width K. Each query attends to N of R segments with W tokens each.

    Args:
        pairs: segments that each query attends to.
        q: queries [M, K].
        keys: keys [R, W, K] of all segments.

    Returns:
        Products [M, N * W].
    """
    with torch.autocast(q.device.type, enabled=False):
        return _Scores.apply(type(pairs), q, keys, *pairs)


def weighted_sum(pairs: "Pairs", weights: Tensor, values: Tensor) -> Tensor:
    """Compute the weighted sum of the values of each query's segments, with gradients.

    Shapes: M queries. Each query attends to N of R segments with W tokens each, whose values have width K.

    Args:
        pairs: segments that each query attends to.
        weights: weights [M, N * W] of the tokens of these segments.
        values: values [R, W, K] of all segments.

    Returns:
        Sums [M, K].
    """
    with torch.autocast(weights.device.type, enabled=False):
        return _WeightedSum.apply(type(pairs), weights, values, *pairs)


class _Scores(torch.autograd.Function):
    """Autograd function of :func:`scores`, which saves only its inputs for the backward pass.

    The gradient of the queries is a weighted sum of keys. The gradient of the keys is a sum of outer
    products.
    """

    @staticmethod
    def forward(ctx: Any, pairs_class: Any, q: Tensor, keys: Tensor, *pairs: Tensor) -> Tensor:
        """Compute the dot products of :func:`scores`.

        Args:
            ctx: autograd context, which saves the inputs.
            pairs_class: class that computes the products, :class:`Gathered` or :class:`Blocks`.
            q: M queries [M, K] of width K.
            keys: keys [R, W, K] of R segments with W tokens each.
            *pairs: fields of ``pairs_class``.

        Returns:
            Products [M, N * W] with the N segments that each query attends to.
        """
        ctx.pairs_class = pairs_class
        ctx.save_for_backward(q, keys, *pairs)
        return pairs_class(*pairs).scores(q, keys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Any, ...]:
        """Compute the gradients of queries and keys.

        Args:
            ctx: autograd context with the saved inputs.
            grad: gradient of the products, of the same shape.

        Returns:
            Gradient with respect to each argument of :meth:`forward`, or None.
        """
        q, keys, *pairs = ctx.saved_tensors
        products = ctx.pairs_class(*pairs)
        # The backward pass may run under the caller's autocast, even if the forward pass did not.
        with torch.autocast(grad.device.type, enabled=False):
            grad_q = products.weighted_sum(grad, keys)
            grad_keys = products.sum_outer_products(grad, q, len(keys))
        return (None, grad_q, grad_keys, *[None] * len(pairs))


class _WeightedSum(torch.autograd.Function):
    """Autograd function of :func:`weighted_sum`, which saves only its inputs for the backward pass.

    The gradient of the weights consists of dot products with the values. The gradient of the values is a sum
    of outer products.
    """

    @staticmethod
    def forward(ctx: Any, pairs_class: Any, weights: Tensor, values: Tensor, *pairs: Tensor) -> Tensor:
        """Compute the sums of :func:`weighted_sum`.

        Args:
            ctx: autograd context, which saves the inputs.
            pairs_class: class that computes the sums, :class:`Gathered` or :class:`Blocks`.
            weights: weights [M, N * W] of the tokens in the N segments that each of M queries attends to.
            values: values [R, W, K] of R segments with W tokens of width K each.
            *pairs: fields of ``pairs_class``.

        Returns:
            Sums [M, K].
        """
        ctx.pairs_class = pairs_class
        ctx.save_for_backward(weights, values, *pairs)
        return pairs_class(*pairs).weighted_sum(weights, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Any, ...]:
        """Compute the gradients of weights and values.

        Args:
            ctx: autograd context with the saved inputs.
            grad: gradient of the sums, of the same shape.

        Returns:
            Gradient with respect to each argument of :meth:`forward`, or None.
        """
        weights, values, *pairs = ctx.saved_tensors
        products = ctx.pairs_class(*pairs)
        with torch.autocast(grad.device.type, enabled=False):
            grad_weights = products.scores(grad, values)
            grad_values = products.sum_outer_products(weights, grad, len(values))
        return (None, grad_weights, grad_values, *[None] * len(pairs))


class Gathered(NamedTuple):
    """Products of queries and segments with one gather per query, which is fast for few queries.

    Shapes: M queries of width K. Each query attends to N of R segments with W tokens each.

    Attributes:
        segment: indices [M, N] of the segments that each query attends to.
    """

    segment: Tensor

    def scores(self, x: Tensor, table: Tensor) -> Tensor:
        """Compute the dot product of each query with the tokens of its segments.

        Shapes: M queries of width K. Each query attends to N of R segments with W tokens each.

        Args:
            x: queries [M, K].
            table: keys [R, W, K] of all segments.

        Returns:
            Products [M, N * W].
        """
        return torch.bmm(self._gather(table), x.unsqueeze(-1)).squeeze(-1)

    def weighted_sum(self, weights: Tensor, table: Tensor) -> Tensor:
        """Compute the weighted sum of the tokens of each query's segments.

        Shapes: M queries. Each query attends to N of R segments with W tokens of width K each.

        Args:
            weights: weights [M, N * W] of the tokens.
            table: values [R, W, K] of all segments.

        Returns:
            Sums [M, K].
        """
        return torch.bmm(weights.unsqueeze(1), self._gather(table)).squeeze(1)

    def sum_outer_products(self, weights: Tensor, x: Tensor, R: int) -> Tensor:
        """Sum the outer products of weights and queries for each segment, the gradient of the table.

        Shapes: M queries of width K. Each query attends to N of R segments with W tokens each.

        Args:
            weights: weights [M, N * W] of the tokens.
            x: queries [M, K].
            R: number of segments in the table.

        Returns:
            Sums [R, W, K].
        """
        N = self.segment.size(1)
        products = weights.reshape(len(x) * N, -1, 1) * x.repeat_interleave(N, dim=0).unsqueeze(1)
        return products.new_zeros(R, *products.shape[1:]).index_add_(0, self.segment.flatten(), products)

    def _gather(self, table: Tensor) -> Tensor:
        """Gather the tokens of each query's segments.

        Args:
            table: keys or values [R, W, K] of R segments with W tokens of width K each.

        Returns:
            Tokens [M, N * W, K] of the N segments that each of M queries attends to.
        """
        return table.index_select(0, self.segment.flatten()).view(len(self.segment), -1, table.size(-1))


class Blocks(NamedTuple):
    """Products of queries and segments in blocks, which is fast for many queries.

    Pairs of a query and one of its segments are sorted by segment and divided into blocks of c pairs with the
    same segment. Pair p is query ``p // N`` with its segment number ``p % N``. The last block of a segment
    may be partly empty. There are always ``M N // c + R`` blocks, which is enough for any choice of segments,
    so that no tensor size depends on the choice. Surplus blocks at the end are empty.

    Invariants: ``pair[place[p]] == p`` for every pair p, and ``block_segment[place[p] // c]`` is its segment.

    Example: M = 3 queries choose N = 2 of R = 3 segments each, ``segment = [[2, 0], [0, 1], [2, 0]]``, c = 2.
    Segment 0 has pairs 1, 2, 5, segment 1 has pair 3, segment 2 has pairs 0, 4. The blocks are::

        block            0      1      2      3      4      5
        block_segment    0      0      1      2      2      2
        pair             1 2    5 -    3 -    0 4    - -    - -    (- is stored as 6)
        place            [6, 0, 1, 4, 7, 2]

    Attributes:
        segment: segment [M, N] of each pair.
        block_segment: segment of each block, a vector; undefined for surplus blocks.
        pair: pair at each of the c positions of all blocks, a vector; M N at empty positions.
        place: position [M * N] of each pair in ``pair``.
    """

    segment: Tensor
    block_segment: Tensor
    pair: Tensor
    place: Tensor

    def scores(self, x: Tensor, table: Tensor) -> Tensor:
        """Compute the dot product of each query with the tokens of its segments.

        Shapes: M queries of width K. Each query attends to N of R segments with W tokens each.

        Args:
            x: queries [M, K].
            table: keys [R, W, K] of all segments.

        Returns:
            Products [M, N * W].
        """
        arranged = x.new_empty(len(self.block_segment), self._block_size(), table.size(1))
        for blocks, places in self._split_blocks(x):
            keys = table.index_select(0, self.block_segment[blocks]).transpose(1, 2)
            torch.bmm(self._gather_queries(x, places), keys, out=arranged[blocks])
        return arranged.flatten(0, 1).index_select(0, self.place).view(len(x), -1)

    def weighted_sum(self, weights: Tensor, table: Tensor) -> Tensor:
        """Compute the weighted sum of the tokens of each query's segments.

        Shapes: M queries. Each query attends to N of R segments with W tokens of width K each.

        Args:
            weights: weights [M, N * W] of the tokens.
            table: values [R, W, K] of all segments.

        Returns:
            Sums [M, K].
        """
        arranged = table.new_empty(len(self.block_segment), self._block_size(), table.size(2))
        pair_weights = self._gather_weights(weights)
        for blocks, _ in self._split_blocks(table):
            values = table.index_select(0, self.block_segment[blocks])
            torch.bmm(pair_weights[blocks], values, out=arranged[blocks])
        arranged, place = arranged.flatten(0, 1), self.place.view_as(self.segment)
        if arranged.dtype == torch.bfloat16 and not _BAGS_IN_BFLOAT16:
            return F.embedding_bag(place, arranged.float(), mode="sum").to(arranged.dtype)
        return F.embedding_bag(place, arranged, mode="sum")

    def sum_outer_products(self, weights: Tensor, x: Tensor, R: int) -> Tensor:
        """Sum the outer products of weights and queries for each segment, the gradient of the table.

        Shapes: M queries of width K. Each query attends to N of R segments with W tokens each.

        Args:
            weights: weights [M, N * W] of the tokens.
            x: queries [M, K].
            R: number of segments in the table.

        Returns:
            Sums [R, W, K].
        """
        pair_weights = self._gather_weights(weights).transpose(1, 2)
        sums = x.new_zeros(R, pair_weights.size(1), x.size(1))
        for blocks, places in self._split_blocks(x):
            products = torch.bmm(pair_weights[blocks], self._gather_queries(x, places))
            sums.index_add_(0, self.block_segment[blocks], products)
        return sums

    def _block_size(self) -> int:
        """Return the number of pairs that a block can hold."""
        return len(self.pair) // len(self.block_segment)

    def _split_blocks(self, x: Tensor) -> List[Tuple[slice, slice]]:
        """Split the blocks into groups that are processed in order.

        On a CPU, the values that are gathered for a group fit into the cache. On a GPU, there is a single
        group.

        Args:
            x: tensor whose last dimension is the width of the gathered values.

        Returns:
            For each group, the slice of its blocks and the slice of the positions in these blocks.
        """
        c = self._block_size()
        size = len(self.block_segment) if x.is_cuda else max(1, IN_CACHE // (c * x.size(-1)))
        return [
            (span, slice(c * span.start, c * span.stop))
            for span in chunk_slices(len(self.block_segment), size)
        ]

    def _gather_queries(self, x: Tensor, places: slice) -> Tensor:
        """Gather the query of each pair in the given blocks.

        Queries at empty positions are undefined.

        Args:
            x: M queries [M, K] of width K.
            places: slice of the positions in these blocks, a multiple of the block size.

        Returns:
            Queries [blocks, c, K], for blocks of size c.
        """
        row = (self.pair[places] // self.segment.size(1)).clamp(max=len(x) - 1)
        return x.index_select(0, row).unflatten(0, (-1, self._block_size()))

    def _gather_weights(self, weights: Tensor) -> Tensor:
        """Gather the weights of each pair in all blocks.

        Weights at empty positions are 0.

        Args:
            weights: weights [M, N * W] of the W tokens in each of the N segments that M queries attend to.

        Returns:
            Weights [blocks, c, W], for blocks of size c.
        """
        pair_weights = weights.reshape(self.segment.numel(), -1)
        arranged = torch.cat([pair_weights, pair_weights.new_zeros(1, pair_weights.size(1))]).index_select(
            0, self.pair
        )
        return arranged.unflatten(0, (len(self.block_segment), -1))


Pairs = Union[Gathered, Blocks]


def sort_into_blocks(segment: Tensor, R: int) -> Blocks:
    """Sort pairs of a query and a segment by segment, and divide the pairs of each segment into blocks.

    Segment r has ``counts[r]`` pairs, which fill ``counts[r] / size`` blocks, rounded up. The blocks of
    segment r end before block ``ends[r]``, where the blocks of segment r + 1 begin. Within a segment, the
    pairs keep their order.

    Args:
        segment: segment [M, N] of each pair, 0 to R - 1, for M queries that attend to N segments each.
        R: number of segments.

    Returns:
        The blocks, see :class:`Blocks`.
    """
    pairs = segment.numel()
    has_large_blocks = pairs >= LARGE_BLOCK_QUERIES * R and segment.device.type == "cpu"
    size = LARGE_BLOCK if has_large_blocks else BLOCK
    blocks = pairs // size + R
    order = segment.flatten().argsort(stable=True)
    counts = torch.zeros(R, dtype=torch.long, device=segment.device)
    counts.scatter_add_(0, segment.flatten(), torch.ones_like(segment.flatten()))
    blocks_of_segment = (counts + size - 1) // size
    ends = blocks_of_segment.cumsum(dim=0)
    sorted_segment = segment.flatten().index_select(0, order)
    first_pair, first_block = counts.cumsum(dim=0) - counts, ends - blocks_of_segment
    rank = torch.arange(pairs, device=segment.device) - first_pair.index_select(0, sorted_segment)
    sorted_place = first_block.index_select(0, sorted_segment) * size + rank
    place = torch.empty_like(order).scatter_(0, order, sorted_place)
    pair = torch.full((blocks * size,), pairs, device=segment.device).scatter_(0, sorted_place, order)
    # The segment of a block is the first whose blocks end after it; surplus blocks are assigned to the last
    # segment.
    block = torch.arange(blocks, device=segment.device)
    block_segment = torch.searchsorted(ends, block, right=True).clamp(max=R - 1)
    return Blocks(segment, block_segment, pair, place)
