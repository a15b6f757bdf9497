"""What the encoders of long sequences have besides their layers: pixels as input, one layer for all, and the
twin of the Luna encoder with fairseq's Transformer layers."""

from typing import Any, Optional

import torch
from torch import Tensor, nn

from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from luna_fairseq.models.fairseq_layers import RepeatedLayer, activation_function, wrap_layer


class PixelEmbedding(nn.Module):
    """A linear map of each pixel's intensity to a vector, and a learned vector in front of them all.

    It takes the place of a token embedding in fairseq's encoders, which read its width and padding index.

    Args:
        embed_dim: C
        prepend_cls: put the learned vector in front (default: False)
    """

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
        """Vectors [B, T, C] of ``pixels`` [B, T], or [B, 1 + T, C] with the learned one in front."""
        x = self.linear(pixels.unsqueeze(-1).type_as(self.linear.weight))
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.size(0), 1, -1), x], dim=1)
        return x

    def placeholder_tokens(self, embedding: Tensor) -> Tensor:
        """Tokens [B, T] none of which is padding, for what an encoder reads from tokens: positions and
        lengths."""
        return torch.full(embedding.shape[:2], self.padding_idx + 1, device=embedding.device)


class TransformerSequenceLayer(TransformerEncoderLayerBase):
    """fairseq's Transformer encoder layer with every activation that Luna's has."""

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.activation_fn = activation_function(cfg.activation_fn)


class TransformerSequenceEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder with :class:`LunaEncoder`'s interface, as its peer without P.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it; one layer where layers are repeated
        dictionary: source dictionary; None for pixels
        embed_tokens: token embedding
        layer_repeats: apply the one layer so many times (default: 1, every layer is applied once)
    """

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Module, layer_repeats: int = 1):
        super().__init__(cfg, dictionary, embed_tokens)
        if layer_repeats > 1:
            self.layers: nn.ModuleList = RepeatedLayer(self.layers, layer_repeats)

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        return wrap_layer(TransformerSequenceLayer(cfg), cfg)
