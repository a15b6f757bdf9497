"""Factory that builds the attention modules of an encoder's layers."""

from dataclasses import dataclass
from typing import Any, Dict, Optional

from torch import Tensor, nn

from luna_fairseq.modules.batch import Geometry, Source
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.options import EncoderOptions, StackOptions


def attention_arguments(options: StackOptions, builders: Builders = TORCH) -> Dict[str, Any]:
    """Return the arguments of :class:`LunaAttention` that the options determine, ``{name: value}``."""
    return {
        "embed_dim": options.embed_dim,
        "num_heads": options.num_heads,
        "num_pack_heads": options.num_pack_heads,
        "dropout": options.attention_dropout,
        "untie_kv": options.untie_kv,
        "builders": builders,
    }


@dataclass(frozen=True)
class EncoderAttentions:
    """Factory that builds the attention modules of an encoder.

    A subclass for another kind of attention overrides both methods.

    Attributes:
        options: encoder options.
    """

    options: EncoderOptions

    def build_attention(self, builders: Builders = TORCH) -> nn.Module:
        """Build the self-attention of one layer."""
        return LunaAttention(**attention_arguments(self.options, builders))

    def find_source_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Compute the token positions that all layers use, or return None if the layers use none.

        context: input X [S, B, C] of the first layer. packed: P [L, B, C].
        """
        return None
