"""Command-line options for the translation models."""

from dataclasses import dataclass
from typing import Optional

from fairseq.models.transformer import DEFAULT_MAX_SOURCE_POSITIONS, DEFAULT_MAX_TARGET_POSITIONS
from luna_fairseq.checks.bounds import PROBABILITY
from luna_fairseq.models.options import (
    CrossOptions,
    DecoderSizeOptions,
    EncoderSizeOptions,
    LayerOptions,
    LunaDecoderOptions,
    LunaEncoderOptions,
    LunaOptions,
    option,
)


@dataclass
class TranslationOptions(LayerOptions, EncoderSizeOptions, DecoderSizeOptions):
    """Options of fairseq's Transformer that all translation models of this package share."""

    encoder_embed_path: Optional[str] = option(None, "path to pre-trained encoder embedding", may_change=True)
    encoder_learned_pos: bool = option(
        False,
        "use learned positional embeddings in the encoder",
        used_with={"no_token_positional_embeddings": False},
    )
    encoder_layerdrop: float = option(
        0.0, "LayerDrop probability for the encoder", may_change=True, **PROBABILITY
    )
    encoder_layers_to_keep: Optional[str] = option(
        None, "encoder layers to keep when pruning, such as 0,2,4", may_change=True
    )
    decoder_embed_path: Optional[str] = option(None, "path to pre-trained decoder embedding", may_change=True)
    decoder_input_dim: Optional[int] = option(
        None,
        "no effect, because the token embedding is as wide as the decoder",
        default_from="decoder_embed_dim",
        least=1,
        used_with={},
    )
    share_all_embeddings: bool = option(
        False, "share encoder, decoder and output embeddings (requires a joined dictionary)"
    )
    shortlist: Optional[str] = option(
        None,
        "decode with the candidates in this file; for trained models, with --model-overrides "
        "\"{'shortlist': 'FILE'}\"",
        may_change=True,
    )
    max_source_positions: int = option(
        DEFAULT_MAX_SOURCE_POSITIONS, "max number of tokens in the source sequence", may_change=True, least=1
    )
    max_target_positions: int = option(
        DEFAULT_MAX_TARGET_POSITIONS, "max number of tokens in the target sequence", may_change=True, least=1
    )


@dataclass
class LunaConfig(TranslationOptions, LunaOptions, LunaEncoderOptions, LunaDecoderOptions, CrossOptions):
    """All options of the Luna translation model (``--arch luna``).

    The defaults match the paper's base model with tied keys and values.
    """

    encoder_projected_attention_heads: Optional[int] = option(
        None, "heads of pack attention in the encoder", default_from="encoder_attention_heads", least=1
    )
    decoder_projected_attention_heads: Optional[int] = option(
        None, "heads of pack attention in the decoder", default_from="decoder_attention_heads", least=1
    )
    non_contextual_packed: bool = option(
        False, "give every layer the learned P instead of the P that the preceding layer packed (ablation)"
    )
