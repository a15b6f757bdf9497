"""Pixel embedding and Transformer encoder for the classification of long sequences.

The Transformer encoder is fairseq's, for comparison with the Luna encoder.
"""

from typing import Any, Optional

import torch
from torch import Tensor, nn

from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from luna_fairseq.models.fairseq_layers import RepeatedLayer, activation_function, wrap_layer


class PixelEmbedding(nn.Module):
    """Linear embedding of pixel intensities, with an optional learned vector before the first pixel.

    fairseq's encoders use this module in place of a token embedding, and read its width and padding index.

    Args:
        embed_dim: model width C.
        prepend_cls: prepend the learned vector to each sequence (default: False).

    Example:
        >>> PixelEmbedding(embed_dim=8, prepend_cls=True)(torch.zeros(2, 9)).shape
        torch.Size([2, 10, 8])
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
        """Embed pixels.

        Args:
            pixels: intensities [B, T].

        Returns:
            Vectors [B, T, C], or [B, 1 + T, C] with the learned vector.
        """
        x = self.linear(pixels.unsqueeze(-1).type_as(self.linear.weight))
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.size(0), 1, -1), x], dim=1)
        return x

    def placeholder_tokens(self, embedding: Tensor) -> Tensor:
        """Return tokens without padding, from which an encoder derives positions and lengths.

        Args:
            embedding: vectors [B, T, C] that :meth:`forward` returned.

        Returns:
            Tokens [B, T].
        """
        return torch.full(embedding.shape[:2], self.padding_idx + 1, device=embedding.device)


class TransformerSequenceLayer(TransformerEncoderLayerBase):
    """Transformer encoder layer of fairseq with this project's activation functions."""

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.activation_fn = activation_function(cfg.activation_fn)


class TransformerSequenceEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder with the constructor of :class:`FairseqLunaEncoder`.

    Args:
        cfg: fairseq's TransformerConfig with Luna's options added to it.
        dictionary: source dictionary; None for pixels.
        embed_tokens: token embedding.
        layer_repeats: number of times that the list of layers is applied (default: 1).
    """

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Module, layer_repeats: int = 1):
        super().__init__(cfg, dictionary, embed_tokens)
        if layer_repeats > 1:
            self.layers: nn.ModuleList = RepeatedLayer(self.layers, layer_repeats)

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        """Build a Transformer layer, and apply fairseq's wrappers."""
        return wrap_layer(TransformerSequenceLayer(cfg), cfg)
