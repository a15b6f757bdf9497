"""Adapters that turn ``luna_fairseq.modules.LunaEncoder`` and ``LunaDecoder`` into transformers models.

The module also converts a transformers configuration to the options of these classes. Shapes: batch size B,
T tokens, width C.
"""

from functools import partial
from typing import Any, Iterable, Iterator, Optional, Tuple

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from luna_fairseq.modules.builders import Builders
from luna_fairseq.modules.embedding import TokenEmbedding
from luna_fairseq.modules.memory import call_with_tensors
from luna_fairseq.modules.options import DecoderOptions, EncoderOptions, options_from

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
    """Return transformers' activation function for a fairseq name, such as "gelu_accurate"."""
    return ACT2FN[ACTIVATIONS[name]]


def encoder_options(config: Any) -> EncoderOptions:
    """Convert a transformers configuration to the options of :class:`luna_fairseq.modules.LunaEncoder`."""
    return options_from(
        EncoderOptions,
        partial(getattr, config),
        activation_fn=get_activation(config.activation_fn),
        sentence_encoder=not config.is_encoder_decoder,
        packed_is_read=config.packed_is_read,
        layer_repeats=getattr(config, "layer_repeats", 1),
        fixed_shapes=getattr(config, "fixed_shapes", False),
    )


def decoder_options(config: Any) -> DecoderOptions:
    """Convert a transformers configuration to the options of :class:`luna_fairseq.modules.LunaDecoder`."""
    return options_from(
        DecoderOptions,
        partial(getattr, config),
        activation_fn=get_activation(config.activation_fn),
        has_encoder=config.is_encoder_decoder,
        fixed_shapes=getattr(config, "fixed_shapes", False),
    )


class CheckpointedLayers(nn.ModuleList):
    """List of layers that applies gradient checkpointing in training if transformers has enabled it.

    Iteration then yields wrapped layers. The layers themselves are not modified, so that replicas made by
    ``torch.nn.DataParallel`` call their own layers.
    """

    gradient_checkpointing = False  # set by transformers, together with _gradient_checkpointing_func

    def __iter__(self) -> Iterator[Any]:
        layers = super().__iter__()
        if not (self.gradient_checkpointing and self.training):
            return layers
        return (_CheckpointedLayer(layer, self._gradient_checkpointing_func) for layer in layers)


class _CheckpointedLayer:
    """Wrapper that calls a layer through ``run``, transformers' gradient checkpointing function."""

    def __init__(self, layer: Any, run: Any):
        self.layer, self.run = layer, run

    def __call__(self, *inputs: Any) -> Any:
        return call_with_tensors(self.run, self.layer, *inputs)

    def read(self, *inputs: Any) -> Any:
        return call_with_tensors(self.run, self.layer.read, *inputs)


BUILDERS = Builders(layers=CheckpointedLayers)


class TransformersStack(TokenEmbedding):
    """Base class of the exported encoder and decoder: token embedding and padding mask.

    transformers calls ``get_input_embeddings`` and ``set_input_embeddings`` to get or replace the embedding.
    """

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed_tokens = value

    def compute_padding_mask(
        self, input_ids: Optional[Tensor], inputs_embeds: Optional[Tensor], attention_mask: Optional[Tensor]
    ) -> Tensor:
        """Compute the mask [B, T], True at padding, of token ids [B, T] or input embeddings [B, T, C].

        The last T columns of ``attention_mask`` (0 at padding) are used, because earlier columns belong to
        cached positions. Without this mask, the padding id is masked, and embeddings must have no padding.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Expected either input_ids or inputs_embeds, got both or neither.")
        inputs: Any = input_ids if inputs_embeds is None else inputs_embeds
        if attention_mask is not None:
            return attention_mask[:, -inputs.size(1) :].eq(0)
        if input_ids is not None:
            return input_ids.eq(self.padding_idx)
        return torch.zeros(inputs.shape[:2], dtype=torch.bool, device=inputs.device)


def build_token_embedding(config: Any, side: str) -> nn.Embedding:
    """Build the token embedding of one side of a model. ``side`` is "encoder" or "decoder"."""
    size = getattr(config, "source_vocab_size", None) if side == "encoder" else None
    width = config.decoder_input_dim if side == "decoder" else config.encoder_embed_dim
    return nn.Embedding(size or config.vocab_size, width, padding_idx=config.pad_token_id)


def to_batch_first(states: Iterable[Tensor]) -> Tuple[Tensor, ...]:
    """Move the batch dimension of each tensor to the front, for example from [T, B, C] to [B, T, C]."""
    return tuple(state.transpose(0, 1) for state in states)
