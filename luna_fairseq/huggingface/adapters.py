"""Adapters between transformers and the plain PyTorch modules of Luna.

The exported encoder and decoder subclass ``LunaEncoder`` and ``LunaDecoder`` of ``luna_fairseq.modules``. The
functions in this file translate a transformers configuration into the options of these classes.
:class:`TransformersStack` adds the methods that transformers calls.
"""

from functools import partial
from typing import Any, Iterable, Optional, Tuple

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from luna_fairseq.modules.embedding import TokenEmbedding
from luna_fairseq.modules.memory import call_with_tensors
from luna_fairseq.modules.options import LEARNED, DecoderOptions, EncoderOptions, options_from

# fairseq name of an activation function -> transformers name.
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


def get_activation(name: str) -> Any:
    """Return the activation function with the given fairseq name.

    Args:
        name: fairseq name of an activation function, such as "gelu"; a key of ``ACTIVATIONS``.

    Returns:
        Function from a tensor to a tensor of the same shape.
    """
    return ACT2FN[ACTIVATIONS[name]]


def encoder_options(config: Any) -> EncoderOptions:
    """Translate a transformers configuration into the options of the encoder."""
    return options_from(
        EncoderOptions,
        partial(getattr, config),
        activation_fn=get_activation(config.activation_fn),
        sentence_encoder=not config.is_encoder_decoder,
        packed_is_read=config.packed_is_read,
        layer_repeats=getattr(config, "layer_repeats", 1),
    )


def decoder_options(config: Any) -> DecoderOptions:
    """Translate a transformers configuration into the options of the decoder."""
    return options_from(
        DecoderOptions,
        partial(getattr, config),
        activation_fn=get_activation(config.activation_fn),
        has_encoder=config.is_encoder_decoder,
    )


class TransformersStack(TokenEmbedding):
    """Base class of the exported encoder and decoder, with the methods that transformers expects.

    The methods give access to the token embedding, run layers with gradient checkpointing, and check the
    inputs.

    Attributes:
        gradient_checkpointing: True if the backward pass recomputes the layers to save memory. Set by
            ``gradient_checkpointing_enable`` of transformers.
    """

    gradient_checkpointing = False

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding (overrides ``PreTrainedModel.get_input_embeddings``)."""
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding (overrides ``PreTrainedModel.set_input_embeddings``).

        Args:
            value: new token embedding, such as an embedding for a resized vocabulary.
        """
        self.embed_tokens = value

    def run_layer(self, function: Any, *inputs: Any) -> Any:
        """Call a layer, with gradient checkpointing if it is enabled and the model is in training mode."""
        if self.gradient_checkpointing and self.training:
            return call_with_tensors(self._gradient_checkpointing_func, function, *inputs)
        return function(*inputs)

    def compute_padding_mask(
        self, input_ids: Optional[Tensor], inputs_embeds: Optional[Tensor], attention_mask: Optional[Tensor]
    ) -> Tensor:
        """Compute the padding mask of a batch of B sequences with T positions.

        If no attention mask is given, positions with the padding id are padding. Token vectors then contain
        no padding.

        Args:
            input_ids: token ids [B, T], or None if ``inputs_embeds`` is given.
            inputs_embeds: token vectors [B, T, C] of width C, or None if ``input_ids`` is given.
            attention_mask: mask, 1 at tokens and 0 at padding, or None. During generation with a cache, it
                also covers the earlier positions. Only its last T columns are used.

        Returns:
            Boolean mask [B, T], True at padding.

        Raises:
            ValueError: Both or neither of ``input_ids`` and ``inputs_embeds`` are given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Expected either input_ids or inputs_embeds, got both or neither.")
        inputs: Any = input_ids if inputs_embeds is None else inputs_embeds
        if attention_mask is not None:
            return attention_mask[:, -inputs.size(1) :].eq(0)
        if input_ids is not None:
            return input_ids.eq(self.padding_idx)
        return torch.zeros(inputs.shape[:2], dtype=torch.bool, device=inputs.device)

    def check_length(self, length: int) -> None:
        """Raise ValueError if a sequence is longer than the learned positional embeddings support.

        Sinusoidal positions have no limit.

        Args:
            length: number of tokens, including padding.

        Raises:
            ValueError: The sequence is too long.
        """
        longest = self.options.max_positions
        if self.options.positions == LEARNED and length > longest:
            raise ValueError(
                f"A sequence has {length} tokens, the model's positions end at {longest}. Shorten it."
            )


def build_token_embedding(config: Any, side: str) -> nn.Embedding:
    """Build the token embedding of the encoder or the decoder.

    Args:
        config: configuration of an exported model.
        side: "encoder" or "decoder".

    Returns:
        Embedding of the source vocabulary for an encoder, or of the target vocabulary for a decoder.
    """
    size = getattr(config, "source_vocab_size", None) if side == "encoder" else None
    width = config.decoder_input_dim if side == "decoder" else config.encoder_embed_dim
    return nn.Embedding(size or config.vocab_size, width, padding_idx=config.pad_token_id)


def to_batch_first(states: Iterable[Tensor]) -> Tuple[Tensor, ...]:
    """Convert hidden states from [T, B, C] to [B, T, C], the layout of transformers.

    T is the sequence length, B the batch size, and C the model width.

    Args:
        states: hidden states [T, B, C] of each layer.

    Returns:
        Hidden states [B, T, C] of each layer.
    """
    return tuple(state.transpose(0, 1) for state in states)
