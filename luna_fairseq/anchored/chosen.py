"""Look-up attention: choose the segments that each query attends to, and multiply with their tokens.

A query chooses the N of L segments whose rows have the largest logits, and attends to their M = N * W tokens
(segments.py). Other letters: batch size B, H heads of dimension K, T queries.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.anchored.pairs import Pairs, make_pairs, scores, weighted_sum
from luna_fairseq.anchored.segments import Segments, num_segments_read


def choose_segments(
    rows: Tensor, packed_padding_mask: Optional[Tensor], number: int, best_first: bool = False
) -> Tensor:
    """Return the indices [B, H, T, N] of the N text segments to whose tokens each query attends.

    They have the ``number`` largest logits in ``rows`` [B, H, T, L], if ``best_first`` sorted by logit.
    """
    rows = rows.detach()
    if packed_padding_mask is not None:
        rows = rows.masked_fill(packed_padding_mask[:, None, None, :], float("-inf"))
    return rows.topk(min(number, rows.size(-1)), dim=-1, sorted=best_first).indices


def read_chosen(
    segments: Segments, rows: Tensor, packed_padding_mask: Optional[Tensor], number: int
) -> "ChosenTokens":
    """Choose ``number`` text segments for each query, and prepare the products with their tokens.

    rows: logits [B, H, T, L] by which segments are chosen. In a short context, queries attend to all tokens,
    which are in its first segments. If a batch has a short context, all its queries get as many segments as
    this requires. In a long context, the segments after the first ``number`` are surplus, and are masked.
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
    """Tokens of the N text segments that each query has chosen in look-up attention.

    Attributes:
        segments: keys and values of all tokens, arranged by segment.
        segment: indices [B, H, T, N] of the chosen segments.
        pairs: the same choice, arranged for fast products.
        unread: mask [B, N], True at the surplus segments of long contexts (see :func:`read_chosen`).
    """

    segments: Segments
    segment: Tensor
    pairs: Pairs
    unread: Optional[Tensor] = None

    @property
    def masked(self) -> Tensor:
        """Mask [B, H, T, M] of the M tokens that each query has chosen, True at padding or surplus tokens."""
        padding_mask = self._gather(self.segments.padding_mask)
        if self.unread is None:
            return padding_mask
        unread = self.unread.repeat_interleave(self.segments.padding_mask.size(2), dim=1)
        return padding_mask | unread[:, None, None, :]

    @property
    def place(self) -> Tensor:
        """Positions [B, H, T, M] in the context of the M tokens that each query has chosen.

        Token t of the context has the position t + 1/2.
        """
        return self._gather(self.segments.place)

    def scores(self, q: Tensor) -> Tensor:
        """Compute the dot products [B, H, T, M] of queries with the keys of the M tokens they have chosen.

        q: queries [B, H, T, K].
        """
        products = scores(self.pairs, q.flatten(0, 2), self.segments.key.flatten(0, 2))
        return products.view(*self.segment.shape[:3], -1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Compute the weighted sum [B, H, T, K] of the values of the M tokens that each query has chosen.

        weights: attention weights [B, H, T, M].
        """
        read = weighted_sum(self.pairs, weights.flatten(0, 2), self.segments.value.flatten(0, 2))
        return read.view(*self.segment.shape[:3], -1)

    def _gather(self, x: Tensor) -> Tensor:
        """Gather a number of each token, x [B, L, W], for the M tokens that each query has chosen."""
        B, L, _ = x.shape
        sentences = torch.arange(B, device=x.device) * L
        index = (self.segment + sentences.view(B, 1, 1, 1)).flatten()
        return x.flatten(0, 1).index_select(0, index).view(*self.segment.shape[:3], -1)
