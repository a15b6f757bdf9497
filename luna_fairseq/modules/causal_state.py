"""What causal attention keeps while a sentence is decoded."""

from typing import NamedTuple, Optional

from torch import Tensor

from luna_fairseq.ops.causal_luna import CausalLunaState


class LunaCausalState(NamedTuple):
    """What causal attention remembers of the positions so far: constant in size, however many they are.

    Attributes:
        pack_q: P, projected [B, H, L, K]: once for all hypotheses of a sentence; None where every call
            projects it anew
        key_sum, steps: of each hypothesis, see :class:`luna_fairseq.ops.CausalLunaState`
        value_sum: likewise; None where keys and values are tied, as it is then ``key_sum`` transposed
    """

    pack_q: Optional[Tensor]
    key_sum: Tensor
    steps: Tensor
    value_sum: Optional[Tensor] = None

    def sums(self) -> CausalLunaState:
        """The part that belongs to the hypotheses, as the op takes it."""
        value_sum = self.key_sum.transpose(-2, -1) if self.value_sum is None else self.value_sum
        return CausalLunaState(self.key_sum, value_sum, self.steps)

    def reorder(self, new_order: Tensor) -> "LunaCausalState":
        """Hypothesis i goes on where ``new_order[i]`` was [N']."""
        sums = (None if x is None else x.index_select(0, new_order) for x in self[1:])
        return LunaCausalState(self.pack_q, *sums)

    def select(self, sentences: Tensor) -> "LunaCausalState":
        """With P of the ``sentences`` [B'] alone, in their order."""
        pack_q = None if self.pack_q is None else self.pack_q.index_select(0, sentences)
        return self._replace(pack_q=pack_q)
