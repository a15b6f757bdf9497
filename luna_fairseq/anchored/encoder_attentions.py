"""Factory that builds the attention modules of an encoder with anchored attention, and its options."""

from typing import Any, NamedTuple, Optional

from torch import Tensor, nn

from luna_fairseq.anchored.attention import AnchoredSelfAttention
from luna_fairseq.anchored.geometry import Needs, context_geometry
from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import Geometry, Source
from luna_fairseq.modules.encoder_attentions import EncoderAttentions, attention_arguments
from luna_fairseq.modules.options import StackOptions


class ExtensionOptions(NamedTuple):
    """Options of anchored attention and related features, named like the command-line options.

    The rows of the packed sequence P divide the context into equal segments.

    Attributes:
        anchored_packed: let each row of P favour the tokens of its segment (default: False).
        anchor_strength: initial strength of the distance bias in pack attention (default: 4).
        local_parts: odd number of segments in the local window that each encoder token additionally attends
            to (default: 0, no window).
        cross_attention: cross-attention of the decoder, "luna" or "softmax" (default: "luna").
        packed_lookup: number of segments whose tokens each cross-attention query additionally attends to
            (default: 0, none).
        diagonal_prior: favour alignments near the diagonal in cross-attention (default: False).
        causal_decay: reduce the weight of distant positions in causal attention (default: False).
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

    Args:
        cfg: any object with some of the attributes of :class:`ExtensionOptions`, such as the configuration of
            a model.

    Returns:
        The options, with default values for missing attributes.

    Raises:
        InputError: An option requires --anchored-packed, or two options are mutually exclusive.
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


def choose_encoder_attentions(cfg: Any) -> EncoderAttentions:
    """Return the factory that builds the attention modules of an encoder for a model configuration.

    Args:
        cfg: any object with some of the attributes of :class:`ExtensionOptions`, such as the configuration of
            a model. Missing attributes take their default values.

    Returns:
        :class:`AnchoredEncoderAttentions`, or the factory of the Luna paper's attention modules if anchored
        attention is not enabled.

    Raises:
        InputError: Options are incompatible, see :func:`extension_options`.
    """
    options = extension_options(cfg)
    return AnchoredEncoderAttentions(options) if options.anchored_packed else EncoderAttentions()


class AnchoredEncoderAttentions(EncoderAttentions):
    """Factory that builds the attention modules of an encoder with anchored attention.

    Anchored attention divides the context into segments, one per row of the packed sequence P.

    Args:
        options: options that enable anchored attention.
    """

    def __init__(self, options: ExtensionOptions):
        self.options, self.needs = options, Needs()

    def build_attention(self, options: StackOptions) -> nn.Module:
        """Build the self-attention of one layer, an :class:`AnchoredSelfAttention`.

        Args:
            options: encoder options.

        Returns:
            The attention module.
        """
        attention = AnchoredSelfAttention(
            **attention_arguments(options),
            anchor_strength=self.options.anchor_strength,
            window=self.options.local_parts,
        )
        self.needs = attention.needs()
        return attention

    def find_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Compute the distances between tokens and segments, and the windows of tokens, for all layers.

        Shapes: S tokens, L rows of the packed sequence P, batch size B, width C.

        Args:
            context: input X [S, B, C] of the first layer.
            packed: packed sequence P [L, B, C].
            source: padding masks of X and of P.

        Returns:
            The distances and windows.
        """
        return Geometry(context_geometry(self.needs, context, packed, source))
