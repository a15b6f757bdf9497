"""Causal attention step by step: what it keeps while a sentence is decoded, and the step."""

from typing import NamedTuple, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.errors import InputError
from luna_fairseq.modules.heads import dropout_probability, hypotheses_each, merge_heads, packed_heads
from luna_fairseq.ops.causal_luna import CausalLunaState, recurrent_causal_luna


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


class StepwiseCausalAttention(nn.Module):
    """The step of :class:`luna_fairseq.modules.LunaCausalAttention`."""

    def step(
        self,
        query: Tensor,
        packed: Optional[Tensor] = None,
        state: Optional[LunaCausalState] = None,
        key_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
    ) -> Tuple[Tensor, LunaCausalState]:
        """The positions after those in ``state``: one while decoding, several for a prefix. Masks as in
        :meth:`forward`.

        Args:
            query: X [T, B, C], also of n hypotheses in a row for each sentence of P [T, B n, C]
            packed: P [L, B, C]; with a ``state`` that has its projection it is not read
            state: what the call before this one returned; None at the beginning

        Returns:
            output, shaped as X, and the state after these positions

        Raises:
            InputError: hypotheses that cannot belong to the sentences of P, as many to each; neither P nor a
                state
        """
        pack_q, sums = (None, None) if state is None else (state.pack_q, state.sums())
        if pack_q is None:
            if packed is None:
                raise InputError("no packed sequence was given, and no earlier step has kept its projection")
            pack_q = packed_heads(self.pack_q_proj, packed, self.num_heads)
        beams = hypotheses_each(query.size(1), pack_q.size(0))
        if packed_padding_mask is not None:
            packed_padding_mask = packed_padding_mask.repeat_interleave(beams, dim=0)
        pack_k, q, k, v = self._heads(query)
        weights = self._pack_weights(pack_q, pack_k, beams)
        output, sums = recurrent_causal_luna(
            *(q, k, v, weights, sums, packed_padding_mask, key_padding_mask),
            dropout=dropout_probability(self.dropout_module),
            log_decay=self.log_decay(),
        )
        value_sum = sums.value_sum if self.untie_kv else None
        state = LunaCausalState(pack_q, sums.key_sum, sums.steps, value_sum)
        return self.out_proj(merge_heads(output)), state
