"""Command-line options for the long-sequence classifiers."""

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
class ClassifierOptions(LayerOptions, EncoderSizeOptions):
    """Options of all long-sequence classifiers of this package. Sizes default to the authors' base size."""

    input_type: Optional[ChoiceEnum(["text", "image"])] = option(
        None, "kind of input, which must fit the task (default: the kind of the task)", may_change=True
    )
    sentence_class_num: int = option(2, "number of classes", least=2)
    sen_rep_type: ChoiceEnum(["cls", "mp"]) = option(
        "cls",
        "representation of a sequence: cls, the first token, which is <CLS>; mp, the mean of all tokens",
    )
    pair_combination: ChoiceEnum(["concat", "nli"]) = option(
        "concat",
        "combination of the two vectors u and v of a pair: concat, [u, v]; nli, [u, v, u * v, u - v]",
    )
    length_groups: int = option(
        1,
        "encode the texts of a batch in this many groups of similar length, which saves most of the "
        "computation for padding; the results are equal up to rounding",
        least=1,
        may_change=True,
    )
    classifier_layers: int = option(1, "number of hidden layers of the classifier", least=1)
    classifier_out_dim: int = option(2048, "width of the classifier's hidden layers", least=1)
    classifier_activation_fn: Activation = option("relu", "activation function of the classifier")
    apply_bert_init: bool = option(
        False,
        "initialise weights as BERT does, normally distributed with standard deviation 0.02",
        may_change=True,
    )
    tie_layer_weights: bool = option(False, "share one layer, which is applied --encoder-layers times")
    encoder_normalize_before: bool = option(
        False, "apply layernorm before each encoder block, and not to the embedding"
    )
    encoder_learned_pos: bool = option(
        False,
        "use learned positions and unscaled embeddings (default: sinusoidal positions, scaled embeddings)",
    )
    no_token_positional_embeddings: bool = option(False, "disable positional embeddings")
    max_positions: int = option(
        4002, "largest number of tokens of a sequence; longer texts are truncated", least=1
    )
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
    """All options of the Luna long-sequence classifier (``--arch lra``).

    Architectures such as ``luna_lra_listop`` set them as the authors' code does for a task of the benchmark.
    """

    layer_type: ChoiceEnum(["luna", "transformer"]) = option(
        "luna", "kind of encoder layers: layers of Luna, or of fairseq's Transformer"
    )
    encoder_projection_length: int = option(16, "l, the length of the packed sequence P", least=1)
    encoder_projected_attention_heads: Optional[int] = option(
        None, "heads of pack attention", default_from="encoder_attention_heads", least=1
    )
    use_p: bool = option(False, "represent a sequence by the mean of the last packed sequence P")
