"""The Luna masked language model (Linear Unified Nested Attention, NeurIPS 2021) for Hugging Face's transformers.

Shapes: B batch, T tokens, L rows of P, C width, H heads, K width of a head, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.utils import ModelOutput

# transformers copies both files from an exported folder and finds the other one by this relative import.
from .configuration_luna import LunaConfig


@dataclass
class LunaModelOutput(ModelOutput):
    """last_hidden_state [B, T, C]; the last P, normalised: packed [B, L, C]; packed_mask [B, L], True at its rows that
    count; hidden_states, if asked for, after the embedding and after every layer."""

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


def _softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
    if hasattr(F, "scaled_dot_product_attention"):  # torch 2.0 and later
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    scores = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
    return F.dropout(scores.masked_fill(~mask, float("-inf")).softmax(dim=-1), dropout) @ v


class LunaAttention(nn.Module):
    """P attends to X (pack), then X attends to the result (unpack)."""

    def __init__(self, config: LunaConfig):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.dropout = config.attention_dropout
        names = ["pack_q", "unpack_q", "out"]
        names += [f"{step}_{kind}" for step in ("pack", "unpack") for kind in (("k", "v") if config.untie_kv else ("kv",))]
        for name in names:
            self.add_module(f"{name}_proj", nn.Linear(config.hidden_size, config.hidden_size))

    def forward(self, x: Tensor, packed: Tensor, mask: Tensor, packed_mask: Tensor) -> Tuple[Tensor, Tensor]:
        """X [B, T, C], P [B, L, C]; masks [B, T] and [B, L], True at what counts. Returns Y_X and Y_P, as X and P."""
        packed_context = self._attend("pack", packed, x, mask)
        return self.out_proj(self._attend("unpack", x, packed_context, packed_mask)), packed_context

    def _attend(self, step: str, query: Tensor, context: Tensor, mask: Tensor) -> Tensor:
        q = self._heads(f"{step}_q", query)
        if hasattr(self, f"{step}_kv_proj"):
            k = v = self._heads(f"{step}_kv", context)
        else:
            k, v = self._heads(f"{step}_k", context), self._heads(f"{step}_v", context)
        dropout = self.dropout if self.training else 0.0
        y = _softmax_attention(q, k, v, mask[:, None, None, :], dropout)
        return y.transpose(1, 2).flatten(2)  # [B, H, T, K] -> [B, T, C]

    def _heads(self, name: str, x: Tensor) -> Tensor:
        return getattr(self, f"{name}_proj")(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class LunaLayer(nn.Module):
    """Luna attention and the feed-forward block, each with residual and norm. The last post-norm layer leaves the norm of
    P to the model."""

    def __init__(self, config: LunaConfig, is_last: bool):
        super().__init__()
        self.normalize_before = config.normalize_before
        self.self_attn = LunaAttention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.hidden_size)
        self.packed_layer_norm = None
        if config.normalize_before or not is_last:
            self.packed_layer_norm = nn.LayerNorm(config.hidden_size)
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.activation_dropout = nn.Dropout(config.activation_dropout)

    def forward(self, x: Tensor, packed: Tensor, mask: Tensor, packed_mask: Tensor) -> Tuple[Tensor, Tensor]:
        """X [B, T, C] and P [B, L, C] before and after the layer; masks as in :class:`LunaAttention`."""
        before, after = (self._norm, self._same) if self.normalize_before else (self._same, self._norm)
        normed, normed_packed = before(self.self_attn_layer_norm, x), before(self.packed_layer_norm, packed)
        y, y_packed = self.self_attn(normed, normed_packed, mask, packed_mask)
        x = after(self.self_attn_layer_norm, x + self.dropout(y))
        packed = after(self.packed_layer_norm, packed + self.dropout(y_packed))
        y = self.activation_dropout(self.activation(self.fc1(before(self.final_layer_norm, x))))
        return after(self.final_layer_norm, x + self.dropout(self.fc2(y))), packed

    @staticmethod
    def _norm(norm: Optional[nn.Module], x: Tensor) -> Tensor:
        return x if norm is None else norm(x)

    @staticmethod
    def _same(norm: Optional[nn.Module], x: Tensor) -> Tensor:
        return x


class LunaPreTrainedModel(PreTrainedModel):
    config_class = LunaConfig
    base_model_prefix = "luna"
    _no_split_modules = ["LunaLayer"]

    def _init_weights(self, module: nn.Module) -> None:
        """BERT's initialisation."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, LunaModel):
            nn.init.normal_(module.packed_embedding, std=0.02)


class LunaModel(LunaPreTrainedModel):
    """The encoder."""

    def __init__(self, config: LunaConfig):
        super().__init__(config)
        C, pad = config.hidden_size, config.pad_token_id
        self.embed_tokens = nn.Embedding(config.vocab_size, C, padding_idx=pad)
        self.embed_positions = nn.Embedding(config.max_position_embeddings + pad + 1, C, padding_idx=pad)
        self.layernorm_embedding = nn.LayerNorm(C)
        self.packed_embedding = nn.Parameter(torch.zeros(config.projection_length, C))
        self.packed_embedding_norm = nn.LayerNorm(C)
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
            raise ValueError(f"a sequence has {input_ids.size(1)} tokens, the model's positions end at {longest}")
        mask = input_ids.ne(self.config.pad_token_id) if attention_mask is None else attention_mask.bool()
        positions = mask.long().cumsum(dim=1) * mask + self.config.pad_token_id
        x = self.embed_tokens(input_ids) + self.embed_positions(positions)
        x = self.dropout(self.layernorm_embedding(x)).masked_fill(~mask.unsqueeze(-1), 0.0)
        packed, packed_mask = self._initial_packed(mask.sum(dim=1))
        states = [x]
        for layer in self.layers:
            x, packed = layer(x, packed, mask, packed_mask)
            states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        hidden_states = tuple(states) if output_hidden_states else None
        return LunaModelOutput(x, self.packed_layer_norm(packed), packed_mask, hidden_states)

    def _initial_packed(self, lengths: Tensor) -> Tuple[Tensor, Tensor]:
        """P [B, L, C] for sequences of ``lengths`` [B], and the mask of its rows that count [B, L]."""
        L = self.config.projection_length
        if not self.config.fix_projection_length:
            L = max(1, min(L, int(lengths.max())))
        rows = torch.arange(L, device=lengths.device)
        counted = rows[None, :] < (lengths[:, None] if not self.config.fix_projection_length else L)
        packed = self.dropout(self.packed_embedding_norm(self.packed_embedding[:L]).expand(len(lengths), -1, -1))
        packed_mask = counted.expand(len(lengths), -1)
        return packed.masked_fill(~packed_mask.unsqueeze(-1), 0.0), packed_mask


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
        """The output projection is the input embedding, or a parameter of this class: there is nothing to tie."""

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
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return LunaMaskedLMOutput(loss, logits, out.packed, out.packed_mask, out.hidden_states)
