"""Luna encoder and masked language model for Hugging Face's transformers.

Luna is Linear Unified Nested Attention (NeurIPS 2021). A short packed sequence P attends to the tokens, and
the tokens attend to P, so time is linear in the number of tokens. Inputs and outputs are batch-first, with
batch size B, T tokens and V tokens in the vocabulary.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Tuple, Type, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import ModelOutput

from luna_fairseq.anchored.factories import choose_encoder_attentions
from luna_fairseq.anchored.sentence_places import sentence_numbers
from luna_fairseq.anchored.strengths import LearnedStrength, LookupGate
from luna_fairseq.huggingface.adapters import (
    BUILDERS,
    TransformersStack,
    build_token_embedding,
    encoder_options,
    get_activation,
    to_batch_first,
)
from luna_fairseq.huggingface.configuration_luna import LunaConfig
from luna_fairseq.modules.embedding import PackedEmbedding
from luna_fairseq.modules.luna_encoder import LunaEncoder


@dataclass
class LunaModelOutput(ModelOutput):
    """Output of the Luna encoder.

    Shapes: B batch size, T sequence length, C model width, L length of the packed sequence P, H heads.

    Attributes:
        last_hidden_state: output [B, T, C] of the last layer.
        packed: normalized packed sequence P [B, L, C] after the last layer.
        packed_mask: mask [B, L] with 1 at used rows of P and 0 at padding.
        source_mask: mask [B, T], 0 at padding and 1 at tokens. If ``config.separators`` is set, tokens have
            their one-based sentence numbers instead of 1.
        hidden_states: outputs [B, T, C] of the embedding and of each layer, or None.
        attentions: self-attention weights [B, H, T, T] of each layer, or None.
    """

    # The first four are always set. transformers requires a default for every field.
    last_hidden_state: Tensor = None
    packed: Tensor = None
    packed_mask: Tensor = None
    source_mask: Tensor = None
    hidden_states: Optional[Tuple[Tensor, ...]] = None
    attentions: Optional[Tuple[Tensor, ...]] = None


# Keyword arguments of ``forward`` that select the outputs to return.
OUTPUT_OPTIONS = ("output_hidden_states", "output_attentions", "return_dict")


class LunaPreTrainedModel(PreTrainedModel):
    """Base class of all Luna models for transformers."""

    config_class: Type[PretrainedConfig] = LunaConfig
    base_model_prefix = "luna"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False
    _no_split_modules = ["LunaEncoderLayer", "LunaDecoderLayer", "LanguageModelLayer"]

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save the model, together with its code if the model was loaded from an exported folder.

        Some versions of transformers copy only part of the code, so that the saved folder cannot be loaded.
        """
        super().save_pretrained(save_directory, *args, **kwargs)
        code = Path(str(sys.modules[type(self).__module__].__file__))
        if code.parent.name == "huggingface" and code.parent.parent.name == "luna_fairseq":
            return  # The model was not loaded from an exported folder. The export itself writes the code.
        for file in code.parent.glob("*.py"):
            if file.name != "__init__.py" and not (Path(save_directory) / file.name).exists():
                shutil.copyfile(str(file), str(Path(save_directory) / file.name))

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize weights from a normal distribution with standard deviation 0.02, as in BERT.

        Sinusoidal tables are computed too, because transformers creates uninitialized tensors.
        """
        if isinstance(module, (nn.Linear, nn.Embedding, PackedEmbedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
            if getattr(module, "padding_idx", None) is not None:
                nn.init.zeros_(module.weight[module.padding_idx])
            if isinstance(module, PackedEmbedding):
                module.restore_positions()
        elif isinstance(module, (LearnedStrength, LookupGate)):
            module.reset_parameters()
        elif isinstance(module, nn.LayerNorm) and module.elementwise_affine:
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

    def resolve_output_options(self, options: Dict[str, Optional[bool]]) -> Tuple[bool, ...]:
        """Return output_hidden_states, output_attentions and return_dict, by default from ``config``."""
        unknown = sorted(set(options) - set(OUTPUT_OPTIONS))
        if unknown:
            raise TypeError(f"{type(self).__name__} got an unexpected keyword argument {unknown[0]!r}")
        values = ((name, options.get(name)) for name in OUTPUT_OPTIONS)
        return tuple(bool(getattr(self.config, name) if value is None else value) for name, value in values)


class LunaModel(TransformersStack, LunaEncoder, LunaPreTrainedModel):
    """Luna encoder that returns hidden states, without a task-specific head.

    If the model has no decoder, the padding vectors of the initial packed sequence P are zero, and P is
    normalized after the last layer. ``embed_tokens`` replaces the token embedding. To use other attention
    modules, set ``choose_attentions`` in a subclass, a function ``(config, options) -> attention factory``.

    Example:
        >>> config = LunaConfig(vocab_size=20, hidden_size=8, encoder_layers=1, encoder_attention_heads=2,
        ...                     encoder_projected_attention_heads=2, projection_length=3)
        >>> output = LunaModel(config)(torch.tensor([[4, 5, 6, 7]]))
        >>> output.last_hidden_state.shape, output.packed.shape
        (torch.Size([1, 4, 8]), torch.Size([1, 3, 8]))
    """

    choose_attentions = staticmethod(choose_encoder_attentions)

    def __init__(self, config: LunaConfig, embed_tokens: Optional[nn.Module] = None):
        options = encoder_options(config)
        embed_tokens = embed_tokens or build_token_embedding(config, "encoder")
        attentions = self.choose_attentions(config, options)
        super().__init__(options, embed_tokens, attentions, BUILDERS, config=config)
        self.post_init()

    def forward(  # type: ignore[override]
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        position_ids: Optional[Tensor] = None,
        inputs_embeds: Optional[Tensor] = None,
        **output_options: Optional[bool],
    ) -> Union[LunaModelOutput, Tuple[Any, ...]]:
        """Encode a batch of B sequences with T positions.

        Args:
            input_ids: token ids [B, T], padded on the left or right.
            attention_mask: mask [B, T], 1 at tokens and 0 at padding. If None, the padding id is masked.
            position_ids: zero-based positions [B, T] of the tokens. If None, counted without padding.
            inputs_embeds: input embeddings [B, T, C] of width C in place of ``input_ids``.
            **output_options: ``output_hidden_states``, ``output_attentions`` and ``return_dict``, in place of
                the values in the configuration.

        Returns:
            A :class:`LunaModelOutput`, or a tuple of its fields if ``return_dict`` is False.
        """
        states, weights, as_dict = self.resolve_output_options(output_options)
        padding = self.compute_padding_mask(input_ids, inputs_embeds, attention_mask)
        out = super().forward(
            input_ids, inputs_embeds, padding, position_ids, return_states=states, need_weights=weights
        )
        packed = out.packed.transpose(0, 1)
        packed_padding = out.source.packed_padding_mask
        if packed_padding is None:
            packed_mask = torch.ones_like(packed[..., 0], dtype=torch.long)
        else:
            packed_mask = (~packed_padding).long()
        source_mask = (~padding).long()
        if getattr(self.config, "separators", None):
            is_separator = require_input_ids(input_ids).eq(self.config.separators[0])
            source_mask = sentence_numbers(is_separator & ~padding, padding)
        output = LunaModelOutput(
            out.x.transpose(0, 1),
            packed,
            packed_mask,
            source_mask,
            to_batch_first(out.states) if states else None,
            to_batch_first(out.weights) if weights else None,
        )
        return output if as_dict else output.to_tuple()


def require_input_ids(input_ids: Optional[Tensor]) -> Tensor:
    """Return ``input_ids``, which are needed to find separators. Raises ValueError if they are None."""
    if input_ids is None:
        raise ValueError(
            "Expected input_ids, got inputs_embeds. This model finds sentences by the ids of separators."
        )
    return input_ids


class LunaLMHead(nn.Module):
    """RoBERTa's language modeling head: dense layer, activation, layer norm and output projection."""

    def __init__(self, config: LunaConfig):
        super().__init__()
        C = config.encoder_embed_dim
        self.dense = nn.Linear(C, C)
        self.activation = get_activation(config.activation_fn)
        self.layer_norm = nn.LayerNorm(C)
        self.decoder = nn.Linear(C, config.vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.layer_norm(self.activation(self.dense(x))))


class LunaForMaskedLM(LunaPreTrainedModel):
    """Luna encoder with a language modeling head that predicts masked tokens.

    Example:
        >>> config = LunaConfig(vocab_size=20, hidden_size=8, encoder_layers=1, encoder_attention_heads=2,
        ...                     encoder_projected_attention_heads=2)
        >>> LunaForMaskedLM(config)(torch.tensor([[4, 5, 6]])).logits.shape
        torch.Size([1, 3, 20])
    """

    _tied_weights_keys = {"lm_head.decoder.weight": "luna.embed_tokens.weight"}

    def __init__(self, config: LunaConfig):
        super().__init__(config)
        self.luna = LunaModel(config)
        self.lm_head = LunaLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head.decoder

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head.decoder = value

    def forward(
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        position_ids: Optional[Tensor] = None,
        inputs_embeds: Optional[Tensor] = None,
        labels: Optional[Tensor] = None,
        **output_options: Optional[bool],
    ) -> Union[MaskedLMOutput, Tuple[Any, ...]]:
        """Compute the logits [B, T, V] at every position, and the mean cross-entropy if labels are given.

        ``labels`` [B, T] are the original token ids at masked positions and -100 elsewhere.
        :meth:`LunaModel.forward` describes the other arguments.
        """
        inputs = input_ids, attention_mask, position_ids, inputs_embeds
        out = self.luna(*inputs, **{**output_options, "return_dict": True})
        logits = self.lm_head(out.last_hidden_state)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        output = MaskedLMOutput(loss, logits, out.hidden_states, out.attentions)
        return output if self.resolve_output_options(output_options)[2] else output.to_tuple()
