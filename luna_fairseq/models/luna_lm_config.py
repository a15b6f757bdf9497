"""Options of the Luna causal language model."""

from dataclasses import dataclass
from typing import Optional

from omegaconf import II

from luna_fairseq.models.options import DecoderOptions, LunaOptions, option


@dataclass
class LunaLanguageModelConfig(LunaOptions, DecoderOptions):
    """Defaults are the size of the base translation model's decoder. Every layer has a P of its own."""

    decoder_embed_dim: int = option(512, "decoder embedding dimension")
    decoder_ffn_embed_dim: int = option(2048, "decoder embedding dimension for FFN")
    no_decoder_final_norm: bool = option(False, "no layernorm after the last decoder block, with pre-norm")

    # the task's
    tokens_per_sample: int = II("task.tokens_per_sample")
    max_target_positions: Optional[int] = II("task.max_target_positions")
