"""Command-line options for the masked language models."""

from dataclasses import dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from luna_fairseq.checks.bounds import PROBABILITY
from luna_fairseq.models.options import (
    Activation,
    EncoderSizeOptions,
    LayerOptions,
    LunaEncoderOptions,
    LunaOptions,
    option,
)


@dataclass
class SentenceOptions(LayerOptions, EncoderSizeOptions):
    """Options of fairseq's RoBERTa that all masked language models of this package share.

    The defaults match the base size in Table 8 of the paper.
    """

    encoder_layers: int = option(12, "number of encoder layers", least=1)
    encoder_embed_dim: int = option(768, "encoder embedding dimension", least=1)
    encoder_ffn_embed_dim: int = option(3072, "encoder embedding dimension for FFN", least=1)
    encoder_attention_heads: int = option(12, "number of encoder attention heads", least=1)
    max_positions: int = option(
        512, "number of learned positions, and so the length of the longest sequence", least=1
    )
    activation_fn: Activation = option("gelu", "activation function to use")
    attention_init: ChoiceEnum(["bert", "xavier"]) = option(
        "bert",
        "initial weights of the projections in attention: bert, normally distributed with standard deviation "
        "0.02; xavier, larger weights as in translation, with which small models learn sooner",
        may_change=True,
    )
    pooler_activation_fn: Activation = option("tanh", "activation function of classification heads")
    attention_dropout: float = option(
        0.1, "dropout probability for attention weights", may_change=True, **PROBABILITY
    )
    activation_dropout: float = option(
        0.0, "dropout probability after activation in FFN", may_change=True, **PROBABILITY
    )
    pooler_dropout: float = option(
        0.0, "dropout probability in classification heads", may_change=True, **PROBABILITY
    )
    encoder_layerdrop: float = option(
        0.0, "LayerDrop probability for the encoder", may_change=True, **PROBABILITY
    )
    encoder_layers_to_keep: Optional[str] = option(
        None, "encoder layers to keep when pruning, such as 0,2,4", may_change=True
    )
    load_checkpoint_heads: bool = option(
        False, "also register and load the classification heads of a checkpoint", may_change=True
    )
    spectral_norm_classification_head: bool = option(
        False, "apply spectral normalization to the projection of the classification head"
    )


@dataclass
class LunaMaskedLMConfig(SentenceOptions, LunaOptions, LunaEncoderOptions):
    """All options of the Luna masked language model (``--arch luna_masked_lm``).

    The defaults match Luna's base size in Table 8 of the paper.
    """

    projection_length: int = option(128, "l, the length of the packed sequence P", least=1)
    untie_weights_luna: bool = option(
        False, "learn a separate output projection instead of sharing the token embedding"
    )
