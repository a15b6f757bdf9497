"""Assignment of beam-search hypotheses to source sentences.

A part of the decoding state depends only on the source. This part is computed and stored once for all
hypotheses of a sentence. The n hypotheses of a sentence are adjacent, so that a tensor for B sentences has
batch size B n.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.modules.heads import rows_per_sentence


class Hypotheses(NamedTuple):
    """Source sentence of each hypothesis.

    Attributes:
        sentences: index [B n] of each hypothesis's sentence among the stored sentences, from 0 to B - 1.
        each: number n of hypotheses of each sentence (default: 1).
    """

    sentences: Tensor
    each: int = 1

    @classmethod
    def in_a_row(cls, hypotheses: int, sentences: int, device: torch.device) -> "Hypotheses":
        """Assign the same number of adjacent hypotheses to each sentence.

        Args:
            hypotheses: number of hypotheses B n.
            sentences: number of sentences B.
            device: device of the index tensor.

        Raises:
            InputError: The number of hypotheses is no multiple of the number of sentences.

        Example:
            >>> Hypotheses.in_a_row(4, 2, torch.device("cpu")).sentences
            tensor([0, 0, 1, 1])
        """
        each = rows_per_sentence(hypotheses, sentences)
        return cls(torch.arange(sentences, device=device).repeat_interleave(each), each)

    def reorder(self, new_order: Tensor) -> Optional[Tuple[Tensor, "Hypotheses"]]:
        """Replace hypothesis i by hypothesis ``new_order[i]``.

        Args:
            new_order: index [N'] of the hypothesis that continues at each position.

        Returns:
            The indices [B'] of the remaining sentences, and the new assignment. None if hypotheses only
            changed places within their sentences. If the sentences no longer have equally many adjacent
            hypotheses, every hypothesis gets a separate copy of its sentence, and B' = N'.
        """
        moved = self.sentences.index_select(0, new_order)
        if torch.equal(moved, self.sentences):
            return None
        remaining, index, counts = torch.unique_consecutive(moved, return_inverse=True, return_counts=True)
        if torch.equal(counts, counts[:1].expand_as(counts)):
            return remaining, Hypotheses(index, len(index) // max(1, len(remaining)))
        return moved, Hypotheses(torch.arange(len(moved), device=moved.device))
