"""The layers of the exported models: this package's attentions, and torch's parts around them."""

import math
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from luna_fairseq.anchored.attention import AnchoredSelfAttention
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_layer import LunaLayer
from luna_fairseq.modules.sentences import Sentences

try:
    from transformers.modeling_layers import GradientCheckpointingLayer
except ImportError:  # before 4.52

    class GradientCheckpointingLayer(nn.Module):  # type: ignore[no-redef]
        """A layer that is computed again in the backward pass where that is wanted."""

        gradient_checkpointing = False

        def __call__(self, *args: Any) -> Any:
            if self.gradient_checkpointing and self.training:
                return self._gradient_checkpointing_func(super().__call__, *args)
            return super().__call__(*args)


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
    """The activation that fairseq calls ``name``."""
    return ACT2FN[ACTIVATIONS[name]]


def sinusoids(places: Tensor, C: int) -> Tensor:
    """fairseq's sinusoidal positions: [.., C] at ``places`` [..], in float32."""
    half = C // 2
    scale = math.log(10000) / max(1, half - 1)
    angles = places.float().unsqueeze(-1) * torch.exp(-scale * torch.arange(half, device=places.device))
    table = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return nn.functional.pad(table, (0, C - 2 * half))


def sinusoidal_table(length: int, C: int) -> Tensor:
    """The first ``length`` of them [length, C]."""
    return sinusoids(torch.arange(length), C)


class Positions(nn.Module):
    """Sinusoidal positions of tokens, of which there is no last one; zero at padding."""

    def __init__(self, C: int, pad: int):
        super().__init__()
        self.embedding_dim, self.padding_idx = C, pad

    def forward(self, positions: Tensor) -> Tensor:
        """[B, T, C] of ``positions`` [B, T]."""
        there = positions.ne(self.padding_idx).unsqueeze(-1)
        return sinusoids(positions, self.embedding_dim) * there


class Embedding(nn.Module):
    """What stands before the layers of ``side``, encoder or decoder, with fairseq's names.

    A model inherits it beside transformers' class and calls :meth:`build_embedding`.
    """

    def build_embedding(self, config: Any, side: str, positions: int) -> None:
        """``positions``: the longest sequence, of learned ones."""
        C, pad = getattr(config, f"{side}_embed_dim"), config.pad_token_id
        self.pad = pad
        width = config.decoder_input_dim if side == "decoder" else C
        size = getattr(config, "source_vocab_size", None) if side == "encoder" else None
        self.embed_tokens = nn.Embedding(size or config.vocab_size, width, padding_idx=pad)
        self.embed_scale = 1.0 if config.no_scale_embedding else math.sqrt(C)
        self.project_in_dim = None if width == C else nn.Linear(width, C, bias=False)
        self.longest: Optional[int] = None
        self.embed_positions: Any = None
        if not config.no_token_positional_embeddings:
            learned = getattr(config, f"{side}_learned_pos")
            self.longest = positions if learned else None
            rows = positions + pad + 1
            self.embed_positions = nn.Embedding(rows, C, padding_idx=pad) if learned else Positions(C, pad)
        self.layernorm_embedding = nn.LayerNorm(C) if config.layernorm_embedding else None
        # A linear map that fairseq trains with --quant-noise-pq, after the embedding.
        self.quant_noise = nn.Linear(C, C, bias=False) if config.quant_noise_pq > 0 else None
        self.noise_first = side == "decoder"
        self.word_dropout = config.word_dropout
        self.dropout = nn.Dropout(config.dropout)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed_tokens = value

    def read_tokens(
        self, input_ids: Optional[Tensor], inputs_embeds: Optional[Tensor], attention_mask: Optional[Tensor]
    ) -> Tuple[Tensor, Tensor]:
        """Vectors [B, T, C] of ids [B, T] or vectors in their place, and their mask [B, T], True at tokens.

        Args:
            input_ids, inputs_embeds: one of them
            attention_mask: [B, >= T], 1 at tokens; the last are these (default: all that are not padding)

        Raises:
            ValueError: none of input_ids and inputs_embeds, or both
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, one of them")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if attention_mask is not None:
            return x, attention_mask[:, -x.size(1) :].bool()
        if input_ids is not None:
            return x, input_ids.ne(self.pad)
        return x, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)

    def check_length(self, length: int) -> None:
        """Raise ValueError for a sequence longer than the learned positions."""
        if self.longest is not None and length > self.longest:
            raise ValueError(f"a sequence has {length} tokens, the model's positions end at {self.longest}")

    def embed(self, embedding: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        """X [T, B, C] of token vectors [B, T, C], their mask [B, T], True at tokens, and their places [B, T],
        0 at the first."""
        x = embedding * self.embed_scale
        if self.training and self.word_dropout > 0:
            x = x * nn.functional.dropout(x.new_ones(x.shape[:2]), self.word_dropout).unsqueeze(-1)
        if self.noise_first and self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if self.embed_positions is not None:
            positions = (places + self.pad + 1).masked_fill(~mask, self.pad)
            x = x + self.embed_positions(positions).to(x.dtype)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout(x)
        if not self.noise_first and self.quant_noise is not None:
            x = self.quant_noise(x)
        return x.transpose(0, 1)


def places_of(mask: Tensor, before: Any = 0) -> Tensor:
    """The number of each token among those of its sequence [B, T], the first after ``before`` [B, 1] others;
    mask [B, T]."""
    return (before + mask.long().cumsum(dim=1) - 1).clamp(min=0)


def separators_in(tokens: Optional[Tensor], separator: int) -> Tensor:
    """[B, T], True at the id ``separator``. Raises ValueError where vectors were given in place of ids."""
    if tokens is None:
        raise ValueError("give ids, not vectors: sentences are counted by the separators between them")
    return tokens.eq(separator)


def attention_options(config: Any, side: str) -> Dict[str, Any]:
    """Arguments of Luna attention in ``side``."""
    return {
        "embed_dim": getattr(config, f"{side}_embed_dim"),
        "num_heads": getattr(config, f"{side}_attention_heads"),
        "num_pack_heads": getattr(config, f"{side}_projected_attention_heads"),
        "dropout": config.attention_dropout,
        "untie_kv": config.untie_luna_kv,
    }


def feed_forward_options(config: Any, side: str) -> Dict[str, Any]:
    """Arguments of ``build_feed_forward`` in ``side``."""
    return {
        "embed_dim": getattr(config, f"{side}_embed_dim"),
        "ffn_embed_dim": getattr(config, f"{side}_ffn_embed_dim"),
        "activation_fn": activation(config.activation_fn),
        "dropout": config.dropout,
        "activation_dropout": config.activation_dropout,
        "normalize_before": getattr(config, f"{side}_normalize_before"),
    }


class LunaEncoderLayer(GradientCheckpointingLayer, LunaLayer):
    """Luna attention and the feed-forward block. ``normalize_packed``: as of ``build_packed_layer_norm``."""

    def __init__(self, config: Any, normalize_packed: bool = True):
        super().__init__()
        C = config.encoder_embed_dim
        options = attention_options(config, "encoder")
        if config.anchored_packed:
            anchors = {"anchor_strength": config.anchor_strength, "window": config.local_parts}
            self.self_attn: nn.Module = AnchoredSelfAttention(**options, **anchors)
        else:
            self.self_attn = LunaAttention(**options)
        self.self_attn_layer_norm = nn.LayerNorm(C)
        self.build_feed_forward(**feed_forward_options(config, "encoder"))
        self.build_packed_layer_norm(C, not config.non_contextual_packed, normalize_packed)

    def forward(
        self, x: Tensor, packed: Tensor, sentences: Sentences, need_weights: bool = False
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        """X [T, B, C], P [L, B, C] before and after the layer, P None where it is not updated; weights [H, B,
        T, T], if asked for."""
        y, p = self.before(self.self_attn_layer_norm, x), self.before(self.packed_layer_norm, packed)
        y, packed_context, weights = self.self_attn(y, p, y, sentences, need_weights=need_weights)
        x = self.after(self.self_attn_layer_norm, x, y)
        packed = self.next_packed(packed, packed_context)
        return self.feed_forward(x), packed, weights
