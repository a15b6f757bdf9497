"""Luna attention: pack the context into P's length, then unpack it to the queries (Luna, section 3.1)."""

from typing import Dict, Optional, Tuple

from torch import Tensor, nn

from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.modules import FairseqDropout
from luna_fairseq.errors import InputError
from luna_fairseq.modules.beams import beams_to_positions, hypotheses_each, positions_to_beams
from luna_fairseq.modules.heads import (
    check_heads,
    dropout_probability,
    merge_heads,
    output_projection,
    packed_heads,
    projection,
    split_heads,
)
from luna_fairseq.ops.luna import luna_attention, naive_attention

IncrementalState = Dict[str, Dict[str, Optional[Tensor]]]


@with_incremental_state
class LunaAttention(nn.Module):
    """Y_P = Attn(P, C), Y_X = Attn(X, Y_P), equations 4 and 5. Encoder self-attention and decoder cross-attention.

    Args:
        embed_dim: C, width of everything
        num_heads: heads of unpack attention
        num_pack_heads: heads of pack attention (default: ``num_heads``)
        dropout: probability with which a pack or unpack weight is dropped (default: 0)
        untie_kv: separate projections for keys and values; otherwise both are one tensor (default: False)
        q_noise, qn_block_size: fairseq's quantisation noise on the projections (default: none)

    Raises:
        InputError: the width is not divisible by a number of heads
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_pack_heads: Optional[int] = None,
        dropout: float = 0.0,
        untie_kv: bool = False,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.num_pack_heads = num_pack_heads or num_heads
        check_heads(embed_dim, self.num_heads, "attention heads")
        check_heads(embed_dim, self.num_pack_heads, "projected attention heads")
        self.untie_kv = untie_kv
        self.dropout_module = FairseqDropout(dropout, module_name=self.__class__.__name__)

        self.pack_q_proj = projection(embed_dim, q_noise, qn_block_size)
        self.unpack_q_proj = projection(embed_dim, q_noise, qn_block_size)
        for step in ("pack", "unpack"):
            for name in ("k", "v") if untie_kv else ("kv",):
                self.add_module(f"{step}_{name}_proj", projection(embed_dim, q_noise, qn_block_size))
        self.out_proj = output_projection(embed_dim, q_noise, qn_block_size)

    def forward(
        self,
        query: Tensor,
        packed: Optional[Tensor],
        context: Tensor,
        context_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[IncrementalState] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """
        Args:
            query: X [T, B, C]; with ``incremental_state``, also n hypotheses in a row of each sentence [T, B n, C]
            packed: P [L, B, C]; may be None once ``incremental_state`` holds the packed context
            context: what is packed [S, B, C]
            context_padding_mask: [B, S], True at padding
            packed_padding_mask: [B, L], True at rows of P that are left out
            incremental_state: when given, the context is static: it is packed once and kept there
            need_weights: also return weights over the context

        Returns:
            output Y_X, shaped as X; packed context Y_P [L, B, C], None when it came from ``incremental_state``;
            weights over the context per unpack head [H, B, T, S] (unpack weights times the pack heads' mean), or None

        Raises:
            InputError: hypotheses that cannot belong to the sentences of the context, as many to each
        """
        saved = self._saved(incremental_state)
        packed_context = None
        if saved is None:
            if packed is None:
                raise InputError("no packed sequence was given, and no earlier step has kept a packed context")
            packed_context, pack_weights = self.pack(packed, context, context_padding_mask, need_weights)
            pack_weights = None if pack_weights is None else pack_weights.mean(dim=1)
            key, value = self._key_value("unpack", packed_context, self.num_heads)
            if incremental_state is not None:
                saved = {"key": key, "value": value, "pack_weights": pack_weights}
                self.set_incremental_state(incremental_state, "packed_context", saved)
        else:
            key, value, pack_weights = saved["key"], saved["value"], saved["pack_weights"]

        beams = 1 if incremental_state is None else hypotheses_each(query.size(1), key.size(0))
        unpack_q = beams_to_positions(split_heads(self.unpack_q_proj(query), self.num_heads), beams)
        output, weights = self._attend(unpack_q, key, value, packed_padding_mask, need_weights)
        if need_weights:
            if pack_weights is None:
                raise InputError("weights over the context were asked for after a first step without them")
            weights = weights @ pack_weights.unsqueeze(1)  # [B, H, T, L] [B, 1, L, S]
            weights = positions_to_beams(weights, beams).transpose(0, 1)  # [H, B, T, S]
        return self.out_proj(merge_heads(positions_to_beams(output, beams))), packed_context, weights

    def pack(
        self,
        packed: Tensor,
        context: Tensor,
        context_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Pack attention: packed [L, B, C], context [S, B, C] -> Y_P [L, B, C] and weights [B, H, L, S] or None."""
        pack_q = packed_heads(self.pack_q_proj, packed, self.num_pack_heads)
        key, value = self._key_value("pack", context, self.num_pack_heads)
        output, weights = self._attend(pack_q, key, value, context_padding_mask, need_weights)
        return merge_heads(output), weights

    def _key_value(self, step: str, x: Tensor, num_heads: int) -> Tuple[Tensor, Tensor]:
        if self.untie_kv:
            key, value = getattr(self, f"{step}_k_proj")(x), getattr(self, f"{step}_v_proj")(x)
            return split_heads(key, num_heads), split_heads(value, num_heads)
        key = split_heads(getattr(self, f"{step}_kv_proj")(x), num_heads)
        return key, key

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor], need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        dropout = dropout_probability(self.dropout_module)
        if need_weights:
            return naive_attention(q, k, v, mask, dropout)
        return luna_attention(q, k, v, mask, dropout), None

    def _saved(self, incremental_state: Optional[IncrementalState]) -> Optional[Dict[str, Optional[Tensor]]]:
        return self.get_incremental_state(incremental_state, "packed_context")

    def keep_sentences(self, incremental_state: IncrementalState, left: Tensor) -> None:
        """Keep the packed contexts of the sentences ``left`` [B'], in that order; hypotheses have nothing of their own."""
        saved = self._saved(incremental_state)
        if saved is not None:
            saved = {name: None if t is None else t.index_select(0, left) for name, t in saved.items()}
            self.set_incremental_state(incremental_state, "packed_context", saved)
