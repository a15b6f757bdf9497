"""Attention on other kernels, put into a built model: fairseq's for a peer of Luna, Luna's for its own
definition.
"""

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq.modules import MultiheadAttention
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.sentences import Masks, Sentences
from luna_fairseq.peers.attention import PeerAttention


class FusedAttention(MultiheadAttention):
    """fairseq's attention through scaled_dot_product_attention, with the masks that keep its fused kernels.

    For training and for whole sequences; ``attn_mask`` can only be the causal one.
    """

    @classmethod
    def in_place_of(cls, other: MultiheadAttention) -> "FusedAttention":
        """One with the parameters of ``other``, trainable and on its device."""
        fused = cls(
            other.embed_dim,
            other.num_heads,
            kdim=other.kdim,
            vdim=other.vdim,
            dropout=other.dropout_module.p,
            self_attention=other.self_attention,
            encoder_decoder_attention=other.encoder_decoder_attention,
        )
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(fused, name, getattr(other, name))
        return fused.train(other.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[Dict[str, Any]] = None,
        attn_mask: Optional[Tensor] = None,
        **unused: Any,
    ) -> Tuple[Tensor, None]:
        """query [T, B, C], key and value [S, B, C], key_padding_mask [B, S] -> output [T, B, C], no weights.

        Raises:
            NotImplementedError: asked to go on from an incremental state
        """
        if incremental_state is not None:
            raise NotImplementedError("this attention is for whole sequences: it keeps no incremental state")
        q, k, v = (
            project(x).unflatten(-1, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)  # [B, H, T, K]
            for project, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        causal, mask = attn_mask is not None, None
        if key_padding_mask is not None:
            mask = ~key_padding_mask.bool()[:, None, None, :]
            if causal:
                earlier = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=q.device).tril()
                mask, causal = mask & earlier, False
        dropout = self.dropout_module.p if self.training else 0.0
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
        return self.out_proj(output.permute(2, 0, 1, 3).flatten(2)), None  # [T, B, C]


def use_fused_attention(module: nn.Module) -> None:
    """Replace every attention of fairseq's below ``module``."""
    for name, child in list(module.named_children()):
        if isinstance(child, MultiheadAttention):
            setattr(module, name, FusedAttention.in_place_of(child))
        else:
            use_fused_attention(child)


class WrittenOutLunaAttention(LunaAttention):
    """Luna attention that writes its weights out, as the definition does."""

    def pack(
        self, packed: Tensor, context: Tensor, context_padding_mask: Masks = None, need_weights: bool = False
    ) -> Tuple[Tensor, Optional[Tensor]]:
        return super().pack(packed, context, context_padding_mask, need_weights=True)

    def read(
        self, q: Tensor, cache: Any, sentences: Sentences, need_weights: bool
    ) -> Tuple[Tensor, Optional[Tensor]]:
        return super().read(q, cache, sentences, need_weights=True)[0], None


def use_written_out_attention(module: nn.Module) -> None:
    """Have the attentions below ``module``, fairseq's and Luna's, write the weights out instead of asking
    torch's.
    """
    for child in module.modules():
        if isinstance(child, MultiheadAttention):
            # What it takes torch's function for ends where that function's check of widths has to be skipped.
            child.skip_embed_dim_check = True
        elif type(child) is LunaAttention:  # of the paper
            child.__class__ = WrittenOutLunaAttention  # the same parameters under the same names


def use_definitions(module: nn.Module) -> None:
    """Have the peers' attentions below ``module`` compute what their definitions say."""
    for child in module.modules():
        if isinstance(child, PeerAttention):
            child.attend = child.define  # type: ignore[method-assign]
