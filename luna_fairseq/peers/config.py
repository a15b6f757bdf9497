"""Options of the peer models: the Transformer's options and the options of every attention."""

from dataclasses import dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from luna_fairseq.models.luna_classifier_config import ClassifierOptions
from luna_fairseq.models.luna_config import TranslationOptions
from luna_fairseq.models.luna_lm_config import LanguageModelOptions
from luna_fairseq.models.luna_masked_lm_config import SentenceOptions
from luna_fairseq.models.options import option
from luna_fairseq.peers.options import PeerOptions
from luna_fairseq.peers.registry import ATTENTIONS

NAMES = list(ATTENTIONS)


@dataclass
class EncoderAttentionConfig(PeerOptions):
    """Choice of the encoder's attention, with the options of every attention and of Informer's block."""

    attention: ChoiceEnum(NAMES) = option(
        "softmax", "attention of the encoder, and of what has no option of its own"
    )
    information_block: bool = option(
        False, "Informer's information organisation block in the place of the encoder's feed-forward"
    )
    information_kernel: int = option(
        8, "kernel and stride of that block's convolutions along the width of the model", least=1
    )


@dataclass
class AttentionConfig(EncoderAttentionConfig):
    """Choice of the encoder's, the decoder's and the cross-attention."""

    decoder_attention: Optional[ChoiceEnum(NAMES)] = option(
        None, "causal attention of the decoder", default_from="attention"
    )
    cross_attention: Optional[ChoiceEnum(NAMES)] = option(
        None, "attention of the decoder to the source", default_from="attention"
    )


@dataclass
class PeerTransformerConfig(AttentionConfig, TranslationOptions):
    """Options of ``--arch peer_transformer``, for translation."""


@dataclass
class PeerLanguageModelConfig(PeerOptions, LanguageModelOptions):
    """Options of ``--arch peer_lm``, a causal language model."""

    decoder_attention: ChoiceEnum(NAMES) = option("softmax", "causal attention of every layer")


@dataclass
class PeerRobertaConfig(EncoderAttentionConfig, SentenceOptions):
    """Options of ``--arch peer_roberta``, a masked language model."""

    untie_weights_roberta: bool = option(False, "an output projection of its own, not the token embedding")
    no_token_positional_embeddings: bool = option(False, "disable positional embeddings")


@dataclass
class PeerClassifierConfig(EncoderAttentionConfig, ClassifierOptions):
    """Options of ``--arch peer_lra_<task>``, a classifier of long sequences."""
