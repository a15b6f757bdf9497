"""Command-line options of anchored attention, inherited by the model options."""

from dataclasses import dataclass, field

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

CROSS_ATTENTIONS = ("luna", "softmax")


@dataclass
class AnchorOptions(FairseqDataclass):
    """Options of anchored attention, in which each row of the packed sequence P favours one segment."""

    anchored_packed: bool = field(
        default=False,
        metadata={
            "help": "anchor every row of P at a place in the context, and favour tokens near that place "
            "(default: the paper's P, without places)"
        },
    )
    anchor_strength: float = field(
        default=4.0,
        metadata={
            "help": "with --anchored-packed: initial strength of the anchors, the amount by which a "
            "distance of one segment of the context lowers the logits of pack attention",
            "above": 0,
        },
    )
    local_parts: int = field(
        default=0,
        metadata={
            "help": "with --anchored-packed: number of segments in the window of neighbouring tokens that "
            "every encoder token reads beside P, with its own segment in the middle; odd (0: no window)",
            "least": 0,
        },
    )


@dataclass
class DecayOptions(FairseqDataclass):
    """Option of the decoder's causal attention, ``--causal-decay``."""

    causal_decay: bool = field(
        default=False,
        metadata={
            "help": "decay the weight of earlier positions in causal attention exponentially with distance, "
            "at a rate that each head learns (default: the paper's attention, without decay)"
        },
    )


@dataclass
class CrossOptions(FairseqDataclass):
    """Options of the decoder's cross-attention."""

    cross_attention: ChoiceEnum(CROSS_ATTENTIONS) = field(
        default="luna",
        metadata={
            "help": "attention to the source: luna reads the source through P; softmax reads all tokens, at "
            "a cost of source length times target length"
        },
    )
    packed_lookup: int = field(
        default=0,
        metadata={
            "help": "with --anchored-packed: attention to the source also reads the tokens of this many rows "
            "of P, those with the largest logits; at most 64 tokens are all read (0: no look-up)",
            "least": 0,
        },
    )
    diagonal_prior: bool = field(
        default=False,
        metadata={
            "help": "with --anchored-packed: favour source tokens near the diagonal, as if source and target "
            "ran at the same pace; each head learns its pace and strength"
        },
    )
    sentence_diagonal: bool = field(
        default=False,
        metadata={
            "help": "with --diagonal-prior, for text prepared with --documents: restart the diagonal at each "
            "<sep>, at the source sentence with the same number"
        },
    )
