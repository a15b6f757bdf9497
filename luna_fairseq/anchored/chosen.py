"""Look-up attention: choice of the segments that each query attends to, and products with their tokens.

The context is divided into L segments, runs of consecutive tokens. Row i of the packed sequence P summarizes
segment i. A query chooses the segments whose rows have the largest logits, and attends to their tokens.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.anchored.pairs import Pairs, make_pairs, scores, weighted_sum
from luna_fairseq.anchored.segments import Segments, num_segments_read


def choose_segments(
    rows: Tensor, packed_padding_mask: Optional[Tensor], number: int, best_first: bool = False
) -> Tensor:
    """Choose the segments of the context whose tokens each query attends to in a look-up.

    A segment is a run of consecutive tokens, and row i of the packed sequence P summarizes segment i. Each
    query and head chooses the segments whose rows have the largest logits. No gradient flows through the
    choice.

    Shapes: batch size B, H heads, T queries, L rows of P.

    Args:
        rows: attention logits [B, H, T, L] of the rows.
        packed_padding_mask: mask [B, L], True at padded rows, or None if there is no padding.
        number: number of segments to choose. If there are fewer segments, all are chosen.
        best_first: sort the chosen segments by decreasing logits (default: False, any order).

    Returns:
        Indices [B, H, T, N] of the N chosen segments.
    """
    rows = rows.detach()
    if packed_padding_mask is not None:
        rows = rows.masked_fill(packed_padding_mask[:, None, None, :], float("-inf"))
    return rows.topk(min(number, rows.size(-1)), dim=-1, sorted=best_first).indices


def read_chosen(
    segments: Segments, rows: Tensor, packed_padding_mask: Optional[Tensor], number: int
) -> "ChosenTokens":
    """Choose the segments whose tokens each query attends to, and prepare the products with their tokens.

    A segment is a run of consecutive tokens, and row i of the packed sequence P summarizes segment i. Each
    query and head chooses the ``number`` segments whose rows have the largest logits.

    A context of at most 64 tokens is short. Its tokens fill the first segments, and its queries attend to all
    of them, regardless of the logits. All queries of a batch use the same number of segments, which is enough
    for 64 tokens if the batch contains short contexts. The surplus segments of long contexts are masked.

    Shapes: batch size B, H heads of dimension K, T queries, L rows of P, at most W tokens in a segment.

    Args:
        segments: keys and values [B, H, L, W, K] of the context tokens, arranged by segment.
        rows: attention logits [B, H, T, L] of the rows.
        packed_padding_mask: mask [B, L], True at padded rows, or None if there is no padding.
        number: number of segments that each query chooses.

    Returns:
        The chosen segments of each query, with methods that compute dot products with their keys and weighted
        sums of their values.
    """
    B, H, L, W = segments.key.shape[:4]
    N = num_segments_read(number, L, W, segments.is_short is not None)
    chosen = choose_segments(rows, packed_padding_mask, N, best_first=N > number)
    unread = None
    if segments.is_short is not None:
        slot, is_short = torch.arange(N, device=chosen.device), segments.is_short[:, None]
        chosen = torch.where(is_short[:, :, None, None], slot, chosen)
        unread = (slot >= number) & ~is_short if N > number else None
    heads = torch.arange(B * H, device=chosen.device) * L
    table_rows = chosen + heads.view(B, H, 1, 1)  # index among the segments of all sentences and heads
    return ChosenTokens(segments, chosen, make_pairs(table_rows.flatten(0, 2), B * H * L), unread)


class ChosenTokens(NamedTuple):
    """Tokens of the segments chosen by each query in look-up attention.

    A segment is a run of at most W consecutive tokens. Each query and head has chosen N of the L segments,
    and thus attends to M = N * W tokens.

    Shapes: batch size B, H heads of dimension K, T queries.

    Attributes:
        segments: keys and values [B, H, L, W, K] of the context tokens, arranged by segment.
        segment: indices [B, H, T, N] of the chosen segments.
        pairs: the same choice, arranged for fast products: a :class:`luna_fairseq.anchored.pairs.Blocks` or
            :class:`luna_fairseq.anchored.pairs.Gathered`.
        unread: mask [B, N], True at chosen segments whose tokens are masked (default: None, no segment is
            masked).
    """

    segments: Segments
    segment: Tensor
    pairs: Pairs
    unread: Optional[Tensor] = None

    @property
    def masked(self) -> Tensor:
        """Mask [B, H, T, M] of the M tokens of each query, True where a segment has no token or is ignored.

        B is the batch size. The mask has one entry for each of H heads and T queries, and M = N * W for N
        chosen segments of W tokens.
        """
        padding_mask = self._gather(self.segments.padding_mask)
        if self.unread is None:
            return padding_mask
        unread = self.unread.repeat_interleave(self.segments.padding_mask.size(2), dim=1)
        return padding_mask | unread[:, None, None, :]

    @property
    def place(self) -> Tensor:
        """Centre [B, H, T, M] of each of the M tokens of each query, in tokens from the start of the context.

        B is the batch size, and there are H heads and T queries. Used by a diagonal prior, a bias that
        favours tokens near the position expected for each query.
        """
        return self._gather(self.segments.place)

    def scores(self, q: Tensor) -> Tensor:
        """Compute the dot products of each query with the keys of the tokens in its chosen segments.

        Args:
            q: queries [B, H, T, K], for batch size B, H heads of dimension K and T queries.

        Returns:
            Dot products [B, H, T, M], where M is the number of tokens per query.
        """
        products = scores(self.pairs, q.flatten(0, 2), self.segments.key.flatten(0, 2))
        return products.view(*self.segment.shape[:3], -1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Compute, for each query, the weighted sum of the values of the tokens in its chosen segments.

        Args:
            weights: attention weights [B, H, T, M], for batch size B, H heads, T queries and M tokens per
                query.

        Returns:
            Weighted sums [B, H, T, K], where K is the dimension of the values.
        """
        read = weighted_sum(self.pairs, weights.flatten(0, 2), self.segments.value.flatten(0, 2))
        return read.view(*self.segment.shape[:3], -1)

    def _gather(self, x: Tensor) -> Tensor:
        """Gather the masks or positions of the tokens in the segments chosen by each query.

        Args:
            x: one value [B, L, W] for each of the W tokens of L segments, for batch size B.

        Returns:
            Values [B, H, T, M] of the M tokens of each query, for H heads and T queries.
        """
        B, L, _ = x.shape
        sentences = torch.arange(B, device=x.device) * L
        index = (self.segment + sentences.view(B, 1, 1, 1)).flatten()
        return x.flatten(0, 1).index_select(0, index).view(*self.segment.shape[:3], -1)
