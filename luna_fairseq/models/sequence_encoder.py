"""Pixel embedding and Transformer encoder for long-sequence classification.

The Transformer encoder is fairseq's and serves as the baseline for Luna's encoder.
"""

from typing import Any, Optional

import torch
from torch import Tensor, nn

from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from luna_fairseq.models.fairseq_layers import RepeatedLayers, activation_function, wrap_layer


class PixelEmbedding(nn.Module):
    """Linear embedding of pixel intensities. With ``prepend_cls``, a learned vector precedes the pixels."""

    padding_idx = 0

    def __init__(self, embed_dim: int, prepend_cls: bool = False):
        super().__init__()
        self.embedding_dim = embed_dim
        self.linear = nn.Linear(1, embed_dim)
        nn.init.xavier_normal_(self.linear.weight)
        nn.init.normal_(self.linear.bias, std=embed_dim**-0.5)
        self.cls: Optional[nn.Parameter] = None
        if prepend_cls:
            self.cls = nn.Parameter(torch.empty(embed_dim))
            nn.init.normal_(self.cls, std=embed_dim**-0.5)

    def forward(self, pixels: Tensor) -> Tensor:
        """Embed pixel intensities [B, T] as vectors [B, T, C], or [B, T + 1, C] with the learned vector."""
        x = self.linear(pixels.unsqueeze(-1).type_as(self.linear.weight))
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.size(0), 1, -1), x], dim=1)
        return x

    def placeholder_tokens(self, embedding: Tensor) -> Tensor:
        """Return token indices [B, T] for pixel vectors [B, T, C], so that no pixel counts as padding."""
        return torch.full(embedding.shape[:2], self.padding_idx + 1, device=embedding.device)


class TransformerSequenceLayer(TransformerEncoderLayerBase):
    """fairseq's Transformer encoder layer, but GELU is computed in float32 even for half-precision inputs."""

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.activation_fn = activation_function(cfg.activation_fn)


class TransformerSequenceEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder. Its layers are applied ``layer_repeats`` times with shared weights."""

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Module, layer_repeats: int = 1):
        super().__init__(cfg, dictionary, embed_tokens)
        if layer_repeats > 1:
            self.layers: nn.ModuleList = RepeatedLayers(self.layers, layer_repeats)

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        return wrap_layer(TransformerSequenceLayer(cfg), cfg)
