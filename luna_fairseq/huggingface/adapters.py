"""Translate transformers' configurations, inputs and calls to the modules of the core."""

from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from luna_fairseq.modules.embedding import TokenEmbedding
from luna_fairseq.modules.options import (
    LEARNED,
    NO_POSITIONS,
    SINUSOIDAL,
    DecoderOptions,
    EncoderOptions,
)

# fairseq's name of an activation, and transformers'.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_fast": "gelu_new",
    "linear": "linear",
    "relu": "relu",
    "relu_squared": "relu2",
    "swish": "silu",
    "tanh": "tanh",
}


def activation(name: str) -> Any:
    """Return the activation that fairseq calls ``name``."""
    return ACT2FN[ACTIVATIONS[name]]


def stack_options(config: Any, side: str, max_positions: int) -> Dict[str, Any]:
    """Return the fields of :class:`luna_fairseq.modules.options.StackOptions` as arguments.

    Args:
        config: configuration of an exported model
        side: "encoder" or "decoder"
        max_positions: longest sequence of learned positions
    """
    positions = LEARNED if getattr(config, f"{side}_learned_pos") else SINUSOIDAL
    return {
        "embed_dim": getattr(config, f"{side}_embed_dim"),
        "ffn_embed_dim": getattr(config, f"{side}_ffn_embed_dim"),
        "num_layers": getattr(config, f"{side}_layers"),
        "num_heads": getattr(config, f"{side}_attention_heads"),
        "num_pack_heads": getattr(config, f"{side}_projected_attention_heads"),
        "projection_length": config.projection_length,
        "untie_kv": config.untie_luna_kv,
        "non_contextual_packed": config.non_contextual_packed,
        "normalize_before": getattr(config, f"{side}_normalize_before"),
        "activation_fn": activation(config.activation_fn),
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "word_dropout": config.word_dropout,
        "positions": NO_POSITIONS if config.no_token_positional_embeddings else positions,
        "max_positions": max_positions,
        "scale_embedding": not config.no_scale_embedding,
        "layernorm_embedding": config.layernorm_embedding,
        "linear_embedding": config.quant_noise_pq > 0,
    }


def encoder_options(config: Any) -> EncoderOptions:
    """Return the options of the encoder."""
    return EncoderOptions(
        **stack_options(config, "encoder", config.max_source_positions),
        fix_projection_length=config.fix_projection_length,
        sentence_encoder=not config.is_encoder_decoder,
        packed_is_read=config.packed_is_read,
        layer_repeats=getattr(config, "layer_repeats", 1),
    )


def decoder_options(config: Any) -> DecoderOptions:
    """Return the options of the decoder."""
    return DecoderOptions(
        **stack_options(config, "decoder", config.max_target_positions),
        has_encoder=config.is_encoder_decoder,
        output_dim=config.decoder_output_dim,
        final_norm=not config.no_decoder_final_norm,
        pack_activation=config.pack_activation,
    )


class TransformersStack(TokenEmbedding):
    """Methods that the exported encoder and decoder have beside those of the core."""

    gradient_checkpointing = False  # set by transformers

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed_tokens = value

    def run_layer(self, layer: nn.Module, *inputs: Any) -> Tuple[Any, ...]:
        """Call a layer, which is computed again in the backward pass if that is wanted."""
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(layer.__call__, *inputs)
        return layer(*inputs)

    def read_tokens(
        self, input_ids: Optional[Tensor], inputs_embeds: Optional[Tensor], attention_mask: Optional[Tensor]
    ) -> Tensor:
        """Return the padding mask [B, T], True at padding.

        Args:
            input_ids: [B, T], or None
            inputs_embeds: [B, T, C] in place of ids, or None
            attention_mask: [B, T] or longer, 1 at tokens; the last ones count (default: None, all ids that
                are not padding are tokens)

        Raises:
            ValueError: none of input_ids and inputs_embeds, or both; a sequence longer than the positions
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, one of them")
        inputs: Any = input_ids if inputs_embeds is None else inputs_embeds
        if attention_mask is not None:
            return attention_mask[:, -inputs.size(1) :].eq(0)
        if input_ids is not None:
            return input_ids.eq(self.padding_idx)
        return torch.zeros(inputs.shape[:2], dtype=torch.bool, device=inputs.device)

    def check_length(self, length: int) -> None:
        """Raise ValueError for a sequence longer than the learned positions."""
        longest = self.options.max_positions
        if self.options.positions == LEARNED and length > longest:
            raise ValueError(f"a sequence has {length} tokens, the model's positions end at {longest}")


def token_embedding(config: Any, side: str) -> nn.Embedding:
    """Build the token embedding of ``side``, "encoder" or "decoder"."""
    size = getattr(config, "source_vocab_size", None) if side == "encoder" else None
    width = config.decoder_input_dim if side == "decoder" else config.encoder_embed_dim
    return nn.Embedding(size or config.vocab_size, width, padding_idx=config.pad_token_id)


def batch_first(states: Any) -> Tuple[Tensor, ...]:
    """Return states [T, B, C] as transformers wants them, [B, T, C]."""
    return tuple(state.transpose(0, 1) for state in states)
