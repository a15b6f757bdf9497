"""Ablation: Luna's translation model with softmax self-attention in the decoder.

``--arch luna_softmax_causal`` replaces Luna's causal attention. It has the options of ``--arch luna`` except
those of causal attention (:class:`SoftmaxCausalConfig`) and ``--cross-attention softmax``. For softmax
attention from the decoder to the source, use ``--arch luna --cross-attention softmax``. Shapes: batch size B,
H heads of dimension K, T positions, width C.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from torch import Tensor, nn

from fairseq import utils
from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model
from fairseq.modules import MultiheadAttention
from luna_fairseq.anchored.factories import AnchoredDecoderAttentions, extension_options, target_separator
from luna_fairseq.errors import InputError
from luna_fairseq.models.fairseq_decoder import FairseqLunaDecoder
from luna_fairseq.models.luna import LunaModel
from luna_fairseq.models.luna_config import LunaConfig
from luna_fairseq.models.options import option
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.options import DecoderOptions
from luna_fairseq.ops.causal_luna import BACKENDS, PACK_ACTIVATIONS

_NO_EFFECT = "no effect, because the decoder's self-attention is softmax attention"


class SoftmaxState(NamedTuple):
    """Decoding state of causal softmax attention: keys and values [B, H, T, K] of T earlier positions.

    The state grows with every token. The padding mask [B, T] is True at padding, and None without padding.
    """

    prev_key: Tensor
    prev_value: Tensor
    prev_key_padding_mask: Optional[Tensor] = None


class SoftmaxCausalAttention(nn.Module):
    """Causal softmax attention with the interface of :class:`LunaCausalAttention`.

    The packed sequence P is ignored. ``q_noise`` and ``qn_block_size`` configure fairseq's quantization noise
    on the projections.
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

    def read(self, packed: Tensor, packed_padding_mask: Optional[Tensor] = None) -> None:
        """Return None, because this attention does not use the packed sequence P."""

    def forward(
        self,
        query: Tensor,
        memory: None,
        state: Optional[SoftmaxState] = None,
        key_padding_mask: Optional[Tensor] = None,
        keep_state: Optional[bool] = None,
        counts: Any = None,
    ) -> Tuple[Tensor, Optional[SoftmaxState]]:
        """Apply causal attention to T positions [T, B, C], which continue the sequences of ``state``.

        Return the output and the new state. The state is None unless ``state`` or ``keep_state`` is given.
        ``memory`` and ``counts``, which only Luna's causal attention needs, are ignored.
        """
        T, past = query.size(0), 0 if state is None else state.prev_key.size(2)
        future = None  # one position has no later ones
        if T > 1:
            future = utils.fill_with_neg_inf(query.new_empty(T, past + T)).triu(past + 1)
        if state is None and not keep_state:
            return self._attend(query, key_padding_mask, None, future), None
        store: Dict[str, Any] = {}
        if state is not None:
            self.softmax._set_input_buffer(store, state._asdict())
        output = self._attend(query, key_padding_mask, store, future)
        return output, SoftmaxState(**self.softmax._get_input_buffer(store))

    def _attend(
        self,
        query: Tensor,
        key_padding_mask: Optional[Tensor],
        store: Optional[Dict[str, Any]],
        future: Optional[Tensor] = None,
    ) -> Tensor:
        """Apply fairseq's self-attention, with its incremental state ``store`` or causal mask ``future``."""
        if store is None and not hasattr(self.softmax.q_proj, "weight"):
            store = {}  # without it, fairseq reads the weights, which --int8 and --bf16 convert
        output, _ = self.softmax(
            *(query, query, query),
            key_padding_mask=key_padding_mask,
            incremental_state=store,
            need_weights=False,
            attn_mask=future,
        )
        return output


@dataclass(frozen=True)
class SoftmaxCausalAttentions(AnchoredDecoderAttentions):
    """Factory for a decoder's attention modules, with softmax attention in place of Luna's causal attention.

    Attributes:
        noise: arguments ``q_noise`` and ``qn_block_size`` of fairseq's attention, for quantization noise.
    """

    noise: Mapping[str, Any] = field(default_factory=dict)

    def build_causal_attention(self, builders: Builders = TORCH) -> nn.Module:
        options = self.options
        return SoftmaxCausalAttention(
            options.embed_dim, options.num_heads, options.attention_dropout, **self.noise
        )


def choose_softmax_attentions(cfg: Any, options: DecoderOptions) -> SoftmaxCausalAttentions:
    """Return a factory that builds softmax self-attention, and the cross-attention that ``cfg`` selects.

    Raise InputError if the cross-attention is softmax attention, too: no layer would then read P.
    """
    if cfg.cross_attention == "softmax":
        raise InputError(
            "--arch luna_softmax_causal with --cross-attention softmax has no use for P. Use --arch "
            "peer_transformer --attention softmax"
        )
    noise = {"q_noise": cfg.quant_noise.pq, "qn_block_size": cfg.quant_noise.pq_block_size}
    return SoftmaxCausalAttentions(options, extension_options(cfg), target_separator(cfg), noise)


@dataclass
class SoftmaxCausalConfig(LunaConfig):
    """All options of ``--arch luna_softmax_causal``.

    Training refuses three options of Luna's causal attention, which have no effect.
    """

    causal_decay: bool = option(False, _NO_EFFECT, used_with={})
    pack_activation: ChoiceEnum(list(PACK_ACTIVATIONS)) = option("softplus", _NO_EFFECT, used_with={})
    luna_backend: ChoiceEnum(list(BACKENDS)) = option("auto", _NO_EFFECT, costs_only=True, used_with={})


@register_model("luna_softmax_causal", dataclass=SoftmaxCausalConfig)
class LunaSoftmaxCausal(LunaModel):
    """:class:`LunaModel` with softmax attention in place of the decoder's causal self-attention."""

    decoder_class = staticmethod(partial(FairseqLunaDecoder, choose_attentions=choose_softmax_attentions))
