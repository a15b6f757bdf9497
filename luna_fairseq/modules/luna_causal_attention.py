"""Luna causal attention: decoder self-attention (Luna, section 3.3)."""

from typing import Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.modules import FairseqDropout
from luna_fairseq.errors import InputError
from luna_fairseq.modules.beams import beams_to_positions, hypotheses_each, positions_to_beams
from luna_fairseq.modules.heads import (
    check_choice,
    check_heads,
    dropout_probability,
    merge_heads,
    output_projection,
    packed_heads,
    projection,
    split_heads,
)
from luna_fairseq.ops.causal_luna import (
    BACKENDS,
    PACK_ACTIVATIONS,
    CausalLunaState,
    causal_luna,
    pack_weights,
    recurrent_causal_luna,
    why_not_triton_here,
)


def check_triton() -> None:
    """Raise InputError where the Triton form cannot run, before a model is built and data loaded for it."""
    reason = why_not_triton_here(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if reason:
        raise InputError(f"--luna-backend triton cannot be used here: {reason}; use auto")


@with_incremental_state
class LunaCausalAttention(nn.Module):
    """Attention of every position to itself and what came before it, through P. P is an input only.

    Args:
        embed_dim: C, width of everything
        num_heads: heads, of pack and unpack alike
        dropout: probability with which a pack or unpack weight is dropped (default: 0)
        untie_kv: separate projections for the keys and values of unpack attention (default: False)
        pack_activation: omega, ``softplus`` or ``elu`` (default: softplus)
        backend: form of the attention over whole sequences, see :func:`luna_fairseq.ops.causal_luna` (default: auto)
        q_noise, qn_block_size: fairseq's quantisation noise on the projections (default: none)

    Raises:
        InputError: the width is not divisible by the number of heads; an unknown activation or backend, or one that
            this machine does not have
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        untie_kv: bool = False,
        pack_activation: str = "softplus",
        backend: str = "auto",
        q_noise: float = 0.0,
        qn_block_size: int = 8,
    ):
        super().__init__()
        check_heads(embed_dim, num_heads, "attention heads")
        check_choice("pack activation", pack_activation, PACK_ACTIVATIONS)
        check_choice("Luna backend", backend, BACKENDS)
        if backend == "triton":
            check_triton()
        self.num_heads = num_heads
        self.untie_kv = untie_kv
        self.pack_activation = pack_activation
        self.backend = backend
        self.dropout_module = FairseqDropout(dropout, module_name=self.__class__.__name__)

        for name in ("pack_q", "pack_k", "unpack_q", *(("unpack_k", "unpack_v") if untie_kv else ("unpack_kv",))):
            self.add_module(f"{name}_proj", projection(embed_dim, q_noise, qn_block_size))
        self.out_proj = output_projection(embed_dim, q_noise, qn_block_size)

    def forward(
        self,
        query: Tensor,
        packed: Optional[Tensor],
        key_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]] = None,
    ) -> Tensor:
        """
        Args:
            query: X [T, B, C]; with ``incremental_state``, the positions after those it has seen, also of n hypotheses in
                a row for each sentence [T, B n, C]
            packed: P [L, B, C]; may be None once ``incremental_state`` holds its projection
            key_padding_mask: [B, T] or [B n, T], True at padding, left or right: it adds nothing and is not counted
            packed_padding_mask: [B, L], True at rows of P that are left out
            incremental_state: fairseq's store for decoding

        Returns:
            output, shaped as X

        Raises:
            InputError: hypotheses that cannot belong to the sentences of P, as many to each
        """
        if incremental_state is not None:
            return self._continue(query, packed, key_padding_mask, packed_padding_mask, incremental_state)
        q, k, v = self._unpack_heads(query)
        weights = self._pack_weights(packed_heads(self.pack_q_proj, packed, self.num_heads), query)
        dropout = dropout_probability(self.dropout_module)
        output = causal_luna(q, k, v, weights, packed_padding_mask, key_padding_mask, dropout, self.backend)
        return self.out_proj(merge_heads(output))

    def _continue(
        self,
        query: Tensor,
        packed: Optional[Tensor],
        key_padding_mask: Optional[Tensor],
        packed_padding_mask: Optional[Tensor],
        incremental_state: Dict[str, Dict[str, Optional[Tensor]]],
    ) -> Tensor:
        saved = self.get_incremental_state(incremental_state, "causal_sums")
        if saved is None:
            state = None
            pack_q = packed_heads(self.pack_q_proj, packed, self.num_heads)
        else:
            key_sum, pack_q = saved["key_sum"], saved["pack_q"]
            state = CausalLunaState(key_sum, saved.get("value_sum", key_sum.transpose(-2, -1)), saved["steps"])
        beams = hypotheses_each(query.size(1), pack_q.size(0))
        if packed_padding_mask is not None:
            packed_padding_mask = packed_padding_mask.repeat_interleave(beams, dim=0)
        q, k, v = self._unpack_heads(query)
        weights = self._pack_weights(pack_q, query, beams)
        dropout = dropout_probability(self.dropout_module)
        output, state = recurrent_causal_luna(q, k, v, weights, state, packed_padding_mask, key_padding_mask, dropout)
        saved = {"pack_q": pack_q, **state._asdict()}
        if not self.untie_kv:
            del saved["value_sum"]  # the same numbers as key_sum
        self.set_incremental_state(incremental_state, "causal_sums", saved)
        return self.out_proj(merge_heads(output))

    def _pack_weights(self, pack_q: Tensor, query: Tensor, beams: int = 1) -> Tensor:
        pack_k = beams_to_positions(self._heads("pack_k", query), beams)
        return positions_to_beams(self.dropout_module(pack_weights(pack_q, pack_k, self.pack_activation)), beams)

    def _unpack_heads(self, query: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        q = self._heads("unpack_q", query)
        if self.untie_kv:
            return q, self._heads("unpack_k", query), self._heads("unpack_v", query)
        k = self._heads("unpack_kv", query)
        return q, k, k

    def _heads(self, name: str, x: Tensor) -> Tensor:
        return split_heads(getattr(self, f"{name}_proj")(x), self.num_heads)

    def needs_packed(self, incremental_state: Optional[Dict[str, Dict[str, Optional[Tensor]]]]) -> bool:
        """Whether P has to be given: no earlier step of decoding has kept its projection."""
        return self.get_incremental_state(incremental_state, "causal_sums") is None

    def reorder_incremental_state(
        self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], new_order: Tensor
    ) -> None:
        """Give hypothesis i the sums that hypothesis ``new_order[i]`` had. new_order: [N']."""
        saved = self.get_incremental_state(incremental_state, "causal_sums")
        if saved is not None:
            sums = {name: saved[name].index_select(0, new_order) for name in CausalLunaState._fields if name in saved}
            self.set_incremental_state(incremental_state, "causal_sums", {**saved, **sums})

    def keep_sentences(self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], left: Tensor) -> None:
        """Keep the projected P of the sentences ``left`` [B'], in that order."""
        saved = self.get_incremental_state(incremental_state, "causal_sums")
        if saved is not None:
            saved = {**saved, "pack_q": saved["pack_q"].index_select(0, left)}
            self.set_incremental_state(incremental_state, "causal_sums", saved)
