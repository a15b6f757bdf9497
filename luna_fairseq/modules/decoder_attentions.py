"""Choose the attentions of a decoder: what stands in the two slots of a layer, and what it knows of a
batch."""

from typing import Any, Dict, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.modules.batch import Geometry, Source, Target
from luna_fairseq.modules.encoder_attentions import attention_arguments
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.modules.options import DecoderOptions


def causal_arguments(options: DecoderOptions) -> Dict[str, Any]:
    """Return the arguments of :class:`LunaCausalAttention`."""
    return {
        "embed_dim": options.embed_dim,
        "num_heads": options.num_heads,
        "dropout": options.attention_dropout,
        "untie_kv": options.untie_kv,
        "pack_activation": options.pack_activation,
        "backend": options.backend,
    }


class DecoderAttentions:
    """The paper's attentions. An extension overrides what it builds in another way, and computes the geometry
    that its attentions read.

    Attributes:
        for_export: compute one form of the geometry for all lengths, as an exported graph needs it (default:
            False)
    """

    for_export = False

    def build_causal_attention(self, options: DecoderOptions) -> nn.Module:
        """Build causal self-attention of a layer."""
        return LunaCausalAttention(**causal_arguments(options))

    def build_cross_attention(self, options: DecoderOptions, update_packed: bool) -> nn.Module:
        """Build attention of a layer to the source. update_packed: a next layer reads the packed context."""
        return LunaAttention(**attention_arguments(options))

    def find_geometry(
        self,
        context: Optional[Tensor],
        packed: Optional[Tensor],
        source: Source,
        target: Target,
        before: Any = None,
    ) -> Tuple[Optional[Geometry], Any]:
        """Compute what the attentions know of a batch besides masks, once for all layers.

        Args:
            context: the encoder's output [S, B, C]; None without an encoder
            packed: P [L, B, C]; None without an encoder, and after the first step of decoding, when the
                source is packed already
            source: masks of the context and of P
            target: the tokens that the decoder reads now
            before: what the call before this one has returned (default: None, the target begins)

        Returns:
            the geometry, and what the next call needs to know of the target; None for nothing
        """
        return None, None
