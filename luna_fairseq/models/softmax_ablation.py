"""An ablation of Luna's decoder: ``--arch luna_softmax_causal`` has softmax attention in place of causal
attention.

All options are those of ``luna``; training, decoding and alignments work as they do there. (Softmax attention
to the source is no ablation but an option: ``--cross-attention softmax``.)
"""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from torch import Tensor, nn

from fairseq import utils
from fairseq.models import register_model
from fairseq.modules import MultiheadAttention
from luna_fairseq.anchored.decoder_attentions import AnchoredDecoderAttentions
from luna_fairseq.anchored.encoder_attentions import extension_options
from luna_fairseq.models.fairseq_decoder import FairseqLunaDecoder
from luna_fairseq.models.luna import LunaConfig, LunaModel
from luna_fairseq.modules.memory import map_tensors
from luna_fairseq.modules.options import DecoderOptions


class SoftmaxState(NamedTuple):
    """Keys and values of all earlier positions; its size grows with them.

    Attributes:
        prev_key, prev_value: [B, H, T, K]
        prev_key_padding_mask: [B, T], True at padding; None if no position is padding
    """

    prev_key: Tensor
    prev_value: Tensor
    prev_key_padding_mask: Optional[Tensor] = None

    def reorder(self, rows: Tensor) -> "SoftmaxState":
        """Return the state in which row i goes on from row ``rows[i]`` [B']."""
        return map_tensors(lambda x: x.index_select(0, rows), self)

    def select(self, sentences: Tensor) -> "SoftmaxState":
        """Return the state itself: nothing in it belongs to a source."""
        return self


class SoftmaxCausalAttention(nn.Module):
    """Softmax attention of every position to itself and what came before it, called as
    :class:`LunaCausalAttention` is. P and its mask are not read.

    Args:
        embed_dim: C
        num_heads: number of heads
        dropout: probability with which a weight is dropped (default: 0)
        q_noise, qn_block_size: fairseq's quantisation noise on the projections (default: none)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
    ):
        super().__init__()
        noise = {"q_noise": q_noise, "qn_block_size": qn_block_size}
        self.softmax = MultiheadAttention(embed_dim, num_heads, dropout=dropout, self_attention=True, **noise)

    def forward(
        self,
        query: Tensor,
        packed: Optional[Tensor],
        key_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """Attend over whole sequences X [T, B, C]; ``key_padding_mask`` [B, T] is True at padding."""
        future = utils.fill_with_neg_inf(query.new_empty(query.size(0), query.size(0))).triu(1)
        return self._attend(query, key_padding_mask, None, future)

    def step(
        self,
        query: Tensor,
        packed: Optional[Tensor] = None,
        state: Optional[SoftmaxState] = None,
        key_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
    ) -> Tuple[Tensor, SoftmaxState]:
        """Attend from the one position X [1, B, C] after those in ``state``; see
        :meth:`LunaCausalAttention.step`."""
        store: Dict[str, Any] = {}
        if state is not None:
            self.softmax._set_input_buffer(store, state._asdict())
        output = self._attend(query, key_padding_mask, store)
        return output, SoftmaxState(**self.softmax._get_input_buffer(store))

    def _attend(
        self,
        query: Tensor,
        key_padding_mask: Optional[Tensor],
        store: Optional[Dict[str, Any]],
        future: Optional[Tensor] = None,
    ) -> Tensor:
        output, _ = self.softmax(
            *(query, query, query),
            key_padding_mask=key_padding_mask,
            incremental_state=store,
            need_weights=False,
            attn_mask=future,
        )
        return output


class SoftmaxCausalAttentions(AnchoredDecoderAttentions):
    """The attentions that the options ask for, but softmax causal attention.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it
    """

    def __init__(self, cfg: Any):
        super().__init__(extension_options(cfg))
        self.noise = {"q_noise": cfg.quant_noise.pq, "qn_block_size": cfg.quant_noise.pq_block_size}

    def build_causal_attention(self, options: DecoderOptions) -> nn.Module:
        """Build causal self-attention of a decoder layer."""
        return SoftmaxCausalAttention(
            options.embed_dim, options.num_heads, options.attention_dropout, **self.noise
        )


class SoftmaxCausalDecoder(FairseqLunaDecoder):
    """The Luna decoder with softmax causal attention."""

    def choose_attentions(self, cfg: Any) -> SoftmaxCausalAttentions:
        """Return the attentions that the options ask for, but softmax causal attention."""
        return SoftmaxCausalAttentions(cfg)


@register_model("luna_softmax_causal", dataclass=LunaConfig)
class LunaSoftmaxCausal(LunaModel):
    """Luna with softmax causal attention."""

    decoder_class = SoftmaxCausalDecoder
