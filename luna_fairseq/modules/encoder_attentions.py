"""Factory that builds the attentions of an encoder's layers."""

from typing import Any, Dict, Optional

from torch import Tensor, nn

from luna_fairseq.modules.batch import Geometry, Source
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.options import StackOptions


def attention_arguments(options: StackOptions) -> Dict[str, Any]:
    """Return the keyword arguments of :class:`LunaAttention` for a model with these options.

    Args:
        options: options of the encoder or decoder.
    """
    return {
        "embed_dim": options.embed_dim,
        "num_heads": options.num_heads,
        "num_pack_heads": options.num_pack_heads,
        "dropout": options.attention_dropout,
        "untie_kv": options.untie_kv,
    }


class EncoderAttentions:
    """Factory that builds the attentions of an encoder's layers, by default those of the paper.

    Subclasses override :meth:`build_attention` to build another attention. If this attention depends on token
    positions, called the geometry of a batch, :meth:`find_geometry` computes the positions.
    """

    def build_attention(self, options: StackOptions) -> nn.Module:
        """Build the self-attention of one layer.

        Args:
            options: options of the encoder.
        """
        return LunaAttention(**attention_arguments(options))

    def find_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Compute the token positions of a batch that the attentions of all layers read.

        The paper's attention does not read positions, so this class returns None.

        Args:
            context: input X [S, B, C] of the first layer.
            packed: packed sequence P [L, B, C].
            source: masks of X and of P.
        """
        return None
