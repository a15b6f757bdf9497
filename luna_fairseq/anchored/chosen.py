"""Look-up attention: choose segments for each query, and attend to the tokens of the segments.

The context is divided into L segments of at most W tokens (segments.py). A query chooses N segments, those
whose rows in the packed context have the largest logits, and attends to their M = N * W tokens. In a short
context, of at most 64 tokens, queries attend to all tokens. Shapes: batch size B, H heads of dimension K, T
queries.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.anchored.pairs import Pairs, make_pairs, scores, weighted_sum
from luna_fairseq.anchored.segments import Segments, num_segments_read


def choose_segments(
    rows: Tensor, packed_padding_mask: Optional[Tensor], number: int, best_first: bool = False
) -> Tensor:
    """Return the indices [B, H, T, N] of the ``number`` segments with the largest logits for each query.

    ``rows`` [B, H, T, L] holds the logits of T queries for L segments, and N is the smaller of ``number`` and
    L. ``packed_padding_mask`` [B, L] is True at segments that must not be chosen. With ``best_first``, the
    indices are sorted by decreasing logit.
    """
    rows = rows.detach()
    if packed_padding_mask is not None:
        rows = rows.masked_fill(packed_padding_mask[:, None, None, :], float("-inf"))
    return rows.topk(min(number, rows.size(-1)), dim=-1, sorted=best_first).indices


def read_chosen(
    segments: Segments, rows: Tensor, packed_padding_mask: Optional[Tensor], number: int
) -> "ChosenTokens":
    """Choose the segments whose tokens each query attends to, and prepare the products with these tokens.

    ``segments`` holds the keys and values of the tokens of L segments. Each of T queries chooses the
    ``number`` segments with the largest logits in ``rows`` [B, H, T, L]. ``packed_padding_mask`` [B, L] is
    True at segments that must not be chosen.

    The tokens of a short context fill the first segments. If these are more than ``number`` segments, queries
    of longer contexts in the batch choose as many, but attend only to the best ``number`` of them. The others
    are masked.
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
    """Tokens of the N text segments that each query has chosen and attends to.

    Attributes:
        segments: keys and values of the tokens of all segments.
        segment: indices [B, H, T, N] of the chosen segments.
        pairs: (query, chosen segment) pairs, grouped by segment for fast matrix products.
        unread: mask [B, N], True at chosen segments that a query must not attend to. Long contexts have such
            segments if a short context in the batch needs more segments. None if no segment is masked.
    """

    segments: Segments
    segment: Tensor
    pairs: Pairs
    unread: Optional[Tensor] = None

    @property
    def masked(self) -> Tensor:
        """Mask [B, H, T, M], True at tokens of chosen segments that a query must not attend to."""
        padding_mask = self._gather(self.segments.padding_mask)
        if self.unread is None:
            return padding_mask
        unread = self.unread.repeat_interleave(self.segments.padding_mask.size(2), dim=1)
        return padding_mask | unread[:, None, None, :]

    @property
    def place(self) -> Tensor:
        """Positions [B, H, T, M] of the M tokens chosen by each query. Token t is at position t + 1/2."""
        return self._gather(self.segments.place)

    def scores(self, q: Tensor) -> Tensor:
        """Compute the dot products [B, H, T, M] of each query in q [B, H, T, K] with its M chosen keys."""
        products = scores(self.pairs, q.flatten(0, 2), self.segments.key.flatten(0, 2))
        return products.view(*self.segment.shape[:3], -1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum the values of each query's M tokens with ``weights`` [B, H, T, M]. Return [B, H, T, K]."""
        read = weighted_sum(self.pairs, weights.flatten(0, 2), self.segments.value.flatten(0, 2))
        return read.view(*self.segment.shape[:3], -1)

    def _gather(self, x: Tensor) -> Tensor:
        """Gather the values [B, H, T, M] of the chosen tokens from x [B, L, W], one value per token."""
        B, L, _ = x.shape
        sentences = torch.arange(B, device=x.device) * L
        index = (self.segment + sentences.view(B, 1, 1, 1)).flatten()
        return x.flatten(0, 1).index_select(0, index).view(*self.segment.shape[:3], -1)
