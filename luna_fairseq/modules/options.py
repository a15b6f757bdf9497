"""Encoder and decoder options, independent of fairseq and transformers.

The table ``CONFIGURATION`` maps each option to the options of a model's configuration that determine it. The
options of fairseq's command line and the fields of transformers' configuration have the same names.
"""

from dataclasses import dataclass
from operator import not_
from typing import Any, Callable, Dict, Optional, Tuple

from torch import Tensor
from torch.nn import functional as F

LEARNED, SINUSOIDAL, NO_POSITIONS = POSITIONS = ("learned", "sinusoidal", "none")


@dataclass(frozen=True)
class StackOptions:
    """Options shared by the encoder and the decoder.

    Attributes:
        embed_dim: model width C.
        ffn_embed_dim: hidden width of the feed-forward blocks.
        num_layers: number of layers.
        num_heads: number of attention heads.
        num_pack_heads: number of pack attention heads (default: None, ``num_heads``).
        projection_length: number of rows of the packed sequence P (default: 32). Without effect in a decoder
            that reads an encoder's P.
        untie_kv: use separate projections for keys and values (default: False).
        non_contextual_packed: pass the initial P to every layer. Otherwise each layer uses the P updated by
            the previous layer (default: False).
        normalize_before: use pre-norm layers (default: False).
        activation_fn: activation of the feed-forward blocks (default: ReLU).
        dropout: dropout probability of embeddings and block outputs (default: 0).
        attention_dropout: dropout probability of attention weights (default: 0).
        activation_dropout: dropout probability after the activation of the feed-forward blocks (default: 0).
        word_dropout: dropout probability of whole token embeddings (default: 0).
        positions: "learned", "sinusoidal" or "none" (default: "sinusoidal").
        max_positions: maximum sequence length of learned positions (default: 1,024).
        scale_embedding: multiply token embeddings and P by sqrt(C) (default: True).
        layernorm_embedding: apply a layer norm to token embeddings and P (default: False).
        linear_embedding: apply a linear projection to token embeddings, for fairseq's quantization noise
            (default: False).
        fixed_shapes: do not let the sentence lengths in a batch determine shapes or operations. A graph that
            is exported for all lengths requires this (default: False).
    """

    embed_dim: int
    ffn_embed_dim: int
    num_layers: int
    num_heads: int
    num_pack_heads: Optional[int] = None
    projection_length: int = 32
    untie_kv: bool = False
    non_contextual_packed: bool = False
    normalize_before: bool = False
    activation_fn: Callable[[Tensor], Tensor] = F.relu
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    word_dropout: float = 0.0
    positions: str = SINUSOIDAL
    max_positions: int = 1024
    scale_embedding: bool = True
    layernorm_embedding: bool = False
    linear_embedding: bool = False
    fixed_shapes: bool = False


@dataclass(frozen=True)
class EncoderOptions(StackOptions):
    """Encoder options, in addition to the options of :class:`StackOptions`.

    P is the packed sequence, which has ``projection_length`` rows.

    Attributes:
        fix_projection_length: use all rows of P for every sentence. Otherwise a sentence uses at most as many
            rows as it has tokens (default: False).
        sentence_encoder: build the encoder of an encoder-only model. It applies a layer norm to P after the
            last layer, and sets padded rows of the initial P to zero (default: False).
        packed_is_read: False if no classification head uses P after the last layer. The layer norm of this P
            then has no parameters (default: True).
        layer_repeats: number of times the layer stack is applied (default: 1).

    Example:
        >>> options = EncoderOptions(embed_dim=512, ffn_embed_dim=2048, num_layers=6, num_heads=8)
        >>> options.projection_length
        32
    """

    fix_projection_length: bool = False
    sentence_encoder: bool = False
    packed_is_read: bool = True
    layer_repeats: int = 1

    @property
    def normalizes_last_packed(self) -> bool:
        """True if the encoder applies a layer norm to P after the last layer.

        Only a sentence encoder does so, unless it repeats post-norm layers, which normalize P themselves.
        """
        return self.sentence_encoder and not (self.layer_repeats > 1 and not self.normalize_before)


@dataclass(frozen=True)
class DecoderOptions(StackOptions):
    """Decoder options, in addition to the options of :class:`StackOptions`.

    Attributes:
        has_encoder: build cross-attention to an encoder. Otherwise the decoder is a language model with a
            learned packed sequence P in each layer (default: True).
        output_dim: width of the output features (default: None, ``embed_dim``).
        final_norm: apply a layer norm to the output of a pre-norm decoder (default: True).
        pack_activation: activation applied to the causal pack attention logits, "softplus" or "elu" (default:
            "softplus").
        backend: implementation of causal attention over whole sequences, "auto", "naive", "chunk",
            "parallel" or "triton" (default: "auto"; see :func:`luna_fairseq.ops.causal_luna`).

    Example:
        >>> options = DecoderOptions(embed_dim=512, ffn_embed_dim=2048, num_layers=6, num_heads=8)
        >>> options.has_encoder
        True
    """

    has_encoder: bool = True
    output_dim: Optional[int] = None
    final_norm: bool = True
    pack_activation: str = "softplus"
    backend: str = "auto"


def choose_positions(learned: bool, none: bool) -> str:
    """Return "none" if ``none`` is True, "learned" if only ``learned`` is True, otherwise "sinusoidal"."""
    if none:
        return NO_POSITIONS
    return LEARNED if learned else SINUSOIDAL


# Options of a model's configuration that determine each option above. An adapter gives the other options.
# "{side}" stands for encoder or decoder, "{text}" for source or target.
CONFIGURATION: Dict[str, Tuple[str, ...]] = {
    "embed_dim": ("{side}_embed_dim",),
    "ffn_embed_dim": ("{side}_ffn_embed_dim",),
    "num_layers": ("{side}_layers",),
    "num_heads": ("{side}_attention_heads",),
    "num_pack_heads": ("{side}_projected_attention_heads",),
    "projection_length": ("projection_length",),
    "untie_kv": ("untie_luna_kv",),
    "non_contextual_packed": ("non_contextual_packed",),
    "normalize_before": ("{side}_normalize_before",),
    "dropout": ("dropout",),
    "attention_dropout": ("attention_dropout",),
    "activation_dropout": ("activation_dropout",),
    "word_dropout": ("word_dropout",),
    "positions": ("{side}_learned_pos", "no_token_positional_embeddings"),
    "max_positions": ("max_{text}_positions",),
    "scale_embedding": ("no_scale_embedding",),
    "layernorm_embedding": ("layernorm_embedding",),
    "linear_embedding": ("quant_noise_pq",),
    "fix_projection_length": ("fix_projection_length",),
    "output_dim": ("decoder_output_dim",),
    "final_norm": ("no_decoder_final_norm",),
    "pack_activation": ("pack_activation",),
}
# Functions of the values above, for each option that is not the value itself.
CONVERSIONS: Dict[str, Callable[..., Any]] = {
    "positions": choose_positions,
    "scale_embedding": not_,
    "linear_embedding": bool,
    "final_norm": not_,
}


def options_from(options_class: Any, read: Callable[[str], Any], **given: Any) -> Any:
    """Read the options of an encoder or a decoder from a configuration.

    Args:
        options_class: :class:`EncoderOptions` or :class:`DecoderOptions`.
        read: function that returns the value of a configuration option, given its name.
        **given: options that are not read from the configuration.

    Returns:
        An instance of ``options_class``.

    Example:
        >>> options_from(EncoderOptions, {"encoder_layers": 6}.get, sentence_encoder=True).num_layers
        6
    """
    values = {}
    for name in options_class.__dataclass_fields__:
        if name in CONFIGURATION and name not in given:
            found = [read(source) for source in _names_in_configuration(options_class, name)]
            values[name] = CONVERSIONS[name](*found) if name in CONVERSIONS else found[0]
    return options_class(**values, **given)


def _names_in_configuration(options_class: Any, name: str) -> Tuple[str, ...]:
    """Return the configuration options that determine option ``name``: "encoder_layers" for "num_layers"."""
    encodes = issubclass(options_class, EncoderOptions)
    words = {"side": "encoder", "text": "source"} if encodes else {"side": "decoder", "text": "target"}
    return tuple(source.format(**words) for source in CONFIGURATION[name])
