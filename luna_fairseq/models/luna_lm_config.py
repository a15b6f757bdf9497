"""Command-line options for the causal language models."""

from dataclasses import dataclass, field
from typing import Optional

from omegaconf import II

from luna_fairseq.checks.bounds import LEAST
from luna_fairseq.checks.model_options import MAY_CHANGE
from luna_fairseq.models.options import (
    DecoderSizeOptions,
    LayerOptions,
    LunaDecoderOptions,
    LunaOptions,
    option,
)


@dataclass
class LanguageModelOptions(LayerOptions, DecoderSizeOptions):
    """Options of all causal language models of this package, named as in fairseq.

    The default sizes match the decoder of fairseq's ``transformer`` for translation (width 512).
    """

    decoder_embed_dim: int = option(512, "decoder embedding dimension", least=1)
    decoder_ffn_embed_dim: int = option(2048, "decoder embedding dimension for FFN", least=1)
    no_decoder_final_norm: bool = option(
        False,
        "with --decoder-normalize-before: omit the layernorm after the last decoder block",
        used_with={"decoder_normalize_before": True},
    )

    adaptive_input: bool = option(False, "give rare words smaller embeddings (adaptive input)")
    adaptive_input_cutoff: Optional[str] = option(
        None,
        "with --adaptive-input: comma-separated list of cutoff points, such as 20000,60000",
        used_with={"adaptive_input": True},
    )
    adaptive_input_factor: float = option(
        4.0,
        "with --adaptive-input: factor by which the embedding width falls from one cutoff to the next",
        least=1,
        used_with={"adaptive_input": True},
    )
    tie_adaptive_weights: bool = option(False, "share the matrices of adaptive softmax and adaptive input")
    tie_adaptive_proj: bool = option(
        False,
        "with --tie-adaptive-weights: also share the projections of adaptive softmax and adaptive input",
        used_with={"tie_adaptive_weights": True},
    )

    # Task options.
    tokens_per_sample: int = field(
        default=II("task.tokens_per_sample"), metadata={MAY_CHANGE: True, LEAST: 1}
    )
    max_target_positions: Optional[int] = field(
        default=II("task.max_target_positions"), metadata={MAY_CHANGE: True, LEAST: 1}
    )


@dataclass
class LunaLanguageModelConfig(LanguageModelOptions, LunaOptions, LunaDecoderOptions):
    """All options of the Luna causal language model (``--arch luna_lm``)."""
