"""Choose the attention of an encoder: what stands in the slot of a layer, and what it knows of a batch."""

from typing import Any, Dict, Optional

from torch import Tensor, nn

from luna_fairseq.modules.batch import Geometry, Source
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.options import StackOptions


def attention_arguments(options: StackOptions) -> Dict[str, Any]:
    """Return the arguments of :class:`LunaAttention`."""
    return {
        "embed_dim": options.embed_dim,
        "num_heads": options.num_heads,
        "num_pack_heads": options.num_pack_heads,
        "dropout": options.attention_dropout,
        "untie_kv": options.untie_kv,
    }


class EncoderAttentions:
    """The paper's attention. An extension overrides both methods: it builds another attention, and computes
    the geometry that this attention reads."""

    def build_attention(self, options: StackOptions) -> nn.Module:
        """Build self-attention of a layer."""
        return LunaAttention(**attention_arguments(options))

    def find_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Compute what the attentions know of a batch besides masks, once for all layers.

        Args:
            context: X [S, B, C]
            packed: P [L, B, C]
            source: their masks
        """
        return None
