"""An ablation of Luna's decoder: ``--arch luna_softmax_causal`` has softmax attention in place of causal
attention.

All options are those of ``luna``; training, decoding and alignments work as they do there. (Softmax attention
to the source is no ablation but an option: ``--cross-attention softmax``.)
"""

from typing import Any, Optional

from torch import Tensor, nn

from fairseq import utils
from fairseq.models import register_model
from fairseq.modules import MultiheadAttention
from luna_fairseq.anchored.encoder_decoder import AnchoredDecoder
from luna_fairseq.models.luna import LunaConfig, LunaModel
from luna_fairseq.modules.luna_decoder import LunaDecoderLayer
from luna_fairseq.modules.sentences import IncrementalState, Sentences


class SoftmaxCausalAttention(nn.Module):
    """Softmax attention of every position to itself and what came before it, called as
    LunaCausalAttention is.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it
    """

    def __init__(self, cfg: Any):
        super().__init__()
        self.softmax = MultiheadAttention(
            cfg.decoder.embed_dim,
            cfg.decoder.attention_heads,
            dropout=cfg.attention_dropout,
            self_attention=True,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
        )

    def forward(
        self,
        query: Tensor,
        packed: Optional[Tensor],
        key_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[IncrementalState] = None,
    ) -> Tensor:
        """X [T, B, C] -> [T, B, C]; ``key_padding_mask`` [B, T] is True at padding, P and its mask are not
        read."""
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


class SoftmaxCausalLayer(LunaDecoderLayer):
    """A decoder layer whose self-attention is softmax attention."""

    def step(self, x: Tensor, packed: Optional[Tensor], sentences: Sentences) -> Tensor:
        return self.self_attn(x, None, sentences.target_padding_mask, None, sentences.incremental_state)

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """As :meth:`IncrementalLayer.reorder_incremental_state`, of keys and values."""
        self.self_attn.softmax.reorder_incremental_state(incremental_state, new_order)


class SoftmaxCausalDecoder(AnchoredDecoder):
    """The decoder of such layers."""

    layer_class = SoftmaxCausalLayer

    def build_self_attention(self, cfg: Any) -> nn.Module:
        return SoftmaxCausalAttention(cfg)


@register_model("luna_softmax_causal", dataclass=LunaConfig)
class LunaSoftmaxCausal(LunaModel):
    """Luna with softmax causal attention."""

    @classmethod
    def build_decoder(cls, cfg: Any, tgt_dict: Any, embed_tokens: nn.Embedding) -> Any:
        """The decoder; ``cfg`` is nested."""
        return SoftmaxCausalDecoder(cfg, tgt_dict, embed_tokens)
