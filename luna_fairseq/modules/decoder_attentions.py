"""Factory that builds the attentions of a decoder's layers."""

from typing import Any, Dict, Optional, Tuple

from torch import Tensor, nn

from luna_fairseq.modules.batch import Geometry, Source, Target
from luna_fairseq.modules.encoder_attentions import attention_arguments
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.modules.options import DecoderOptions


def causal_arguments(options: DecoderOptions) -> Dict[str, Any]:
    """Return the keyword arguments of :class:`LunaCausalAttention` for a decoder with these options.

    Args:
        options: options of the decoder.
    """
    return {
        "embed_dim": options.embed_dim,
        "num_heads": options.num_heads,
        "dropout": options.attention_dropout,
        "untie_kv": options.untie_kv,
        "pack_activation": options.pack_activation,
        "backend": options.backend,
    }


class DecoderAttentions:
    """Factory that builds the attentions of a decoder's layers, by default those of the paper.

    Subclasses override the methods to build other attentions. If these attentions depend on token positions,
    called the geometry of a batch, :meth:`find_geometry` computes the positions.

    Attributes:
        for_export: compute the geometry in one form that fits all lengths, as an exported graph requires
            (default: False).
    """

    for_export = False

    def build_causal_attention(self, options: DecoderOptions) -> nn.Module:
        """Build the causal self-attention of one layer.

        Args:
            options: options of the decoder.
        """
        return LunaCausalAttention(**causal_arguments(options))

    def build_cross_attention(self, options: DecoderOptions, update_packed: bool) -> nn.Module:
        """Build the attention of one layer to the source.

        Args:
            options: options of the decoder.
            update_packed: True if the next layer reads the packed context of this layer.
        """
        return LunaAttention(**attention_arguments(options))

    def find_geometry(
        self,
        context: Optional[Tensor],
        packed: Optional[Tensor],
        source: Source,
        target: Target,
        before: Any = None,
    ) -> Tuple[Optional[Geometry], Any]:
        """Compute the token positions of a batch that the attentions of all layers read.

        The paper's attentions do not read positions, so this class returns None.

        Args:
            context: encoder output [S, B, C], or None without an encoder.
            packed: packed sequence P [L, B, C]. None without an encoder, and after the first decoding step,
                when the source is already packed.
            source: masks of the context and of P.
            target: target tokens of this call.
            before: second value that the previous call returned (default: None, the target starts here).

        Returns:
            Tuple of the geometry, or None, and a value that the next call receives as ``before``.
        """
        return None, None
