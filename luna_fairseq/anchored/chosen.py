"""Look-up attention: choice of the segments that each query attends to, and products with their tokens.

The context is divided into equal segments, one per row of the packed sequence P. A query chooses the segments
whose rows have the largest logits.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.anchored.pairs import Pairs, make_pairs, scores, weighted_sum
from luna_fairseq.anchored.segments import Segments, num_segments_read


def choose_segments(
    rows: Tensor, packed_padding_mask: Optional[Tensor], number: int, best_first: bool = False
) -> Tensor:
    """Choose the segments of the context that each query and head attends to in a look-up.

    Row i of the packed sequence P summarizes segment i. The segments whose rows have the largest logits are
    chosen. No gradient flows through the choice.

    Shapes: batch size B, H heads, T queries, L rows of P.

    Args:
        rows: logits [B, H, T, L] of the rows.
        packed_padding_mask: mask [B, L], True at padding rows, or None if there is no padding.
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
    """Choose the segments that each query attends to, and prepare the products with their tokens.

    A context of at most 64 tokens is short. Its tokens fill the first segments, and its queries attend to all
    of them, regardless of the logits. All queries of a batch use the same number of segments, which is enough
    for 64 tokens if the batch contains short contexts. The surplus segments of long contexts are masked.

    Args:
        segments: keys and values of the context tokens, arranged by segment.
        rows: logits [B, H, T, L] of the rows of the packed sequence P, for batch size B, H heads, T queries
            and L rows.
        packed_padding_mask: mask [B, L], True at padding rows, or None if there is no padding.
        number: number of segments that each query chooses.

    Returns:
        The chosen segments of each query, with methods for products with their tokens.
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

    Shapes: batch size B, H heads of width K, T queries. Each query has chosen N of L segments, with W tokens
    each, and thus M = N * W tokens.

    Attributes:
        segments: keys and values of the context tokens, arranged by segment.
        segment: indices [B, H, T, N] of the chosen segments.
        pairs: the same choice in the layout used to compute products, see ``pairs.py``.
        unread: mask [B, N], True at chosen segments whose tokens are masked (default: None, no segment is
            masked).
    """

    segments: Segments
    segment: Tensor
    pairs: Pairs
    unread: Optional[Tensor] = None

    @property
    def masked(self) -> Tensor:
        """Mask of the tokens of each query, True at unused slots of a segment and in ignored segments.

        Shape [B, H, T, M] for batch size B, H heads, T queries and M tokens per query.
        """
        padding_mask = self._gather(self.segments.padding_mask)
        if self.unread is None:
            return padding_mask
        unread = self.unread.repeat_interleave(self.segments.padding_mask.size(2), dim=1)
        return padding_mask | unread[:, None, None, :]

    @property
    def place(self) -> Tensor:
        """Centre of each token of each query, for a diagonal prior.

        Measured in tokens from the start of the context. Shape [B, H, T, M] for batch size B, H heads, T
        queries and M tokens per query.
        """
        return self._gather(self.segments.place)

    def scores(self, q: Tensor) -> Tensor:
        """Compute the dot product of each query with the keys of the tokens it attends to.

        Args:
            q: queries [B, H, T, K], for batch size B, H heads of width K and T queries.

        Returns:
            Dot products [B, H, T, M], where M is the number of tokens per query.
        """
        products = scores(self.pairs, q.flatten(0, 2), self.segments.key.flatten(0, 2))
        return products.view(*self.segment.shape[:3], -1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Compute the weighted sum of the values of each query's tokens.

        Args:
            weights: attention weights [B, H, T, M], for batch size B, H heads, T queries and M tokens per
                query.

        Returns:
            Weighted sums [B, H, T, K] of width K.
        """
        read = weighted_sum(self.pairs, weights.flatten(0, 2), self.segments.value.flatten(0, 2))
        return read.view(*self.segment.shape[:3], -1)

    def _gather(self, x: Tensor) -> Tensor:
        """Gather the values of all tokens in the segments chosen by each query.

        Args:
            x: values [B, L, W] of the W tokens of L segments, for batch size B.

        Returns:
            Values [B, H, T, M] of the M tokens of each of T queries and H heads.
        """
        B, L, _ = x.shape
        sentences = torch.arange(B, device=x.device) * L
        index = (self.segment + sentences.view(B, 1, 1, 1)).flatten()
        return x.flatten(0, 1).index_select(0, index).view(*self.segment.shape[:3], -1)
