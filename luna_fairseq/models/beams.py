"""In beam search, what belongs to a source sentence is computed and kept once, for all of its hypotheses.

The hypotheses of a sentence stand in a row: with B sentences and n hypotheses each, tensors of hypotheses
have B n rows.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.modules.heads import rows_per_sentence


class Hypotheses(NamedTuple):
    """Which sentence every hypothesis belongs to.

    Attributes:
        sentences: its number among those that are kept, 0 .. B-1 [B n]
        each: n
    """

    sentences: Tensor
    each: int = 1

    @classmethod
    def in_a_row(cls, hypotheses: int, sentences: int, device: torch.device) -> "Hypotheses":
        """As many of each sentence. Raises InputError where that cannot be."""
        each = rows_per_sentence(hypotheses, sentences)
        return cls(torch.arange(sentences, device=device).repeat_interleave(each), each)

    def reorder(self, new_order: Tensor) -> Optional[Tuple[Tensor, "Hypotheses"]]:
        """What becomes of them when hypothesis i takes the place of ``new_order[i]`` [N'].

        Returns:
            the sentences that are left, in order [B'], and the hypotheses of these; None when hypotheses only
            changed places within their sentences. Where sentences no longer have as many hypotheses in a row
            each, every hypothesis gets a sentence of its own: B' = N'
        """
        moved = self.sentences.index_select(0, new_order)
        if torch.equal(moved, self.sentences):
            return None
        left, now, counts = torch.unique_consecutive(moved, return_inverse=True, return_counts=True)
        if torch.equal(counts, counts[:1].expand_as(counts)):
            return left, Hypotheses(now, len(now) // max(1, len(left)))
        return moved, Hypotheses(torch.arange(len(moved), device=moved.device))
