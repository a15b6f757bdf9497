"""Options of the peers' models: the Transformer's groups of options, and those of every attention."""

from dataclasses import dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from luna_fairseq.models.luna_classifier_config import ClassifierOptions
from luna_fairseq.models.luna_config import TranslationOptions
from luna_fairseq.models.luna_masked_lm_config import SentenceOptions
from luna_fairseq.models.options import option
from luna_fairseq.peers.informer import InformerOptions
from luna_fairseq.peers.registry import ATTENTIONS, PeerOptions

NAMES = list(ATTENTIONS)


@dataclass
class EncoderAttentionConfig(PeerOptions, InformerOptions):
    """Which attention, and the options of all."""

    attention: ChoiceEnum(NAMES) = option(
        "softmax", "attention of the encoder, and of what has no option of its own"
    )


@dataclass
class AttentionConfig(EncoderAttentionConfig):
    """The attentions of an encoder-decoder."""

    decoder_attention: Optional[ChoiceEnum(NAMES)] = option(
        None, "causal attention of the decoder (default: --attention)", default_from="attention"
    )
    cross_attention: Optional[ChoiceEnum(NAMES)] = option(
        None, "attention of the decoder to the source (default: --attention)", default_from="attention"
    )


@dataclass
class PeerTransformerConfig(AttentionConfig, TranslationOptions):
    """Of the Transformer for translation."""


@dataclass
class PeerRobertaConfig(EncoderAttentionConfig, SentenceOptions):
    """Of RoBERTa."""

    untie_weights_roberta: bool = option(False, "an output projection of its own, not the token embedding")
    no_token_positional_embeddings: bool = option(False, "disable positional embeddings")


@dataclass
class PeerClassifierConfig(EncoderAttentionConfig, ClassifierOptions):
    """Of the classifier of long sequences."""
