"""Dataclasses with the options of the peer models, for the command line and for checkpoints."""

from dataclasses import dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from luna_fairseq.models.luna_classifier_config import ClassifierOptions
from luna_fairseq.models.luna_config import TranslationOptions
from luna_fairseq.models.luna_lm_config import LanguageModelOptions
from luna_fairseq.models.luna_masked_lm_config import SentenceOptions
from luna_fairseq.models.options import Activation, option
from luna_fairseq.peers.options import PeerOptions
from luna_fairseq.peers.registry import ATTENTIONS

NAMES = list(ATTENTIONS)
# Condition of the options of the encoder's feed-forward networks.
_FEED_FORWARD = {"information_block": False}


@dataclass
class EncoderAttentionConfig(PeerOptions):
    """Options that select the encoder's attention mechanism."""

    attention: ChoiceEnum(NAMES) = option(
        "softmax", "attention of the encoder, and default of the decoder's attentions"
    )
    information_block: bool = option(
        False,
        "replace the encoder's feed-forward networks by Informer's information organization block, which has "
        "no --activation-dropout",
    )
    information_kernel: int = option(
        8,
        "with --information-block: kernel and stride of its convolutions along the width of the model",
        least=1,
        used_with={"information_block": True},
    )


@dataclass
class AttentionConfig(EncoderAttentionConfig):
    """Options that select the attention mechanisms of the encoder and the decoder."""

    decoder_attention: Optional[ChoiceEnum(NAMES)] = option(
        None, "causal attention of the decoder", default_from="attention"
    )
    cross_attention: Optional[ChoiceEnum(NAMES)] = option(
        None, "cross-attention, the attention of the decoder to the source", default_from="attention"
    )


@dataclass
class PeerTransformerConfig(AttentionConfig, TranslationOptions):
    """Options of ``--arch peer_transformer``, a translation model with efficient attention mechanisms."""


@dataclass
class PeerLanguageModelConfig(PeerOptions, LanguageModelOptions):
    """Options of ``--arch peer_lm``, a causal language model with an efficient attention mechanism."""

    decoder_attention: ChoiceEnum(NAMES) = option("softmax", "causal attention of each layer")


@dataclass
class PeerRobertaConfig(EncoderAttentionConfig, SentenceOptions):
    """Options of ``--arch peer_roberta``, a masked language model with an efficient attention mechanism."""

    encoder_ffn_embed_dim: int = option(
        3072, "encoder embedding dimension for FFN", least=1, used_with=_FEED_FORWARD
    )
    untie_weights_roberta: bool = option(
        False, "learn a separate output projection in place of the token embedding"
    )
    no_token_positional_embeddings: bool = option(False, "disable positional embeddings")


@dataclass
class PeerClassifierConfig(EncoderAttentionConfig, ClassifierOptions):
    """Options of ``--arch peer_lra_<task>``, classifiers with efficient attention mechanisms."""

    encoder_ffn_embed_dim: int = option(
        2048, "encoder embedding dimension for FFN", least=1, used_with=_FEED_FORWARD
    )
    activation_fn: Activation = option("gelu", "activation function to use", used_with=_FEED_FORWARD)
