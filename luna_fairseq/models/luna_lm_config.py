"""Options of causal language models: those of any decoder, and Luna's own."""

from dataclasses import dataclass, field
from typing import Optional

from omegaconf import II

from luna_fairseq.checks.bounds import LEAST
from luna_fairseq.checks.model_options import MAY_CHANGE
from luna_fairseq.models.options import (
    DecoderOptions,
    LayerOptions,
    LunaDecoderOptions,
    LunaOptions,
    option,
)


@dataclass
class LanguageModelOptions(LayerOptions, DecoderOptions):
    """Options of a Transformer language model under fairseq's names. Defaults are the size of the base
    translation model's decoder."""

    decoder_embed_dim: int = option(512, "decoder embedding dimension", least=1)
    decoder_ffn_embed_dim: int = option(2048, "decoder embedding dimension for FFN", least=1)
    no_decoder_final_norm: bool = option(False, "no layernorm after the last decoder block, with pre-norm")

    adaptive_input: bool = option(False, "embed rarer words at smaller widths")
    adaptive_input_cutoff: Optional[str] = option(
        None, "comma-separated list of adaptive input cutoff points, as 20000,60000"
    )
    adaptive_input_factor: float = option(
        4.0, "factor by which each width is smaller than that before", least=1
    )
    tie_adaptive_weights: bool = option(False, "adaptive softmax and adaptive input share their matrices")
    tie_adaptive_proj: bool = option(False, "they share their projections, too")

    # the task's
    tokens_per_sample: int = field(
        default=II("task.tokens_per_sample"), metadata={MAY_CHANGE: True, LEAST: 1}
    )
    max_target_positions: Optional[int] = field(
        default=II("task.max_target_positions"), metadata={MAY_CHANGE: True, LEAST: 1}
    )


@dataclass
class LunaLanguageModelConfig(LanguageModelOptions, LunaOptions, LunaDecoderOptions):
    """Options of the Luna causal language model. Every layer has a P of its own."""
