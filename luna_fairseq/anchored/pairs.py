"""Products of queries with the tokens of the segments that they read, computed in blocks.

Each of M queries reads N of R segments. The keys or values of all segments, W tokens each, form a table
[R, W, K]. A pair is a query and one of its segments. Pairs with the same segment are multiplied together, so
that the tokens of the segment are not gathered for each query.
"""

from typing import Any, List, NamedTuple, Tuple, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from luna_fairseq.ops.chunks import chunk_slices

# Number of queries in a block, which are multiplied with the tokens of their common segment at a time.
BLOCK = 16
# On a CPU, blocks are larger if an average segment has at least this many queries. One product of a large
# block gathers the tokens once for more queries, but the last block of each segment is emptier.
LARGE_BLOCK, LARGE_BLOCK_QUERIES = 64, 256
# Number of values that are gathered for one product on a CPU, so that they stay in its cache. A GPU computes
# all products at once.
IN_CACHE = 1 << 17
# Before torch 2.0, embedding_bag did not support bfloat16 on a CPU.
_BAGS_IN_BFLOAT16 = int(torch.__version__.split(".")[0]) >= 2


def make_pairs(segment: Tensor, R: int) -> "Pairs":
    """Choose how products of queries and segments are computed.

    The computation is in blocks if most segments are read by several queries.

    Args:
        segment: segments [M, N] that each query reads.
        R: number of segments in the table.

    Returns:
        The object that computes the products.
    """
    return Gathered(segment) if segment.numel() < 2 * R else sort_into_blocks(segment, R)


def scores(pairs: "Pairs", q: Tensor, keys: Tensor) -> Tensor:
    """Compute the products of each query with the keys of its segments' tokens, with gradients.

    Each of M queries of width K reads N of R segments with W tokens each.

    Args:
        pairs: segments that each query reads.
        q: queries [M, K].
        keys: table [R, W, K] of keys.

    Returns:
        The products [M, N * W].
    """
    with torch.autocast(q.device.type, enabled=False):
        return _Scores.apply(type(pairs), q, keys, *pairs)


def mixture(pairs: "Pairs", weights: Tensor, values: Tensor) -> Tensor:
    """Compute the weighted sum of the values of each query's segments, with gradients.

    Each of M queries reads N of R segments, which have W tokens with values of width K.

    Args:
        pairs: segments that each query reads.
        weights: weights [M, N * W] of the tokens of these segments.
        values: table [R, W, K] of values.

    Returns:
        The sums [M, K].
    """
    with torch.autocast(weights.device.type, enabled=False):
        return _Mixture.apply(type(pairs), weights, values, *pairs)


class _Scores(torch.autograd.Function):
    """Autograd function of :func:`scores`, which saves only its inputs.

    The gradient of the queries is a weighted sum of keys. The gradient of the keys is a sum of outer
    products.
    """

    @staticmethod
    def forward(ctx: Any, form: Any, q: Tensor, keys: Tensor, *pairs: Tensor) -> Tensor:
        """Compute the products of queries and keys.

        Args:
            ctx: context, in which the inputs are saved for the backward pass.
            form: class that computes the products, :class:`Gathered` or :class:`Blocks`.
            q: queries [M, K].
            keys: table [R, W, K] of keys.
            *pairs: fields of ``form``.

        Returns:
            The products [M, N * W].
        """
        ctx.form = form
        ctx.save_for_backward(q, keys, *pairs)
        return form(*pairs).scores(q, keys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Any, ...]:
        """Compute the gradients of queries and keys.

        Args:
            ctx: context with the saved inputs.
            grad: gradient [M, N * W] of the products.

        Returns:
            The gradient of each argument of :meth:`forward`, or None.
        """
        q, keys, *pairs = ctx.saved_tensors
        form = ctx.form(*pairs)
        # The backward pass may run under the caller's autocast, even if the forward pass did not.
        with torch.autocast(grad.device.type, enabled=False):
            grad_q, grad_keys = form.mixture(grad, keys), form.outer(grad, q, len(keys))
        return (None, grad_q, grad_keys, *[None] * len(pairs))


class _Mixture(torch.autograd.Function):
    """Autograd function of :func:`mixture`, which saves only its inputs.

    The gradient of the weights consists of products with the values. The gradient of the values is a sum of
    outer products.
    """

    @staticmethod
    def forward(ctx: Any, form: Any, weights: Tensor, values: Tensor, *pairs: Tensor) -> Tensor:
        """Compute the weighted sums of values.

        Args:
            ctx: context, in which the inputs are saved for the backward pass.
            form: class that computes the sums, :class:`Gathered` or :class:`Blocks`.
            weights: weights [M, N * W] of the tokens.
            values: table [R, W, K] of values.
            *pairs: fields of ``form``.

        Returns:
            The sums [M, K].
        """
        ctx.form = form
        ctx.save_for_backward(weights, values, *pairs)
        return form(*pairs).mixture(weights, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Any, ...]:
        """Compute the gradients of weights and values.

        Args:
            ctx: context with the saved inputs.
            grad: gradient [M, K] of the sums.

        Returns:
            The gradient of each argument of :meth:`forward`, or None.
        """
        weights, values, *pairs = ctx.saved_tensors
        form = ctx.form(*pairs)
        with torch.autocast(grad.device.type, enabled=False):
            grad_weights, grad_values = form.scores(grad, values), form.outer(weights, grad, len(values))
        return (None, grad_weights, grad_values, *[None] * len(pairs))


class Gathered(NamedTuple):
    """Products of queries and segments with a gather for each query, which is fast for few queries.

    Each of M queries of width K reads N of R segments. A table [R, W, K] holds the keys or values of W tokens
    for each segment.

    Attributes:
        segment: segments [M, N] that each query reads.
    """

    segment: Tensor

    def scores(self, x: Tensor, table: Tensor) -> Tensor:
        """Compute the products of each query with the tokens of its segments.

        Args:
            x: queries [M, K].
            table: keys [R, W, K] of all segments.

        Returns:
            The products [M, N * W].
        """
        return torch.bmm(self._gather(table), x.unsqueeze(-1)).squeeze(-1)

    def mixture(self, weights: Tensor, table: Tensor) -> Tensor:
        """Compute the weighted sum of the tokens of each query's segments.

        Args:
            weights: weights [M, N * W] of the tokens.
            table: values [R, W, K] of all segments.

        Returns:
            The sums [M, K].
        """
        return torch.bmm(weights.unsqueeze(1), self._gather(table)).squeeze(1)

    def outer(self, weights: Tensor, x: Tensor, R: int) -> Tensor:
        """Compute the gradient of the table, a sum of outer products of weights and queries.

        Args:
            weights: weights [M, N * W] of the tokens.
            x: queries [M, K].
            R: number of segments in the table.

        Returns:
            The sums [R, W, K].
        """
        N = self.segment.size(1)
        products = weights.reshape(len(x) * N, -1, 1) * x.repeat_interleave(N, dim=0).unsqueeze(1)
        return products.new_zeros(R, *products.shape[1:]).index_add_(0, self.segment.flatten(), products)

    def _gather(self, table: Tensor) -> Tensor:
        """Gather the tokens of each query's segments.

        Args:
            table: keys or values [R, W, K] of all segments.

        Returns:
            The tokens [M, N * W, K].
        """
        return table.index_select(0, self.segment.flatten()).view(len(self.segment), -1, table.size(-1))


class Blocks(NamedTuple):
    """Products in blocks, for pairs of queries and segments that are sorted by segment.

    Pair p is query ``p // N`` with its segment number ``p % N``. A block has c places for pairs of one
    segment. Some places of a segment's last block, and whole surplus blocks at the end, are empty. There are
    always ``M N // c + R`` blocks, which is enough for any choice. No tensor size depends on the choice.

    Invariants: ``pair[place[p]] == p`` for every pair p, and ``block_segment[place[p] // c]`` is its segment.

    Example: M = 3 queries choose N = 2 of R = 3 segments each, ``segment = [[2, 0], [0, 1], [2, 0]]``, c = 2.
    Segment 0 has pairs 1, 2, 5, segment 1 has pair 3, segment 2 has pairs 0, 4. The blocks are::

        block            0      1      2      3      4      5
        block_segment    0      0      1      2      2      2
        pair             1 2    5 -    3 -    0 4    - -    - -    (- is stored as 6)
        place            [6, 0, 1, 4, 7, 2]

    Attributes:
        segment: segment [M, N] of each pair.
        block_segment: segment [blocks] of each block; arbitrary for surplus blocks.
        pair: pair [blocks * c] at each place of the blocks; M N at an empty place.
        place: place [M * N] of each pair.
    """

    segment: Tensor
    block_segment: Tensor
    pair: Tensor
    place: Tensor

    def scores(self, x: Tensor, table: Tensor) -> Tensor:
        """Compute the products of each query with the tokens of its segments.

        Args:
            x: queries [M, K].
            table: keys [R, W, K] of all segments.

        Returns:
            The products [M, N * W].
        """
        arranged = x.new_empty(len(self.block_segment), self._size(), table.size(1))
        for blocks, places in self._spans(x):
            keys = table.index_select(0, self.block_segment[blocks]).transpose(1, 2)
            torch.bmm(self._rows(x, places), keys, out=arranged[blocks])
        return arranged.flatten(0, 1).index_select(0, self.place).view(len(x), -1)

    def mixture(self, weights: Tensor, table: Tensor) -> Tensor:
        """Compute the weighted sum of the tokens of each query's segments.

        Args:
            weights: weights [M, N * W] of the tokens.
            table: values [R, W, K] of all segments.

        Returns:
            The sums [M, K].
        """
        arranged = table.new_empty(len(self.block_segment), self._size(), table.size(2))
        pair_weights = self._weights(weights)
        for blocks, _ in self._spans(table):
            values = table.index_select(0, self.block_segment[blocks])
            torch.bmm(pair_weights[blocks], values, out=arranged[blocks])
        arranged, place = arranged.flatten(0, 1), self.place.view_as(self.segment)
        if arranged.dtype == torch.bfloat16 and not _BAGS_IN_BFLOAT16:
            return F.embedding_bag(place, arranged.float(), mode="sum").to(arranged.dtype)
        return F.embedding_bag(place, arranged, mode="sum")

    def outer(self, weights: Tensor, x: Tensor, R: int) -> Tensor:
        """Compute the gradient of the table, a sum of outer products of weights and queries.

        Args:
            weights: weights [M, N * W] of the tokens.
            x: queries [M, K].
            R: number of segments in the table.

        Returns:
            The sums [R, W, K].
        """
        pair_weights = self._weights(weights).transpose(1, 2)
        sums = x.new_zeros(R, pair_weights.size(1), x.size(1))
        for blocks, places in self._spans(x):
            products = torch.bmm(pair_weights[blocks], self._rows(x, places))
            sums.index_add_(0, self.block_segment[blocks], products)
        return sums

    def _size(self) -> int:
        """Return c, the number of places in a block."""
        return len(self.pair) // len(self.block_segment)

    def _spans(self, x: Tensor) -> List[Tuple[slice, slice]]:
        """Return the groups of blocks that are computed together.

        On a CPU, the values that are gathered for a group fit into the cache.

        Args:
            x: tensor whose last dimension is the width of the gathered values.

        Returns:
            For each group, a pair of the slice of its blocks and the slice of its places.
        """
        c = self._size()
        size = len(self.block_segment) if x.is_cuda else max(1, IN_CACHE // (c * x.size(-1)))
        return [
            (span, slice(c * span.start, c * span.stop))
            for span in chunk_slices(len(self.block_segment), size)
        ]

    def _rows(self, x: Tensor, places: slice) -> Tensor:
        """Gather the queries of the pairs at some places of the blocks.

        The values at empty places are arbitrary.

        Args:
            x: M queries [M, K] of width K.
            places: places to gather, a multiple of the block size c.

        Returns:
            The queries [blocks, c, K].
        """
        row = (self.pair[places] // self.segment.size(1)).clamp(max=len(x) - 1)
        return x.index_select(0, row).unflatten(0, (-1, self._size()))

    def _weights(self, weights: Tensor) -> Tensor:
        """Gather the weights of the pair at each place of the blocks.

        The weights at empty places are 0.

        Args:
            weights: weights [M, N * W] of the tokens.

        Returns:
            The weights [blocks, c, W].
        """
        pair_weights = weights.reshape(self.segment.numel(), -1)
        arranged = torch.cat([pair_weights, pair_weights.new_zeros(1, pair_weights.size(1))]).index_select(
            0, self.pair
        )
        return arranged.unflatten(0, (len(self.block_segment), -1))


Pairs = Union[Gathered, Blocks]


def sort_into_blocks(segment: Tensor, R: int) -> Blocks:
    """Sort pairs by segment, and divide the pairs of each segment into blocks.

    Segment r has ``counts[r]`` pairs, which fill ``counts[r] / size`` blocks, rounded up. The blocks of
    segment r end before block ``ends[r]``, where the blocks of segment r + 1 begin. Within a segment, pairs
    keep their order.

    Args:
        segment: segment [M, N] of each pair, 0 to R - 1.
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
    # The segment of a block is the first whose blocks end after it; surplus blocks get the last segment.
    block = torch.arange(blocks, device=segment.device)
    block_segment = torch.searchsorted(ends, block, right=True).clamp(max=R - 1)
    return Blocks(segment, block_segment, pair, place)
