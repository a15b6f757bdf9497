"""Look-up attention: choice of the segments that each query attends to, and products with their tokens.

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
    """Return the indices [B, H, T, N] of the N segments whose rows have a query's largest logits.

    ``rows`` [B, H, T, L] are these logits, and N is ``number``, at most L. ``best_first`` sorts by logit.
    """
    rows = rows.detach()
    if packed_padding_mask is not None:
        rows = rows.masked_fill(packed_padding_mask[:, None, None, :], float("-inf"))
    return rows.topk(min(number, rows.size(-1)), dim=-1, sorted=best_first).indices


def read_chosen(
    segments: Segments, rows: Tensor, packed_padding_mask: Optional[Tensor], number: int
) -> "ChosenTokens":
    """Choose ``number`` segments for each query, and prepare the products with their tokens.

    Queries of a short context attend to its first segments, which have all its tokens. If a batch has a
    short context, all queries of the batch choose as many segments as the short context needs. In a long
    context, the segments after the first ``number`` are surplus, and are masked.
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

    Attributes:
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
        """Mask [B, H, T, M] of the tokens in a query's segments, True at padding and in surplus segments."""
        padding_mask = self._gather(self.segments.padding_mask)
        if self.unread is None:
            return padding_mask
        unread = self.unread.repeat_interleave(self.segments.padding_mask.size(2), dim=1)
        return padding_mask | unread[:, None, None, :]

    @property
    def place(self) -> Tensor:
        """Centres [B, H, T, M] of the tokens in a query's segments.

        Token t of the context has the centre t + 1/2.
        """
        return self._gather(self.segments.place)

    def scores(self, q: Tensor) -> Tensor:
        """Compute the dot products [B, H, T, M] of the queries with the keys of the tokens they attend to.

        These are the M tokens of the segments that the query has chosen. q is [B, H, T, K].
        """
        products = scores(self.pairs, q.flatten(0, 2), self.segments.key.flatten(0, 2))
        return products.view(*self.segment.shape[:3], -1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Compute the weighted sum [B, H, T, K] of the values of the M tokens that each query attends to.

        The weights are [B, H, T, M].
        """
        read = weighted_sum(self.pairs, weights.flatten(0, 2), self.segments.value.flatten(0, 2))
        return read.view(*self.segment.shape[:3], -1)

    def _gather(self, x: Tensor) -> Tensor:
        """Gather a number x [B, L, W] of each token for the M tokens that each query attends to."""
        B, L, _ = x.shape
        sentences = torch.arange(B, device=x.device) * L
        index = (self.segment + sentences.view(B, 1, 1, 1)).flatten()
        return x.flatten(0, 1).index_select(0, index).view(*self.segment.shape[:3], -1)
