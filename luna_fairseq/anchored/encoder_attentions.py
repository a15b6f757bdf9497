"""Choose the attention of an encoder with the extension, and compute the geometry that it reads."""

from typing import Any, NamedTuple, Optional

from torch import Tensor, nn

from luna_fairseq.anchored.attention import AnchoredSelfAttention
from luna_fairseq.anchored.geometry import Needs, context_geometry
from luna_fairseq.errors import InputError
from luna_fairseq.modules.batch import Geometry, Source
from luna_fairseq.modules.encoder_attentions import EncoderAttentions, attention_arguments
from luna_fairseq.modules.options import StackOptions


class ExtensionOptions(NamedTuple):
    """Options of the extension. Their names are those of the command line and of config.json.

    Attributes:
        anchored_packed: give every row of P a place in the context (default: False)
        anchor_strength: initial gamma of pack attention (default: 4)
        local_parts: odd number of segments in a window of the encoder (default: 0, no window)
        cross_attention: attention to the source, "luna" or "softmax" (default: luna)
        packed_lookup: number of segments whose tokens each query of cross-attention reads (default: 0, none)
        diagonal_prior: add a diagonal prior to attention to the source (default: False)
        causal_decay: use causal attention with decay (default: False)
    """

    anchored_packed: bool = False
    anchor_strength: float = 4.0
    local_parts: int = 0
    cross_attention: str = "luna"
    packed_lookup: int = 0
    diagonal_prior: bool = False
    causal_decay: bool = False


def extension_options(cfg: Any) -> ExtensionOptions:
    """Return the options of the extension.

    Args:
        cfg: any object with some of the attributes of :class:`ExtensionOptions`

    Raises:
        InputError: an option needs --anchored-packed, or two options exclude each other
    """
    defaults = ExtensionOptions()
    given: Any = {name: getattr(cfg, name, value) for name, value in defaults._asdict().items()}
    options = ExtensionOptions(**given)
    needs = {
        "packed_lookup": "only rows with a place have tokens of their own",
        "local_parts": "only rows with a place have tokens of their own",
        "diagonal_prior": "only rows with a place lie near one",
    }
    for name, why in needs.items():
        if getattr(options, name) and not options.anchored_packed:
            raise InputError(f"--{name.replace('_', '-')} needs --anchored-packed: {why}")
    if options.packed_lookup and options.cross_attention == "softmax":
        raise InputError(
            "--packed-lookup and --cross-attention softmax do not go together: give --packed-lookup 0"
        )
    return options


def choose_encoder_attentions(cfg: Any) -> EncoderAttentions:
    """Return the attentions of an encoder that a model's options ask for.

    Without options of the extension, these are the attentions of the paper.

    Args:
        cfg: any object with some of the attributes of :class:`ExtensionOptions`

    Raises:
        InputError: options of the extension contradict each other, see :func:`extension_options`
    """
    options = extension_options(cfg)
    return AnchoredEncoderAttentions(options) if options.anchored_packed else EncoderAttentions()


class AnchoredEncoderAttentions(EncoderAttentions):
    """Attention whose rows of P have places in the sequence.

    Args:
        options: options of the extension
    """

    def __init__(self, options: ExtensionOptions):
        self.options, self.needs = options, Needs()

    def build_attention(self, options: StackOptions) -> nn.Module:
        """Build self-attention of a layer."""
        attention = AnchoredSelfAttention(
            **attention_arguments(options),
            anchor_strength=self.options.anchor_strength,
            window=self.options.local_parts,
        )
        self.needs = attention.needs()
        return attention

    def find_geometry(self, context: Tensor, packed: Tensor, source: Source) -> Optional[Geometry]:
        """Compute the geometry of a batch: distances from the rows of P, and windows of tokens.

        See :meth:`EncoderAttentions.find_geometry` for the arguments.
        """
        return Geometry(context_geometry(self.needs, context, packed, source))
