"""Options of the masked language models: options of RoBERTa under their names, and options of Luna."""

from dataclasses import dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from luna_fairseq.checks.bounds import PROBABILITY
from luna_fairseq.models.options import (
    Activation,
    EncoderOptions,
    LayerOptions,
    LunaEncoderOptions,
    LunaOptions,
    option,
)


@dataclass
class SentenceOptions(LayerOptions, EncoderOptions):
    """Options of every masked language model. The defaults are the base size of Table 8."""

    encoder_layers: int = option(12, "number of encoder layers", least=1)
    encoder_embed_dim: int = option(768, "encoder embedding dimension", least=1)
    encoder_ffn_embed_dim: int = option(3072, "encoder embedding dimension for FFN", least=1)
    encoder_attention_heads: int = option(12, "number of encoder attention heads", least=1)
    max_positions: int = option(512, "number of learned positions, the longest sequence", least=1)
    activation_fn: Activation = option("gelu", "activation function to use")
    attention_init: ChoiceEnum(["bert", "xavier"]) = option(
        "bert",
        "weights that attention's projections begin with: normal(0.02) as BERT's, or Xavier's as in "
        "translation, which are larger and let small models learn sooner",
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
        None, "which encoder layers to keep when pruning, as 0,2,4", may_change=True
    )
    load_checkpoint_heads: bool = option(
        False, "register and load the classification heads of a checkpoint, too", may_change=True
    )
    spectral_norm_classification_head: bool = option(
        False, "spectral normalization on the classification head's projection"
    )


@dataclass
class LunaMaskedLMConfig(SentenceOptions, LunaOptions, LunaEncoderOptions):
    """Options of Luna's masked language model. The defaults are the base size of Luna in Table 8."""

    projection_length: int = option(128, "l, the length of the packed sequence P", least=1)
    untie_weights_luna: bool = option(False, "an output projection of its own, not the token embedding")
