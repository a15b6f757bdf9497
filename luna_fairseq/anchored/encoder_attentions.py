"""Options of anchored attention, and the factory that builds the attention modules of an encoder.

Anchored attention divides the context into segments, runs of consecutive tokens. Row i of the packed sequence
P summarizes segment i.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from torch import Tensor, nn

from luna_fairseq.anchored.attention import AnchoredSelfAttention
from luna_fairseq.anchored.geometry import Needs, context_geometry
from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import Geometry, Source
from luna_fairseq.modules.builders import TORCH, Builders
from luna_fairseq.modules.encoder_attentions import EncoderAttentions, attention_arguments
from luna_fairseq.modules.options import EncoderOptions


class ExtensionOptions(NamedTuple):
    """Options of anchored attention and related features, named like the command-line options.

    See :mod:`luna_fairseq.anchored.options` for the meaning of each option.
    """

    anchored_packed: bool = False
    anchor_strength: float = 4.0
    local_parts: int = 0
    cross_attention: str = "luna"
    packed_lookup: int = 0
    diagonal_prior: bool = False
    causal_decay: bool = False


def extension_options(cfg: Any) -> ExtensionOptions:
    """Read the options of anchored attention from a configuration, and check that they are compatible.

    cfg: object with options as attributes. Missing options have their default values.
    """
    defaults = ExtensionOptions()
    values: Any = {name: getattr(cfg, name, value) for name, value in defaults._asdict().items()}
    options = ExtensionOptions(**values)
    needs = {
        "packed_lookup": "a look-up reads the segments of anchored rows",
        "local_parts": "a window consists of the segments of anchored rows",
        "diagonal_prior": "only anchored rows have a distance from the diagonal",
    }
    for name, why in needs.items():
        if getattr(options, name) and not options.anchored_packed:
            raise InputError(f"--{name.replace('_', '-')} needs --anchored-packed: {why}")
    if options.packed_lookup and options.cross_attention == "softmax":
        raise InputError(
            "--packed-lookup and --cross-attention softmax cannot be combined. Use --packed-lookup 0"
        )
    return options


def choose_encoder_attentions(cfg: Any, options: EncoderOptions) -> EncoderAttentions:
    """Return the factory of an encoder's attention modules that the configuration ``cfg`` selects."""
    extension = extension_options(cfg)
    if extension.anchored_packed:
        return AnchoredEncoderAttentions(options, extension)
    return EncoderAttentions(options)


@dataclass(frozen=True)
class AnchoredEncoderAttentions(EncoderAttentions):
    """Factory that builds the attention modules of an encoder with anchored attention."""

    extension: ExtensionOptions

    @property
    def needs(self) -> Needs:
        """Distances and positions that the attention modules of all layers need."""
        window = self.extension.local_parts
        return Needs(self.options.num_pack_heads or self.options.num_heads, unpack=not window, window=window)

    def build_attention(self, builders: Builders = TORCH) -> nn.Module:
        return AnchoredSelfAttention(
            **attention_arguments(self.options, builders),
            anchor_strength=self.extension.anchor_strength,
            window=self.extension.local_parts,
        )

    def find_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Compute the distances between tokens and segments and, with a window, the tokens of each window."""
        return Geometry(context_geometry(self.needs, context, packed, source))
