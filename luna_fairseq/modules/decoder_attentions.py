"""Factory that builds the attention modules of a decoder's layers."""

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.modules.batch import Geometry, Source, Target
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.encoder_attentions import attention_arguments
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.modules.memory import DecoderMemory
from luna_fairseq.modules.options import DecoderOptions


def causal_arguments(options: DecoderOptions, builders: Builders = TORCH) -> Dict[str, Any]:
    """Return the arguments of :class:`LunaCausalAttention` that the options determine, ``{name: value}``."""
    return {
        "embed_dim": options.embed_dim,
        "num_heads": options.num_heads,
        "dropout": options.attention_dropout,
        "untie_kv": options.untie_kv,
        "pack_activation": options.pack_activation,
        "backend": options.backend,
        "builders": builders,
    }


@dataclass(frozen=True)
class DecoderAttentions:
    """Factory that builds the attention modules of a decoder, by default those of the Luna paper.

    A subclass for other attentions overrides the methods that build them. If their weights depend on token
    positions, it overrides :meth:`find_source_geometry` and :meth:`find_target_geometry` too.

    Attributes:
        options: decoder options.
    """

    options: DecoderOptions

    def build_causal_attention(self, builders: Builders = TORCH) -> nn.Module:
        """Build the causal self-attention of one layer."""
        return LunaCausalAttention(**causal_arguments(self.options, builders))

    def build_cross_attention(self, update_packed: bool, builders: Builders = TORCH) -> nn.Module:
        """Build the attention to the source of one layer.

        update_packed: False if no later layer uses the packed sequence P of this layer, so that an attention
        that does not need P itself can omit pack attention.
        """
        return LunaAttention(**attention_arguments(self.options, builders))

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
                hypothesis, or None at the beginning of the target.

        Returns:
            Tuple of the positions and of the state to pass to the next call, each None if not needed.
        """
        return None, None
