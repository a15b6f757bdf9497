"""Selection of the context segments that each query of a look-up reads, and access to their tokens.

A query reads N segments of W tokens, M = N W tokens in all. ``pairs.py`` computes the products of queries and
tokens.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.anchored.pairs import Pairs, make_pairs, mixture, scores
from luna_fairseq.anchored.segments import Segments, num_segments_read


def chosen_segments(
    rows: Tensor, packed_padding_mask: Optional[Tensor], number: int, best_first: bool = False
) -> Tensor:
    """Choose the segments whose rows of P have the largest logits, for each query and head.

    No gradient passes through the choice. B is the batch size, H the number of heads, T the number of
    queries, and L the number of rows of the packed sequence P.

    Args:
        rows: logits [B, H, T, L] of the rows of P.
        packed_padding_mask: mask [B, L], True at masked rows of P; None if no row is masked.
        number: number of segments to choose; all segments are chosen if there are fewer.
        best_first: sort the chosen segments by decreasing logits (default: False, in any order).

    Returns:
        The indices [B, H, T, N] of the N chosen segments.
    """
    rows = rows.detach()
    if packed_padding_mask is not None:
        rows = rows.masked_fill(packed_padding_mask[:, None, None, :], float("-inf"))
    return rows.topk(min(number, rows.size(-1)), dim=-1, sorted=best_first).indices


def read_chosen(
    segments: Segments, rows: Tensor, packed_padding_mask: Optional[Tensor], number: int
) -> "ChosenTokens":
    """Choose the segments that each query reads, and prepare the products with their tokens.

    A query to a short context reads the first segments, which hold all of its tokens, regardless of the
    logits. If these are more than ``number`` segments, queries to long contexts get the same number of
    segments, and the tokens of the surplus segments are masked.

    Args:
        segments: tokens of all segments.
        rows: logits [B, H, T, L] of the rows of the packed sequence P.
        packed_padding_mask: mask [B, L] of P, True at masked rows; None if no row is masked.
        number: number of segments that each query chooses.

    Returns:
        The chosen tokens, see :class:`ChosenTokens` for the shapes.
    """
    B, H, L, W = segments.key.shape[:4]
    N = num_segments_read(number, L, W, segments.is_short is not None)
    chosen = chosen_segments(rows, packed_padding_mask, N, best_first=N > number)
    unread = None
    if segments.is_short is not None:
        slot, is_short = torch.arange(N, device=chosen.device), segments.is_short[:, None]
        chosen = torch.where(is_short[:, :, None, None], slot, chosen)
        unread = (slot >= number) & ~is_short if N > number else None
    heads = torch.arange(B * H, device=chosen.device) * L
    table_rows = chosen + heads.view(B, H, 1, 1)  # in a table of the segments of all sentences and heads
    return ChosenTokens(segments, chosen, make_pairs(table_rows.flatten(0, 2), B * H * L), unread)


class ChosenTokens(NamedTuple):
    """Tokens of the segments that each query of a look-up has chosen.

    Each query has chosen N of L segments with W tokens each, M = N W tokens in all. B is the batch size, H
    the number of heads, and T the number of queries.

    Attributes:
        segments: tokens of all segments.
        segment: indices [B, H, T, N] of the chosen segments.
        pairs: pairs of a query and a segment, in the table of all segments.
        unread: mask [B, N], True at chosen segments whose tokens are masked (default: None, no segment is
            masked).
    """

    segments: Segments
    segment: Tensor
    pairs: Pairs
    unread: Optional[Tensor] = None

    @property
    def masked(self) -> Tensor:
        """Mask [B, H, T, M] of the chosen tokens, True at empty places and in unread segments."""
        padding_mask = self._gather(self.segments.padding_mask)
        if self.unread is None:
            return padding_mask
        unread = self.unread.repeat_interleave(self.segments.padding_mask.size(2), dim=1)
        return padding_mask | unread[:, None, None, :]

    @property
    def place(self) -> Tensor:
        """Place [B, H, T, M] of the middle of each chosen token, in tokens from the beginning.

        A diagonal prior reads these places.
        """
        return self._gather(self.segments.place)

    def scores(self, q: Tensor) -> Tensor:
        """Compute the products of each query with the keys of its tokens.

        Args:
            q: queries [B, H, T, K].

        Returns:
            The products [B, H, T, M].
        """
        products = scores(self.pairs, q.flatten(0, 2), self.segments.key.flatten(0, 2))
        return products.view(*self.segment.shape[:3], -1)

    def mixture(self, weights: Tensor) -> Tensor:
        """Compute the weighted sum of the values of each query's tokens.

        Args:
            weights: attention weights [B, H, T, M] of the tokens.

        Returns:
            The sums [B, H, T, K].
        """
        read = mixture(self.pairs, weights.flatten(0, 2), self.segments.value.flatten(0, 2))
        return read.view(*self.segment.shape[:3], -1)

    def _gather(self, x: Tensor) -> Tensor:
        """Gather the values of the tokens in the chosen segments.

        Args:
            x: values [B, L, W] of all tokens, by segment.

        Returns:
            The values [B, H, T, M] for each query.
        """
        B, L, _ = x.shape
        sentences = torch.arange(B, device=x.device) * L
        index = (self.segment + sentences.view(B, 1, 1, 1)).flatten()
        return x.flatten(0, 1).index_select(0, index).view(*self.segment.shape[:3], -1)
