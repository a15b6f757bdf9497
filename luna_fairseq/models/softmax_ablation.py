"""Ablation of Luna's decoder, with softmax attention in place of Luna's causal attention.

``--arch luna_softmax_causal`` has the options of ``--arch luna``, and is used in the same way. Softmax
attention from the decoder to the source is an option of ``luna``, ``--cross-attention softmax``.
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
    """Keys and values of all earlier positions. The size of this state grows with every token.

    Attributes:
        prev_key: keys [B, H, T, K].
        prev_value: values [B, H, T, K].
        prev_key_padding_mask: mask [B, T], True at padding (default: None, no padding).
    """

    prev_key: Tensor
    prev_value: Tensor
    prev_key_padding_mask: Optional[Tensor] = None

    def reorder(self, rows: Tensor) -> "SoftmaxState":
        """Select the hypotheses that beam search continues.

        Args:
            rows: indices [R] of the hypotheses to continue.

        Returns:
            State of R hypotheses.
        """
        return map_tensors(lambda x: x.index_select(0, rows), self)

    def select(self, sentences: Tensor) -> "SoftmaxState":
        """Return the state unchanged, because no part of it belongs to a source sentence."""
        return self


class SoftmaxCausalAttention(nn.Module):
    """Softmax attention from every position to itself and to all earlier positions.

    The methods have the arguments of :class:`LunaCausalAttention`, but ignore the packed sequence P.

    Args:
        embed_dim: model width C.
        num_heads: number of heads.
        dropout: dropout probability for attention weights (default: 0).
        q_noise: amount of fairseq's quantisation noise on the projections (default: 0).
        qn_block_size: block size of the quantisation noise (default: 8).

    Example:
        >>> import torch
        >>> attention = SoftmaxCausalAttention(embed_dim=8, num_heads=2)
        >>> attention(torch.ones(5, 1, 8), None).shape  # 5 positions, one sequence
        torch.Size([5, 1, 8])
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
        """Attend over whole sequences.

        Args:
            query: sequences X [T, B, C].
            packed: ignored.
            key_padding_mask: mask [B, T], True at padding (default: None, no padding).
            packed_padding_mask: ignored.

        Returns:
            Output [T, B, C].
        """
        future = utils.fill_with_neg_inf(query.new_empty(query.size(0), query.size(0))).triu(1)
        return self._attend(query, key_padding_mask, None, future)

    def step(
        self,
        query: Tensor,
        packed: Optional[Tensor] = None,
        state: Optional[SoftmaxState] = None,
        key_padding_mask: Optional[Tensor] = None,
        packed_padding_mask: Optional[Tensor] = None,
        counts: Any = None,
    ) -> Tuple[Tensor, SoftmaxState]:
        """Attend from the next position to itself and to all positions in a state.

        Args:
            query: next position [1, B, C] of X.
            packed: ignored.
            state: keys and values of all earlier positions (default: None, no earlier positions).
            key_padding_mask: mask [B, 1] of the new position, True at padding (default: None, no padding).
            packed_padding_mask: ignored.
            counts: ignored.

        Returns:
            Output [1, B, C], and the state that includes the new position.
        """
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
        """Apply fairseq's softmax self-attention.

        Args:
            query: X [T, B, C].
            key_padding_mask: boolean mask [B, T], True at padding, or None without padding.
            store: fairseq's incremental state, which holds the keys and values of earlier positions, or None
                for whole sequences.
            future: attention mask [T, T], minus infinity at later positions (default: None, as in decoding
                step by step).

        Returns:
            Output [T, B, C].
        """
        output, _ = self.softmax(
            *(query, query, query),
            key_padding_mask=key_padding_mask,
            incremental_state=store,
            need_weights=False,
            attn_mask=future,
        )
        return output


class SoftmaxCausalAttentions(AnchoredDecoderAttentions):
    """Factory of a decoder's attentions that uses softmax self-attention in place of Luna's.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it.
    """

    def __init__(self, cfg: Any):
        super().__init__(extension_options(cfg))
        self.noise = {"q_noise": cfg.quant_noise.pq, "qn_block_size": cfg.quant_noise.pq_block_size}

    def build_causal_attention(self, options: DecoderOptions) -> nn.Module:
        """Build the causal self-attention of a decoder layer."""
        return SoftmaxCausalAttention(
            options.embed_dim, options.num_heads, options.attention_dropout, **self.noise
        )


class SoftmaxCausalDecoder(FairseqLunaDecoder):
    """Luna decoder with softmax causal attention."""

    def choose_attentions(self, cfg: Any) -> SoftmaxCausalAttentions:
        """Return the factory of the decoder's attentions."""
        return SoftmaxCausalAttentions(cfg)


@register_model("luna_softmax_causal", dataclass=LunaConfig)
class LunaSoftmaxCausal(LunaModel):
    """Luna translation model with softmax causal attention in the decoder; see :class:`LunaModel`."""

    decoder_class = SoftmaxCausalDecoder
