"""Options of the peers' models: those of Luna's models but for Luna's own, and those of every attention."""

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, List, Optional, Tuple, Type

from fairseq.dataclass import ChoiceEnum
from luna_fairseq.models.luna_classifier_config import LunaClassifierConfig
from luna_fairseq.models.luna_config import LunaConfig
from luna_fairseq.models.luna_masked_lm_config import LunaMaskedLMConfig
from luna_fairseq.models.options import option
from luna_fairseq.peers.informer import InformerOptions
from luna_fairseq.peers.registry import ATTENTIONS, PeerOptions

NAMES = list(ATTENTIONS)
# What belongs to Luna in its models' options.
LUNA_OPTIONS = {
    "anchored_packed",
    "anchor_strength",
    "local_parts",
    "share_token_projections",
    "projection_length",
    "encoder_projection_length",
    "fix_projection_length",
    "untie_luna_kv",
    "encoder_projected_attention_heads",
    "decoder_projected_attention_heads",
    "pack_activation",
    "non_contextual_packed",
    "luna_backend",
    "causal_decay",
    "torch_compile",
    "word_dropout",
    "cross_attention",
    "packed_lookup",
    "diagonal_prior",
    "layer_type",
    "use_p",
    "untie_weights_luna",
}


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
        None, "causal attention of the decoder (default: --attention)"
    )
    cross_attention: Optional[ChoiceEnum(NAMES)] = option(
        None, "attention of the decoder to the source (default: --attention)"
    )


def without_luna(config: Type[Any]) -> List[Tuple[str, Any, Any]]:
    """The fields of ``config`` that a Transformer has, as ``make_dataclass`` takes them."""
    return [
        (each.name, each.type, field(default=each.default, metadata=dict(each.metadata)))
        for each in fields(config)
        if each.name not in LUNA_OPTIONS and each.name != "_name"
    ]


PeerTransformerConfig = make_dataclass(
    "PeerTransformerConfig", without_luna(LunaConfig), bases=(AttentionConfig,)
)
PeerRobertaConfig = make_dataclass(
    "PeerRobertaConfig",
    [
        *without_luna(LunaMaskedLMConfig),
        (
            "untie_weights_roberta",
            bool,
            option(False, "an output projection of its own, not the token embedding"),
        ),
        ("no_token_positional_embeddings", bool, option(False, "disable positional embeddings")),
    ],
    bases=(EncoderAttentionConfig,),
)
PeerClassifierConfig = make_dataclass(
    "PeerClassifierConfig", without_luna(LunaClassifierConfig), bases=(EncoderAttentionConfig,)
)
