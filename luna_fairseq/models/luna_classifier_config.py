"""Options of the classifiers of long sequences: of the Transformer under fairseq's names, and of Luna."""

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
class ClassifierOptions(LayerOptions, EncoderOptions):
    """Options of the Transformer, its input and its classifier: the authors' base architecture."""

    input_type: Optional[ChoiceEnum(["text", "image"])] = option(
        None, "tokens or pixels (default: what the task reads; anything else is refused)", may_change=True
    )
    sentence_class_num: int = option(2, "number of classes", least=2)
    sen_rep_type: ChoiceEnum(["cls", "mp"]) = option(
        "cls", "what represents a sequence: the first token, which is then <CLS>, or the mean of all tokens"
    )
    pair_combination: ChoiceEnum(["concat", "nli"]) = option(
        "concat", "how the two of a pair, u and v, are put together: [u, v], or [u, v, u * v, u - v]"
    )
    classifier_layers: int = option(1, "hidden layers of the classifier", least=1)
    classifier_out_dim: int = option(2048, "width of the classifier's hidden layers", least=1)
    classifier_activation_fn: Activation = option("relu", "activation function of the classifier")
    apply_bert_init: bool = option(
        False, "begin with BERT's weights: normal, standard deviation 0.02", may_change=True
    )
    tie_layer_weights: bool = option(False, "one layer, applied --encoder-layers times")
    encoder_normalize_before: bool = option(
        False, "apply layernorm before each encoder block, and none to the embedding"
    )
    encoder_learned_pos: bool = option(
        False, "learned positions, and embeddings that are not scaled (default: sinusoidal, and scaled)"
    )
    no_token_positional_embeddings: bool = option(False, "disable positional embeddings")
    max_positions: int = option(4002, "longest sequence; a longer text is cut off there", least=1)
    activation_fn: Activation = option("gelu", "activation function to use")
    attention_dropout: float = option(
        0.1, "dropout probability for attention weights", may_change=True, **PROBABILITY
    )
    activation_dropout: float = option(
        0.0,
        "dropout probability after activation in FFN",
        may_change=True,
        argparse_alias="--act-dropout",
        **PROBABILITY,
    )


@dataclass
class LunaClassifierConfig(ClassifierOptions, LunaOptions, LunaEncoderOptions):
    """Options of Luna's classifier. Defaults are the authors' base architecture for Long Range Arena."""

    layer_type: ChoiceEnum(["luna", "transformer"]) = option(
        "luna", "layers of the encoder: Luna's, or fairseq's Transformer's"
    )
    encoder_projection_length: int = option(16, "l, the length of the packed sequence P", least=1)
    encoder_projected_attention_heads: Optional[int] = option(
        None, "heads of pack attention", default_from="encoder_attention_heads", least=1
    )
    use_p: bool = option(False, "a sequence is represented by the mean of the last packed sequence")
