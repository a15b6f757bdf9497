"""Dot products and weighted sums between queries and the tokens of a few segments, computed in blocks.

A sequence is divided into R segments, each a run of at most W consecutive tokens. A table [R, W, K] holds one
key (or value) vector of dimension K per token, padded to W tokens per segment. Each of M queries attends to
the tokens of N of the R segments, whose indices are ``segment`` [M, N]. The attention weights or logits of
all queries are [M, N * W].

A pair consists of a query and one of its segments. Pairs with the same segment are multiplied together in
blocks, so that the tokens of a segment are not gathered once per query.
"""

from typing import Any, List, NamedTuple, Tuple, Union

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.attention import disable_autocast
from luna_fairseq.ops.chunks import chunk_slices
from luna_fairseq.ops.forms import Form, FormTable, otherwise
from luna_fairseq.ops.second_derivatives import refuse_second_derivatives

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
    """Return (query, segment) pairs, gathered per query or sorted into blocks, whichever is faster.

    ``segment`` [M, N] holds, for each of M queries, the indices (below R) of the N segments it attends to.
    """
    return Gathered(segment) if PAIR_FORMS.choose(segment, R) == "gathered" else sort_into_blocks(segment, R)


PAIR_FORMS = FormTable(
    "products of queries with the tokens of their segments",
    Form(
        "gathered",
        "fewer than two queries for an average segment",
        "sorting the pairs; the tokens are copied for every query",
        lambda segment, R: segment.numel() < 2 * R,
    ),
    Form("blocks", "otherwise", "copies of the tokens for every query", otherwise),
)


def scores(pairs: "Pairs", q: Tensor, keys: Tensor) -> Tensor:
    """Return the dot products [M, N * W] of queries q [M, K] with the keys of the tokens they attend to.

    ``pairs`` holds the N segments of W tokens for each of the M queries, and ``keys`` [R, W, K] the keys of
    all R segments.
    """
    with disable_autocast(q.device):
        return _Scores.apply(type(pairs), q, keys, *pairs)


def weighted_sum(pairs: "Pairs", weights: Tensor, values: Tensor) -> Tensor:
    """Sum the values of the tokens that each of M queries attends to, weighted by ``weights`` [M, N * W].

    ``pairs`` holds each query's N segments of W tokens, and ``values`` [R, W, K] all values. Return [M, K].
    """
    with disable_autocast(weights.device):
        return _WeightedSum.apply(type(pairs), weights, values, *pairs)


class _Scores(torch.autograd.Function):
    """Autograd function of :func:`scores` that saves only its inputs for the backward pass."""

    @staticmethod
    def forward(ctx: Any, pairs_class: Any, q: Tensor, keys: Tensor, *pairs: Tensor) -> Tensor:
        ctx.pairs_class = pairs_class
        ctx.save_for_backward(q, keys, *pairs)
        return pairs_class(*pairs).scores(q, keys)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Any, ...]:
        refuse_second_derivatives("Look-up attention", "Use --packed-lookup 0")
        q, keys, *pairs = ctx.saved_tensors
        products = ctx.pairs_class(*pairs)
        # The backward pass may run under the caller's autocast, even if the forward pass did not.
        with disable_autocast(grad.device):
            grad_q = products.weighted_sum(grad, keys)
            grad_keys = products.sum_outer_products(grad, q, len(keys))
        return (None, grad_q, grad_keys, *[None] * len(pairs))


class _WeightedSum(torch.autograd.Function):
    """Autograd function of :func:`weighted_sum` that saves only its inputs for the backward pass."""

    @staticmethod
    def forward(ctx: Any, pairs_class: Any, weights: Tensor, values: Tensor, *pairs: Tensor) -> Tensor:
        ctx.pairs_class = pairs_class
        ctx.save_for_backward(weights, values, *pairs)
        return pairs_class(*pairs).weighted_sum(weights, values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Any, ...]:
        refuse_second_derivatives("Look-up attention", "Use --packed-lookup 0")
        weights, values, *pairs = ctx.saved_tensors
        products = ctx.pairs_class(*pairs)
        with disable_autocast(grad.device):
            grad_weights = products.scores(grad, values)
            grad_values = products.sum_outer_products(weights, grad, len(values))
        return (None, grad_weights, grad_values, *[None] * len(pairs))


class Gathered(NamedTuple):
    """(query, segment) pairs for which the tokens of the segments are copied separately for each query.

    Copies are fast if there are few queries. ``segment`` [M, N] holds the indices of the N segments that each
    of M queries attends to.
    """

    segment: Tensor

    def scores(self, x: Tensor, table: Tensor) -> Tensor:
        """Return the dot products [M, N * W] of queries x [M, K] with the keys of the tokens they attend to.

        ``table`` [R, W, K] holds the keys of R segments of W tokens. Each query attends to N segments.
        """
        return torch.bmm(self._gather(table), x.unsqueeze(-1)).squeeze(-1)

    def weighted_sum(self, weights: Tensor, table: Tensor) -> Tensor:
        """Sum the values of the tokens that each query attends to, weighted by ``weights`` [M, N * W].

        ``table`` [R, W, K] holds the values of R segments of W tokens. The result is [M, K].
        """
        return torch.bmm(weights.unsqueeze(1), self._gather(table)).squeeze(1)

    def sum_outer_products(self, weights: Tensor, x: Tensor, R: int) -> Tensor:
        """Compute the gradient [R, W, K] of the keys or values in R segments of W tokens.

        For each token, sum ``weight * x`` over the queries that attend to the token. ``weights`` [M, N * W]
        has one entry per query and token, for M queries with N segments each. x [M, K] holds the queries (for
        the keys) or the gradients of the outputs (for the values).
        """
        N = self.segment.size(1)
        products = weights.reshape(len(x) * N, -1, 1) * x.repeat_interleave(N, dim=0).unsqueeze(1)
        return products.new_zeros(R, *products.shape[1:]).index_add_(0, self.segment.flatten(), products)

    def _gather(self, table: Tensor) -> Tensor:
        """Gather from ``table`` [R, W, K] the vectors [M, N * W, K] of the tokens each query attends to."""
        return table.index_select(0, self.segment.flatten()).view(len(self.segment), -1, table.size(-1))


class Blocks(NamedTuple):
    """(query, segment) pairs in blocks that share a segment, so that a block needs one matrix product.

    Pair p consists of query ``p // N`` and the segment in column ``p % N`` of ``segment``. Pairs are sorted
    by segment and divided into blocks of c pairs with the same segment. The last block of a segment may be
    partly empty. There are always ``M * N // c + R`` blocks, so that no tensor shape depends on which
    segments are chosen.

    Example: with c = 2, M = 3 queries attend to N = 2 of R = 3 segments each: ``segment`` is [[2, 0], [0, 1],
    [2, 0]]. Segment 0 has pairs 1, 2, 5, segment 1 has pair 3, segment 2 has pairs 0, 4. The blocks are::

        block            0      1      2      3      4      5
        block_segment    0      0      1      2      2      2
        pair             1 2    5 -    3 -    0 4    - -    - -    (- is stored as 6)
        place            [6, 0, 1, 4, 7, 2]

    ``block_segment`` holds the segment of each block, and ``pair`` the pair at each position of all blocks.
    ``place[p]`` is the position of pair p in ``pair``.
    """

    segment: Tensor
    block_segment: Tensor
    pair: Tensor
    place: Tensor

    def scores(self, x: Tensor, table: Tensor) -> Tensor:
        arranged = x.new_empty(len(self.block_segment), self._block_size(), table.size(1))
        for blocks, places in self._split_blocks(x):
            keys = table.index_select(0, self.block_segment[blocks]).transpose(1, 2)
            torch.bmm(self._gather_queries(x, places), keys, out=arranged[blocks])
        return arranged.flatten(0, 1).index_select(0, self.place).view(len(x), -1)

    def weighted_sum(self, weights: Tensor, table: Tensor) -> Tensor:
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
        pair_weights = self._gather_weights(weights).transpose(1, 2)
        sums = x.new_zeros(R, pair_weights.size(1), x.size(1))
        for blocks, places in self._split_blocks(x):
            products = torch.bmm(pair_weights[blocks], self._gather_queries(x, places))
            sums.index_add_(0, self.block_segment[blocks], products)
        return sums

    def _block_size(self) -> int:
        """Return the number of pairs that fit into a block."""
        return len(self.pair) // len(self.block_segment)

    def _split_blocks(self, x: Tensor) -> List[Tuple[slice, slice]]:
        """Split the blocks into groups that are small enough for a CPU's cache. On a GPU, return one group.

        A group of consecutive blocks is computed by one batched product with vectors gathered from x
        [..., K]. Return two slices for each group: the indices of its blocks, and the entries of ``pair`` in
        these blocks.
        """
        c = self._block_size()
        size = len(self.block_segment) if x.is_cuda else max(1, IN_CACHE // (c * x.size(-1)))
        return [
            (span, slice(c * span.start, c * span.stop))
            for span in chunk_slices(len(self.block_segment), size)
        ]

    def _gather_queries(self, x: Tensor, places: slice) -> Tensor:
        """Gather the queries of some blocks from x [M, K], as [blocks, c, K] for c pairs in a block.

        The slice ``places`` of ``pair`` selects the blocks. The result is undefined at empty positions.
        """
        row = (self.pair[places] // self.segment.size(1)).clamp(max=len(x) - 1)
        return x.index_select(0, row).unflatten(0, (-1, self._block_size()))

    def _gather_weights(self, weights: Tensor) -> Tensor:
        """Arrange weights [M, N * W] by block, as [blocks, c, W], with 0 at empty positions of a block."""
        pair_weights = weights.reshape(self.segment.numel(), -1)
        arranged = torch.cat([pair_weights, pair_weights.new_zeros(1, pair_weights.size(1))]).index_select(
            0, self.pair
        )
        return arranged.unflatten(0, (len(self.block_segment), -1))


Pairs = Union[Gathered, Blocks]


def sort_into_blocks(segment: Tensor, R: int) -> Blocks:
    """Sort (query, segment) pairs by segment, and divide them into blocks of a single segment each.

    ``segment`` [M, N] holds the indices of each query's segments, out of R. Within a segment, queries keep
    their order.
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
