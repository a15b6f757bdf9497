"""The parts that each query chooses, and its products with their tokens.

Of what was ``chosen`` [B, H, T, N] :class:`ChosenTokens` is what a query meets, M = N W tokens. How its
products are made: ``pairs.py``.
"""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.ops.luna.pairs import mixture, pair_up, scores
from luna_fairseq.ops.luna.parts import Parts


def chosen_parts(rows: Tensor, packed_padding_mask: Optional[Tensor], number: int) -> Tensor:
    """The parts with the largest of the logits ``rows`` [B, H, T, L]: [B, H, T, N]. No gradient passes
    through the choice."""
    rows = rows.detach()
    if packed_padding_mask is not None:
        rows = rows.masked_fill(packed_padding_mask[:, None, None, :], float("-inf"))
    return rows.topk(min(number, rows.size(-1)), dim=-1, sorted=False).indices


def read_chosen(parts: Parts, chosen: Tensor) -> "ChosenTokens":
    """The tokens of the ``parts`` that were ``chosen`` [B, H, T, N]."""
    B, H, L = parts.key.shape[:3]
    heads = torch.arange(B * H, device=chosen.device) * L
    rows = chosen + heads.view(B, H, 1, 1)  # of a table of the parts of all sentences and heads
    return ChosenTokens(parts, chosen, pair_up(rows.flatten(0, 2), B * H * L))


class ChosenTokens(NamedTuple):
    """Every query meets the tokens of the parts that it chose.

    Attributes:
        parts: the tokens of all parts
        part: what was chosen [B, H, T, N]
        pairs: queries with a part of the table of all parts
    """

    parts: Parts
    part: Tensor
    pairs: Any

    @property
    def left_out(self) -> Tensor:
        """True at tokens that are not there [B, H, T, M]."""
        return self._of_tokens(self.parts.empty)

    @property
    def place(self) -> Tensor:
        """Where the tokens stand, for a diagonal [B, H, T, M]."""
        return self._of_tokens(self.parts.place)

    def scores(self, q: Tensor) -> Tensor:
        """Products of queries [B, H, T, K] with keys [B, H, T, M]."""
        of_pairs = scores(self.pairs, q.flatten(0, 2), self.parts.key.flatten(0, 2))
        return of_pairs.view(*self.part.shape[:3], -1)

    def mixture(self, weights: Tensor) -> Tensor:
        """Values by weights [B, H, T, M]: [B, H, T, K]."""
        read = mixture(self.pairs, weights.flatten(0, 2), self.parts.value.flatten(0, 2))
        return read.view(*self.part.shape[:3], -1)

    def _of_tokens(self, x: Tensor) -> Tensor:
        """What ``x`` [B, L, W] says of the tokens that are met [B, H, T, M]."""
        B, L, _ = x.shape
        sentences = torch.arange(B, device=x.device) * L
        index = (self.part + sentences.view(B, 1, 1, 1)).flatten()
        return x.flatten(0, 1).index_select(0, index).view(*self.part.shape[:3], -1)
