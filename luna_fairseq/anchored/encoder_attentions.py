"""Build the attention modules of an encoder with anchored attention."""

from dataclasses import dataclass
from typing import Any, Optional

from torch import Tensor, nn

from luna_fairseq.anchored.attention import AnchoredSelfAttention
from luna_fairseq.anchored.geometry import Needs, context_geometry
from luna_fairseq.anchored.options import ExtensionOptions, extension_options
from luna_fairseq.modules.batch import Geometry, Source
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.encoder_attentions import EncoderAttentions, attention_arguments
from luna_fairseq.modules.options import EncoderOptions


def choose_encoder_attentions(cfg: Any, options: EncoderOptions) -> EncoderAttentions:
    """Return the factory for an encoder's attention modules, Luna's or anchored ones as options select."""
    extension = extension_options(cfg)
    if extension.anchored_packed:
        return AnchoredEncoderAttentions(options, extension)
    return EncoderAttentions(options)


@dataclass(frozen=True)
class AnchoredEncoderAttentions(EncoderAttentions):
    """Factory for the attention modules of an encoder with anchored attention."""

    extension: ExtensionOptions

    @property
    def needs(self) -> Needs:
        """Features of the attention modules that need distances or positions of tokens."""
        window = self.extension.local_parts
        return Needs(self.options.num_pack_heads or self.options.num_heads, unpack=not window, window=window)

    def build_attention(self, builders: Builders = TORCH) -> nn.Module:
        return AnchoredSelfAttention(
            **attention_arguments(self.options, builders),
            anchor_strength=self.extension.anchor_strength,
            window=self.extension.local_parts,
        )

    def find_source_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Compute the distances between tokens and segments and, with a window, the tokens of each window."""
        return Geometry(context_geometry(self.needs, context, packed, source))
