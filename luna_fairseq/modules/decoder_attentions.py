"""Factory that builds the attention modules of a decoder's layers."""

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.modules.batch import Geometry, Source, Target
from luna_fairseq.modules.encoder_attentions import attention_arguments
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.modules.memory import DecoderMemory
from luna_fairseq.modules.options import DecoderOptions


def causal_arguments(options: DecoderOptions) -> Dict[str, Any]:
    """Convert decoder options to keyword arguments for :class:`LunaCausalAttention`.

    Args:
        options: decoder options.

    Returns:
        Mapping ``{name: value}`` of the width, the number of heads, the dropout probability, the activation
        of pack attention and the other constructor arguments.
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
    """Factory that builds the attention modules of a decoder's layers, by default those of the Luna paper.

    Subclass it to use other attention modules in a :class:`LunaDecoder`. If their weights depend on token
    positions, override :meth:`find_source_geometry` and :meth:`find_target_geometry` too.

    Attributes:
        for_export: compute positions in a way that is valid for all sequence lengths, as required by an
            exported graph (default: False).
    """

    for_export = False

    def build_causal_attention(self, options: DecoderOptions) -> nn.Module:
        """Build the causal self-attention of one layer.

        Args:
            options: decoder options, such as the width and the number of heads.

        Returns:
            A :class:`LunaCausalAttention`.
        """
        return LunaCausalAttention(**causal_arguments(options))

    def build_cross_attention(self, options: DecoderOptions, update_packed: bool) -> nn.Module:
        """Build the cross-attention of one layer, from target positions to the source.

        Args:
            options: decoder options, such as the width and the number of heads.
            update_packed: True if the layer updates the packed sequence P for the next layer. Ignored in this
                class.

        Returns:
            A :class:`LunaAttention`.
        """
        return LunaAttention(**attention_arguments(options))

    def find_source_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Return the source positions for pack attention of all layers, or None if no attention needs them.

        The decoder calls this once for a source. Overridden if attention weights depend on distance.
        """
        return None

    def find_target_geometry(
        self, target: Target, memory: DecoderMemory, dtype: torch.dtype, before: Any = None
    ) -> Tuple[Optional[Geometry], Any]:
        """Return the target positions for unpack attention of all layers, or None if no attention needs them.

        The decoder calls this once for a batch or decoding step. Overridden if attention weights depend on
        distance.

        Args:
            target: target tokens of this call, with their positions and padding mask.
            memory: memory of the source sentences.
            dtype: dtype of the model.
            before: state returned by the previous call, a named tuple of tensors with one entry per
                hypothesis (default: None, this call starts at the beginning of the target).

        Returns:
            Tuple of the positions and of the state to pass to the next call, each None if not needed.
        """
        return None, None
