"""The masked language model with any attention: ``--arch peer_roberta --attention NAME``."""

from argparse import Namespace
from typing import Any

from torch import nn

from fairseq.data import Dictionary
from fairseq.models import register_model
from luna_fairseq.models.architectures import Presets, register_architectures
from luna_fairseq.models.bases import (
    SentenceModel,
    SentenceModelEncoder,
    check_sequences_fit,
    sentence_encoder_options,
)
from luna_fairseq.models.luna import flat_options, nested_config
from luna_fairseq.peers.config import PeerRobertaConfig
from luna_fairseq.peers.layers import PeerEncoder


class PeerRobertaEncoder(SentenceModelEncoder):
    """RoBERTa's encoder and LM head, with a :class:`PeerEncoder` as its sentence encoder."""

    def build_encoder(self, args: Any, dictionary: Dictionary, embed_tokens: nn.Embedding) -> PeerEncoder:
        return PeerEncoder(nested_config(sentence_encoder_options(args)), dictionary, embed_tokens)


@register_model("peer_roberta", dataclass=PeerRobertaConfig)
class PeerRoberta(SentenceModel):
    """fairseq's RoBERTa; nothing but its attention differs from one peer to another.

    Args:
        args: a :class:`PeerRobertaConfig` or a namespace with its fields
        encoder: :class:`PeerRobertaEncoder`
    """

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "PeerRoberta":
        """Build the model for the dictionary of ``task``.

        Raises:
            InputError: an attention that has no bidirectional form, or a task with longer sequences than
                positions
        """
        args = Namespace(**flat_options(cfg, PeerRobertaConfig()))
        check_sequences_fit(task, args.max_positions)
        return cls(args, PeerRobertaEncoder(args, task.source_dictionary))


_SMALLER = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
# What each architecture sets apart from PeerRobertaConfig's defaults: the sizes of luna_small_512 and
# luna_tiny_512.
ARCHITECTURES: Presets = {
    "peer_roberta": {},
    "peer_roberta_small": dict(zip(_SMALLER, (4, 256, 1024, 4))),
    "peer_roberta_tiny": dict(zip(_SMALLER, (2, 128, 512, 2))),
}
register_architectures("peer_roberta", ARCHITECTURES)
