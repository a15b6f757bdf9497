"""Ablations of Luna's decoder: softmax attention in place of one of its two attentions, all else as in ``luna``.

``--arch luna_softmax_causal`` has it in place of causal attention, ``--arch luna_softmax_cross`` in place of attention
to the source, whose pack attention stays, because the next layer's causal attention reads P. All options are those of
``luna``; training, decoding and alignments work as they do there.
"""

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention
from luna_fairseq.models.luna import LunaConfig, LunaModel
from luna_fairseq.modules import FairseqLunaAttention, LunaDecoder
from luna_fairseq.modules.beams import hypotheses_each
from luna_fairseq.modules.luna_layer import LunaDecoderLayer

IncrementalState = Dict[str, Dict[str, Optional[Tensor]]]


def softmax_attention(cfg: Any, **kind: bool) -> MultiheadAttention:
    """fairseq's attention with the width and heads of the decoder in ``cfg``; ``kind`` is its argument."""
    return MultiheadAttention(
        cfg.decoder.embed_dim,
        cfg.decoder.attention_heads,
        dropout=cfg.attention_dropout,
        q_noise=cfg.quant_noise.pq,
        qn_block_size=cfg.quant_noise.pq_block_size,
        **kind,
    )


class SoftmaxCausalAttention(nn.Module):
    """Softmax attention of every position to itself and what came before it, called as FairseqLunaCausalAttention is.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it
    """

    def __init__(self, cfg: Any):
        super().__init__()
        self.softmax = softmax_attention(cfg, self_attention=True)

    def forward(
        self,
        query: Tensor,
        packed: Optional[Tensor],
        key_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[IncrementalState] = None,
    ) -> Tensor:
        """X [T, B, C] -> [T, B, C]; ``key_padding_mask`` [B, T] is True at padding, P and its mask are not read."""
        future = None
        if incremental_state is None:
            future = utils.fill_with_neg_inf(query.new_empty(query.size(0), query.size(0))).triu(1)
        output, _ = self.softmax(
            query,
            query,
            query,
            key_padding_mask=key_padding_mask,
            incremental_state=incremental_state,
            need_weights=False,
            attn_mask=future,
        )
        return output


class SoftmaxCrossAttention(FairseqLunaAttention):
    """Softmax attention of X to the context beside Luna's pack attention of P to it.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it
    """

    def __init__(self, cfg: Any):
        super().__init__(
            cfg.decoder.embed_dim,
            cfg.decoder.attention_heads,
            num_pack_heads=cfg.decoder.projected_attention_heads,
            dropout=cfg.attention_dropout,
            untie_kv=cfg.untie_luna_kv,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
        )
        self._remove("unpack_", "out_")
        self.softmax = softmax_attention(cfg, encoder_decoder_attention=True)

    def forward(
        self,
        query: Tensor,
        packed: Optional[Tensor],
        context: Tensor,
        context_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        need_weights: bool = False,
        incremental_state: Optional[IncrementalState] = None,
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """As :meth:`FairseqLunaAttention.forward`, but P is packed anew at every step of decoding, and not without P."""
        packed_context = None
        if packed is not None:
            packed_context, _ = self.pack(packed, context, context_padding_mask)
        beams = hypotheses_each(query.size(1), context.size(1))  # fairseq keeps keys and values for each of them
        context = context.repeat_interleave(beams, dim=1)
        if context_padding_mask is not None:
            context_padding_mask = context_padding_mask.repeat_interleave(beams, dim=0)
        output, weights = self.softmax(
            query,
            context,
            context,
            key_padding_mask=context_padding_mask,
            incremental_state=incremental_state,
            static_kv=True,
            need_weights=need_weights,
            need_head_weights=need_weights,
        )
        return output, packed_context, weights

    def remove_pack(self) -> None:
        """Leave softmax attention alone; from now on P must be None."""
        self._remove("pack_")

    def _remove(self, *prefixes: str) -> None:
        # A parameter without gradient breaks DDP.
        for name in [name for name, _ in self.named_children() if name.startswith(prefixes)]:
            delattr(self, name)


class SoftmaxCausalLayer(LunaDecoderLayer):
    def build_self_attention(self, cfg: Any) -> nn.Module:
        return SoftmaxCausalAttention(cfg)


class SoftmaxCrossLayer(LunaDecoderLayer):
    def build_encoder_attention(self, cfg: Any) -> FairseqLunaAttention:
        return SoftmaxCrossAttention(cfg)

    def build_packed_layer_norm(
        self, cfg: Any, side: Any, update_packed: bool, normalize_packed: bool = True
    ) -> None:
        super().build_packed_layer_norm(cfg, side, update_packed, normalize_packed)
        if not update_packed:  # X does not read the packed context either
            self.encoder_attn.remove_pack()
            self.packed_layer_norm = None

    def attend(
        self, attention: FairseqLunaAttention, layer_norm: nn.Module, x: Tensor, packed: Optional[Tensor], *args: Any
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        return super().attend(attention, layer_norm, x, packed if self.update_packed else None, *args)


class SoftmaxCausalDecoder(LunaDecoder):
    layer_class = SoftmaxCausalLayer


class SoftmaxCrossDecoder(LunaDecoder):
    layer_class = SoftmaxCrossLayer


@register_model("luna_softmax_causal", dataclass=LunaConfig)
class LunaSoftmaxCausal(LunaModel):
    """Luna with softmax causal attention."""

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: torch.nn.Embedding
    ) -> LunaDecoder:
        return SoftmaxCausalDecoder(cfg, tgt_dict, embed_tokens)


@register_model("luna_softmax_cross", dataclass=LunaConfig)
class LunaSoftmaxCross(LunaModel):
    """Luna with softmax cross-attention."""

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: torch.nn.Embedding
    ) -> LunaDecoder:
        return SoftmaxCrossDecoder(cfg, tgt_dict, embed_tokens)
