"""Groups of command-line options for the configurations of several models.

A model's configuration dataclass inherits the groups that it needs. The command line, Hydra and the code that
loads checkpoints all use these declarations (see ``checks/model_options.py``). The dataclasses are flat,
because fairseq's command line ignores the options of nested dataclasses.
"""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import DEFAULT_MIN_PARAMS_TO_WRAP
from luna_fairseq.anchored.factories import CROSS_ATTENTIONS, ExtensionOptions
from luna_fairseq.checks.bounds import PROBABILITY
from luna_fairseq.checks.model_options import COSTS_ONLY, DEFAULT_FROM, MAY_CHANGE
from luna_fairseq.ops.causal_luna import BACKENDS, PACK_ACTIVATIONS

Activation = ChoiceEnum(utils.get_available_activation_fns())
_EXTENSION = ExtensionOptions()  # defaults


def option(
    default: Any,
    help: str,
    may_change: bool = False,
    costs_only: bool = False,
    default_from: Optional[str] = None,
    **metadata: Any,
) -> Any:
    """Declare a command-line option as a dataclass field.

    ``may_change`` marks an option, such as dropout, that does not affect the output of a trained model.
    Training may resume with a different value, and checkpoints with different values may be averaged.
    ``costs_only`` marks an option that does not affect training either, except for its time or memory.
    ``default_from`` names another option whose value is the default. ``metadata`` contains bounds for numeric
    options (see ``checks/bounds.py``), the options that this one needs (``used_with``, see
    ``checks/model_options.py``), or fairseq's metadata such as ``argparse_alias``.
    """
    if default_from is not None:
        help += f" (default: --{default_from.replace('_', '-')})"
    flags = {MAY_CHANGE: may_change or costs_only, COSTS_ONLY: costs_only, DEFAULT_FROM: default_from}
    return field(default=default, metadata={"help": help, **flags, **metadata})


@dataclass
class LayerOptions(FairseqDataclass):
    """Options for the layers of every model: activation, dropout, precision and memory."""

    activation_fn: Activation = option("relu", "activation function to use")
    dropout: float = option(0.1, "dropout probability", may_change=True, **PROBABILITY)
    attention_dropout: float = option(
        0.0, "dropout probability for attention weights", may_change=True, **PROBABILITY
    )
    activation_dropout: float = option(
        0.0,
        "dropout probability after activation in FFN",
        may_change=True,
        argparse_alias="--relu-dropout",
        **PROBABILITY,
    )
    checkpoint_activations: bool = option(
        False,
        "recompute each layer's activations in the backward pass, which saves memory",
        costs_only=True,
    )
    offload_activations: bool = option(
        False,
        "with --checkpoint-activations: keep the stored activations on the CPU",
        costs_only=True,
        used_with={"checkpoint_activations": True},
    )
    min_params_to_wrap: int = option(
        DEFAULT_MIN_PARAMS_TO_WRAP,
        "minimum number of parameters for a layer to be wrapped with FSDP",
        costs_only=True,
        least=0,
    )
    # Noise adds a linear layer to the model, so it is not marked with may_change.
    quant_noise_pq: float = option(0.0, "iterative PQ quantization noise at training time", **PROBABILITY)
    quant_noise_pq_block_size: int = option(
        8,
        "with --quant-noise-pq: block size of the noise",
        may_change=True,
        least=1,
        used_with={"quant_noise_pq": True},
    )
    quant_noise_scalar: float = option(
        0.0,
        "scalar quantization noise at training time, for models without learned positions; training and "
        "decoding need a GPU",
        may_change=True,
        **PROBABILITY,
    )


@dataclass
class LunaOptions(LayerOptions):
    """Options for the layers of every Luna model: separate key and value projections, and torch.compile."""

    untie_luna_kv: bool = option(False, "use separate projections for keys and values")
    torch_compile: bool = option(
        False, "run the layers through torch.compile in training (torch 2.5 or newer)", costs_only=True
    )


@dataclass
class EncoderSizeOptions(FairseqDataclass):
    """Options for the size of the encoder, in Luna and Transformer models."""

    encoder_layers: int = option(6, "number of encoder layers", least=1)
    encoder_embed_dim: int = option(512, "encoder embedding dimension", least=1)
    encoder_ffn_embed_dim: int = option(2048, "encoder embedding dimension for FFN", least=1)
    encoder_attention_heads: int = option(8, "number of encoder attention heads", least=1)
    encoder_normalize_before: bool = option(False, "apply layernorm before each encoder block")


@dataclass
class AnchorOptions(FairseqDataclass):
    """Options of anchored attention, in which each row of the packed sequence P favours nearby tokens.

    The text is divided into one segment per row of P.
    """

    anchored_packed: bool = option(
        _EXTENSION.anchored_packed,
        "anchor every row of P at a place in the context, and favour tokens near that place "
        "(default: the paper's P, without places)",
    )
    anchor_strength: float = option(
        _EXTENSION.anchor_strength,
        "with --anchored-packed: initial strength of the anchors, the amount by which a "
        "distance of one segment of the context lowers the logits of pack attention",
        above=0,
        used_with={"anchored_packed": True},
    )
    local_parts: int = option(
        _EXTENSION.local_parts,
        "with --anchored-packed: number of segments in the window of neighbouring tokens that "
        "every encoder token reads beside P, with its own segment in the middle; odd (0: no window)",
        least=0,
    )


@dataclass
class DecayOptions(FairseqDataclass):
    """Option ``--causal-decay``, which makes the decoder's attention gradually forget earlier tokens."""

    causal_decay: bool = option(
        _EXTENSION.causal_decay,
        "decay the weight of earlier positions in causal attention exponentially with distance, "
        "at a rate that each head learns (default: the paper's attention, without decay)",
    )


@dataclass
class CrossOptions(FairseqDataclass):
    """Options of the decoder's cross-attention: Luna or softmax attention, look-up, and diagonal prior."""

    cross_attention: ChoiceEnum(CROSS_ATTENTIONS) = option(
        _EXTENSION.cross_attention,
        "attention to the source: luna reads the source through P; softmax reads all tokens, at "
        "a cost of source length times target length",
    )
    packed_lookup: int = option(
        _EXTENSION.packed_lookup,
        "with --anchored-packed: attention to the source also reads the tokens of this many rows "
        "of P, those with the largest logits; at most 64 tokens are all read (0: no look-up)",
        least=0,
    )
    diagonal_prior: bool = option(
        _EXTENSION.diagonal_prior,
        "with --anchored-packed: favour source tokens near the diagonal, as if source and target "
        "ran at the same pace; each head learns its pace and strength",
    )
    sentence_diagonal: bool = option(
        False,
        "with --diagonal-prior, for text prepared with --documents: restart the diagonal at each "
        "<sep>, at the source sentence with the same number",
    )


@dataclass
class LunaEncoderOptions(AnchorOptions, EncoderSizeOptions):
    """Options for every Luna encoder, including the options for anchored attention."""

    fix_projection_length: bool = option(
        False, "always use the whole packed sequence P (default: at most as many vectors as tokens)"
    )


@dataclass
class DecoderSizeOptions(FairseqDataclass):
    """Options for the size, embeddings and 8-bit weights of the decoder, in Luna and Transformer models."""

    decoder_embed_dim: Optional[int] = option(
        None,
        "decoder embedding dimension, which must equal that of the encoder",
        default_from="encoder_embed_dim",
        least=1,
    )
    decoder_ffn_embed_dim: Optional[int] = option(
        None, "decoder embedding dimension for FFN", default_from="encoder_ffn_embed_dim", least=1
    )
    decoder_layers: int = option(6, "number of decoder layers", least=1)
    decoder_attention_heads: int = option(8, "number of decoder attention heads", least=1)
    decoder_normalize_before: bool = option(False, "apply layernorm before each decoder block")
    decoder_learned_pos: bool = option(
        False,
        "use learned positional embeddings in the decoder",
        used_with={"no_token_positional_embeddings": False},
    )
    decoder_layerdrop: float = option(
        0.0, "LayerDrop probability for the decoder", may_change=True, **PROBABILITY
    )
    decoder_layers_to_keep: Optional[str] = option(
        None, "decoder layers to keep when pruning, such as 0,2,4", may_change=True
    )
    decoder_input_dim: Optional[int] = option(
        None, "decoder input dimension", default_from="decoder_embed_dim", least=1
    )
    decoder_output_dim: Optional[int] = option(
        None, "decoder output dimension", default_from="decoder_embed_dim", least=1
    )
    share_decoder_input_output_embed: bool = option(
        False,
        "share decoder input and output embeddings",
        used_with={"adaptive_softmax_cutoff": False},
    )
    no_token_positional_embeddings: bool = option(False, "disable positional embeddings")
    layernorm_embedding: bool = option(False, "add layernorm to embedding")
    no_scale_embedding: bool = option(False, "do not scale embeddings by the root of their dimension")
    adaptive_softmax_cutoff: Optional[str] = option(
        None,
        "comma-separated list of adaptive softmax cutoff points; must be used with the adaptive_loss "
        "criterion",
    )
    adaptive_softmax_dropout: float = option(
        0.0,
        "dropout for the tail projections of adaptive softmax",
        may_change=True,
        used_with={"adaptive_softmax_cutoff": True},
        **PROBABILITY,
    )
    adaptive_softmax_factor: float = option(
        4.0,
        "factor by which each tail projection of adaptive softmax is smaller",
        least=1,
        used_with={"adaptive_softmax_cutoff": True},
    )
    int8: bool = option(
        False,
        "decode on a CPU with 8-bit weights; for trained models, with --model-overrides \"{'int8': True}\"",
        costs_only=True,
    )


@dataclass
class LunaDecoderOptions(DecayOptions, DecoderSizeOptions):
    """Options for every Luna decoder: its size, embeddings and causal attention."""

    # In translation, this is the P of the encoder, with which the decoder continues.
    projection_length: int = option(32, "l, the length of the packed sequence P", least=1)
    pack_activation: ChoiceEnum(list(PACK_ACTIVATIONS)) = option(
        "softplus", "activation of causal pack attention"
    )
    luna_backend: ChoiceEnum(list(BACKENDS)) = option(
        "auto", "implementation of causal attention over whole sequences", costs_only=True
    )
    word_dropout: float = option(
        0.0, "dropout probability for whole token embeddings", may_change=True, **PROBABILITY
    )
