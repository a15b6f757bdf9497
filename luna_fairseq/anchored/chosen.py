"""The segments that each query chooses, and its products with their tokens.

Of what was ``chosen`` [B, H, T, N] :class:`ChosenTokens` is what a query meets, M = N W tokens. How its
products are made: ``pairs.py``.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.anchored.pairs import Pairs, mixture, pair_up, scores
from luna_fairseq.anchored.segments import Segments


def chosen_segments(rows: Tensor, packed_padding_mask: Optional[Tensor], number: int) -> Tensor:
    """The segments with the largest of the logits ``rows`` [B, H, T, L]: [B, H, T, N]. No gradient passes
    through the choice."""
    rows = rows.detach()
    if packed_padding_mask is not None:
        rows = rows.masked_fill(packed_padding_mask[:, None, None, :], float("-inf"))
    return rows.topk(min(number, rows.size(-1)), dim=-1, sorted=False).indices


def read_chosen(segments: Segments, chosen: Tensor) -> "ChosenTokens":
    """The tokens of the ``segments`` that were ``chosen`` [B, H, T, N]."""
    B, H, L = segments.key.shape[:3]
    heads = torch.arange(B * H, device=chosen.device) * L
    rows = chosen + heads.view(B, H, 1, 1)  # of a table of the segments of all sentences and heads
    return ChosenTokens(segments, chosen, pair_up(rows.flatten(0, 2), B * H * L))


class ChosenTokens(NamedTuple):
    """Every query meets the tokens of the segments that it chose.

    Attributes:
        segments: the tokens of all segments
        segment: what was chosen [B, H, T, N]
        pairs: queries with a segment of the table of all segments
    """

    segments: Segments
    segment: Tensor
    pairs: Pairs

    @property
    def left_out(self) -> Tensor:
        """True at tokens that are not there [B, H, T, M]."""
        return self._of_tokens(self.segments.empty)

    @property
    def place(self) -> Tensor:
        """Where the tokens stand, for a diagonal [B, H, T, M]."""
        return self._of_tokens(self.segments.place)

    def scores(self, q: Tensor) -> Tensor:
        """Products of queries [B, H, T, K] with keys [B, H, T, M]."""
        of_pairs = scores(self.pairs, q.flatten(0, 2), self.segments.key.flatten(0, 2))
        return of_pairs.view(*self.segment.shape[:3], -1)

    def mixture(self, weights: Tensor) -> Tensor:
        """Values by weights [B, H, T, M]: [B, H, T, K]."""
        read = mixture(self.pairs, weights.flatten(0, 2), self.segments.value.flatten(0, 2))
        return read.view(*self.segment.shape[:3], -1)

    def _of_tokens(self, x: Tensor) -> Tensor:
        """What ``x`` [B, L, W] says of the tokens that are met [B, H, T, M]."""
        B, L, _ = x.shape
        sentences = torch.arange(B, device=x.device) * L
        index = (self.segment + sentences.view(B, 1, 1, 1)).flatten()
        return x.flatten(0, 1).index_select(0, index).view(*self.segment.shape[:3], -1)
