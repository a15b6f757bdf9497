"""Factory that builds the attention modules of an encoder's layers."""

from typing import Any, Dict, Optional

from torch import Tensor, nn

from luna_fairseq.modules.batch import Geometry, Source
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.options import StackOptions


def attention_arguments(options: StackOptions) -> Dict[str, Any]:
    """Convert encoder or decoder options to keyword arguments for :class:`LunaAttention`.

    Args:
        options: encoder or decoder options.

    Returns:
        Mapping ``{name: value}`` of the width, the numbers of heads, the dropout probability and the other
        constructor arguments.
    """
    return {
        "embed_dim": options.embed_dim,
        "num_heads": options.num_heads,
        "num_pack_heads": options.num_pack_heads,
        "dropout": options.attention_dropout,
        "untie_kv": options.untie_kv,
    }


class EncoderAttentions:
    """Factory that builds the attention modules of an encoder's layers, by default those of the Luna paper.

    Subclass it to use other attention modules in a :class:`LunaEncoder`. If their weights depend on token
    positions, override :meth:`find_geometry` too.
    """

    def build_attention(self, options: StackOptions) -> nn.Module:
        """Build the self-attention of one layer.

        Args:
            options: encoder options, such as the width and the number of heads.

        Returns:
            A :class:`LunaAttention`.
        """
        return LunaAttention(**attention_arguments(options))

    def find_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Compute the token positions of a batch for the attention modules of all layers.

        The base class returns None. Subclasses override this method if attention weights depend on distance.
        The encoder calls it once per batch.

        Shapes: S tokens, L rows of the packed sequence P, batch size B, width C.

        Args:
            context: input X [S, B, C] of the first layer.
            packed: packed sequence P [L, B, C].
            source: padding masks of X and of P.

        Returns:
            The positions, or None if no attention module needs them.
        """
        return None
