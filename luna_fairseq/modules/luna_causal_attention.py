"""Luna causal attention: decoder self-attention (Luna, section 3.3)."""

from typing import Dict, Optional

from torch import Tensor, nn

from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.modules import FairseqDropout
from luna_fairseq.modules.heads import (
    check_choice,
    check_heads,
    dropout_probability,
    merge_heads,
    output_projection,
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
)


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
        InputError: the width is not divisible by the number of heads, or an unknown activation or backend
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
            query: X [T, B, C]; with ``incremental_state``, the positions after those it has seen
            packed: P [L, B, C]; may be None once ``incremental_state`` holds its projection
            key_padding_mask: [B, T], True at padding, left or right: it adds nothing and is not counted
            packed_padding_mask: [B, L], True at rows of P that are left out
            incremental_state: fairseq's store for decoding

        Returns:
            output [T, B, C]
        """
        saved = self.get_incremental_state(incremental_state, "causal_sums") or {}
        pack_q = saved.get("pack_q")
        if pack_q is None:
            pack_q = self._heads("pack_q", packed)
        weights = self.dropout_module(pack_weights(pack_q, self._heads("pack_k", query), self.pack_activation))
        q = self._heads("unpack_q", query)
        k = self._heads("unpack_k" if self.untie_kv else "unpack_kv", query)
        v = self._heads("unpack_v", query) if self.untie_kv else k
        dropout = dropout_probability(self.dropout_module)
        if incremental_state is None:
            output = causal_luna(q, k, v, weights, packed_padding_mask, key_padding_mask, dropout, self.backend)
        else:
            state = CausalLunaState(*(saved[name] for name in CausalLunaState._fields)) if saved else None
            output, state = recurrent_causal_luna(
                q, k, v, weights, state, packed_padding_mask, key_padding_mask, dropout
            )
            self.set_incremental_state(incremental_state, "causal_sums", {"pack_q": pack_q, **state._asdict()})
        return self.out_proj(merge_heads(output))

    def _heads(self, name: str, x: Tensor) -> Tensor:
        return split_heads(getattr(self, f"{name}_proj")(x), self.num_heads)

    def reorder_incremental_state(
        self, incremental_state: Dict[str, Dict[str, Optional[Tensor]]], new_order: Tensor
    ) -> None:
        """Give sentence i what sentence ``new_order[i]`` had. new_order: [B']."""
        saved = self.get_incremental_state(incremental_state, "causal_sums")
        if saved is not None:
            saved = {name: t.index_select(0, new_order) for name, t in saved.items()}
            self.set_incremental_state(incremental_state, "causal_sums", saved)
