"""Options of the extension, which a model's options inherit."""

from dataclasses import dataclass, field

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

CROSS_ATTENTIONS = ("luna", "softmax")


@dataclass
class AnchorOptions(FairseqDataclass):
    """Of anchored P, which every model has that packs a context."""

    anchored_packed: bool = field(
        default=False,
        metadata={
            "help": "give every row of P a place in the context, and let it attend to what is near (default: "
            "the paper's P)"
        },
    )
    anchor_strength: float = field(
        default=4.0,
        metadata={
            "help": "with --anchored-packed: how strongly pack attention is drawn to its places initially, "
            "per segment of the context",
            "above": 0,
        },
    )
    local_parts: int = field(
        default=0,
        metadata={
            "help": "with --anchored-packed: tokens of the encoder also read, beside P, the tokens of a "
            "window of so many segments of the sequence, their own in the middle; odd (0: none)",
            "least": 0,
        },
    )


@dataclass
class DecayOptions(FairseqDataclass):
    """Of every model with causal attention."""

    causal_decay: bool = field(
        default=False,
        metadata={
            "help": "causal attention forgets: a position counts less the further it lies behind, at a rate "
            "that each head learns (default: the paper's, which counts all alike)"
        },
    )


@dataclass
class CrossOptions(FairseqDataclass):
    """Of models with attention to a source."""

    cross_attention: ChoiceEnum(CROSS_ATTENTIONS) = field(
        default="luna",
        metadata={
            "help": "attention to the source: through P, or softmax attention, at the cost of source times "
            "target length"
        },
    )
    packed_lookup: int = field(
        default=0,
        metadata={
            "help": "with --anchored-packed: attention to the source also reads the tokens of the so many "
            "rows of P that a query weighs most; of a source of no more than 64 tokens all (0: none)",
            "least": 0,
        },
    )
    diagonal_prior: bool = field(
        default=False,
        metadata={
            "help": "with --anchored-packed: draw attention to the source to where it is as the target's "
            "word, were both of one pace; each head learns the pace, and how strongly"
        },
    )
    sentence_diagonal: bool = field(
        default=False,
        metadata={
            "help": "with --diagonal-prior, for text prepared with --documents: draw it anew from each <sep> "
            "on, to the source's sentence of the same number"
        },
    )
