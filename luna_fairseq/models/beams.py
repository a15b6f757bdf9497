"""Assignment of beam-search hypotheses to source sentences.

The parts of the decoding state that depend only on the source are stored once per sentence rather than once
per hypothesis. The n hypotheses of a sentence are adjacent in the batch, so B sentences have B * n
hypotheses.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.modules.heads import hypotheses_per_sentence


class Hypotheses(NamedTuple):
    """Assignment of beam-search hypotheses to source sentences.

    For 2 sentences with 3 hypotheses each, ``sentences`` is [0, 0, 0, 1, 1, 1] and ``each`` is 3.

    Attributes:
        sentences: index of the source sentence per hypothesis, [number of hypotheses].
        each: number of hypotheses per sentence (default: 1).
    """

    sentences: Tensor
    each: int = 1

    @classmethod
    def adjacent(cls, hypotheses: int, sentences: int, device: torch.device) -> "Hypotheses":
        """Assign hypotheses to sentences in order, with the same number per sentence.

        Args:
            hypotheses: number of hypotheses.
            sentences: number of sentences.
            device: device of the index tensor.

        Returns:
            The assignment.

        Raises:
            InputError: ``hypotheses`` is not a multiple of ``sentences``.

        Example:
            >>> Hypotheses.adjacent(4, 2, torch.device("cpu")).sentences
            tensor([0, 0, 1, 1])
        """
        each = hypotheses_per_sentence(hypotheses, sentences)
        return cls(torch.arange(sentences, device=device).repeat_interleave(each), each)

    def reorder(self, new_order: Tensor) -> Optional[Tuple[Tensor, "Hypotheses"]]:
        """Update the assignment after beam search has selected hypotheses.

        If the selected hypotheses of each sentence are adjacent and their number is the same for all
        sentences, only the remaining sentences are kept. Otherwise, each hypothesis gets its own copy of its
        sentence.

        Args:
            new_order: for each new hypothesis, the index of the old hypothesis it continues, [number of new
                hypotheses].

        Returns:
            None if every position keeps its sentence. Otherwise, a pair: the indices of the sentences to keep
            in the decoding state, and the new assignment.
        """
        moved = self.sentences.index_select(0, new_order)
        if torch.equal(moved, self.sentences):
            return None
        remaining, index, counts = torch.unique_consecutive(moved, return_inverse=True, return_counts=True)
        if torch.equal(counts, counts[:1].expand_as(counts)):
            return remaining, Hypotheses(index, len(index) // max(1, len(remaining)))
        return moved, Hypotheses(torch.arange(len(moved), device=moved.device))
