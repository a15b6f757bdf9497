"""The Luna masked language model (Linear Unified Nested Attention, NeurIPS 2021) for Hugging Face's
transformers.

Shapes: B batch, T tokens, L rows of P, C width, V vocabulary. Layers are time-first, what goes in and comes
out batch-first.
"""

from dataclasses import dataclass
from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.utils import ModelOutput

from luna_fairseq.masked_lm.huggingface.configuration_luna import LunaConfig
from luna_fairseq.modules.anchors import Anchors
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.modules.two_streams import TwoStreamLayer


@dataclass
class LunaModelOutput(ModelOutput):
    """last_hidden_state [B, T, C]; the last P, normalised: packed [B, L, C]; packed_mask [B, L], True at its
    rows that count; hidden_states, if asked for, after the embedding and after every layer."""

    last_hidden_state: Optional[Tensor] = None
    packed: Optional[Tensor] = None
    packed_mask: Optional[Tensor] = None
    hidden_states: Optional[Tuple[Tensor, ...]] = None


@dataclass
class LunaMaskedLMOutput(ModelOutput):
    """loss, where labels were given; logits [B, T, V]; the rest as in :class:`LunaModelOutput`."""

    loss: Optional[Tensor] = None
    logits: Optional[Tensor] = None
    packed: Optional[Tensor] = None
    packed_mask: Optional[Tensor] = None
    hidden_states: Optional[Tuple[Tensor, ...]] = None


class LunaLayer(TwoStreamLayer):
    """Luna attention and the feed-forward block. The last post-norm layer leaves the norm of P to the
    model."""

    def __init__(self, config: LunaConfig, is_last: bool):
        super().__init__()
        C = config.hidden_size
        self.self_attn = LunaAttention(
            C,
            config.num_attention_heads,
            dropout=config.attention_dropout,
            untie_kv=config.untie_kv,
            anchor_strength=1.0 if config.anchored_packed else None,
            anchored_unpack=True,
            local_parts=config.local_parts,
            share_token_projections=config.share_token_projections,
        )
        self.self_attn_layer_norm = nn.LayerNorm(C)
        self.build_feed_forward(
            C,
            config.intermediate_size,
            ACT2FN[config.hidden_act],
            config.hidden_dropout,
            config.activation_dropout,
            config.normalize_before,
        )
        self.build_packed_layer_norm(C, normalize_packed=not is_last)

    def forward(
        self,
        x: Tensor,
        packed: Tensor,
        padding_mask: Tensor,
        packed_padding_mask: Optional[Tensor],
        anchors: Optional[Anchors],
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """X [T, B, C], P [L, B, C] before and after the layer; masks [B, T] and [B, L], True at what is left
        out."""
        masks = padding_mask, packed_padding_mask
        x, packed, _ = self.attend(
            self.self_attn, self.self_attn_layer_norm, x, packed, None, *masks, anchors=anchors
        )
        return self.feed_forward(x), packed


class LunaPreTrainedModel(PreTrainedModel):
    """What transformers asks of every model: its configuration and its initialisation."""

    config_class = LunaConfig
    base_model_prefix = "luna"
    _no_split_modules = ["LunaLayer"]

    def _init_weights(self, module: nn.Module) -> None:
        """BERT's initialisation."""
        if isinstance(module, (nn.Linear, nn.Embedding, PackedEmbedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


class LunaModel(LunaPreTrainedModel):
    """The encoder."""

    def __init__(self, config: LunaConfig):
        super().__init__(config)
        C, pad = config.hidden_size, config.pad_token_id
        self.embed_tokens = nn.Embedding(config.vocab_size, C, padding_idx=pad)
        self.embed_positions = nn.Embedding(config.max_position_embeddings + pad + 1, C, padding_idx=pad)
        self.layernorm_embedding = nn.LayerNorm(C)
        self.packed_embedding = PackedEmbedding(
            config.projection_length,
            C,
            dropout=config.hidden_dropout,
            layer_norm=True,
            fix_length=config.fix_projection_length,
            zero_padding=True,
        )
        self.dropout = nn.Dropout(config.hidden_dropout)
        N = config.num_hidden_layers
        self.layers = nn.ModuleList([LunaLayer(config, is_last=number == N - 1) for number in range(N)])
        self.layer_norm = nn.LayerNorm(C) if config.normalize_before else None
        self.packed_layer_norm = nn.LayerNorm(C)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed_tokens = value

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Optional[Tensor] = None,
        output_hidden_states: Optional[bool] = None,
        **kwargs: Any,
    ) -> LunaModelOutput:
        """input_ids [B, T]; attention_mask [B, T], 1 at tokens, by default all that are not padding."""
        longest = self.config.max_position_embeddings
        if input_ids.size(1) > longest:
            raise ValueError(
                f"a sequence has {input_ids.size(1)} tokens, the model's positions end at {longest}"
            )
        mask = input_ids.ne(self.config.pad_token_id) if attention_mask is None else attention_mask.bool()
        positions = mask.long().cumsum(dim=1) * mask + self.config.pad_token_id
        x = self.embed_tokens(input_ids) + self.embed_positions(positions)
        x = self.dropout(self.layernorm_embedding(x)).masked_fill(~mask.unsqueeze(-1), 0.0).transpose(0, 1)
        packed, left_out = self.packed_embedding(mask.sum(dim=1))
        anchors = self.layers[0].self_attn.find_anchors(x, packed, ~mask, left_out)
        states = [x]
        for layer in self.layers:
            x, packed = layer(x, packed, ~mask, left_out, anchors)
            states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        packed = self.packed_layer_norm(packed).transpose(0, 1)
        packed_mask = (
            torch.ones(packed.shape[:2], dtype=torch.bool, device=x.device) if left_out is None else ~left_out
        )
        hidden_states = tuple(state.transpose(0, 1) for state in states) if output_hidden_states else None
        return LunaModelOutput(x.transpose(0, 1), packed, packed_mask, hidden_states)


class LunaForMaskedLM(LunaPreTrainedModel):
    """The encoder with RoBERTa's LM head."""

    def __init__(self, config: LunaConfig):
        super().__init__(config)
        self.luna = LunaModel(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.layer_norm = nn.LayerNorm(config.hidden_size)
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.output_weight = None
        if config.untie_embeddings:
            self.output_weight = nn.Parameter(torch.zeros(config.vocab_size, config.hidden_size))
        self.post_init()

    def get_output_embeddings(self) -> None:
        """The output projection is the input embedding, or a parameter of this class: there is nothing to
        tie."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Optional[Tensor] = None,
        labels: Optional[Tensor] = None,
        output_hidden_states: Optional[bool] = None,
        **kwargs: Any,
    ) -> LunaMaskedLMOutput:
        """As :meth:`LunaModel.forward`; labels [B, T], -100 where there is nothing to predict."""
        out = self.luna(input_ids, attention_mask, output_hidden_states)
        x = self.layer_norm(self.activation(self.dense(out.last_hidden_state)))
        weight = self.luna.embed_tokens.weight if self.output_weight is None else self.output_weight
        logits = F.linear(x, weight, self.output_bias)
        loss = (
            None
            if labels is None
            else F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        )
        return LunaMaskedLMOutput(loss, logits, out.packed, out.packed_mask, out.hidden_states)
