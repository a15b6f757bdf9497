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
    """Linear embedding of pixel intensities, with an optional learned vector at the first position.

    It replaces the token embedding of a fairseq encoder, and has the same ``embedding_dim`` and
    ``padding_idx`` attributes.

    Args:
        embed_dim: model width.
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
            pixels: pixel intensities [batch size, number of pixels].

        Returns:
            Vectors [batch size, length, embed_dim]. The length is the number of pixels, plus 1 if
            ``prepend_cls`` is set.
        """
        x = self.linear(pixels.unsqueeze(-1).type_as(self.linear.weight))
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.size(0), 1, -1), x], dim=1)
        return x

    def placeholder_tokens(self, embedding: Tensor) -> Tensor:
        """Return constant token indices in place of pixels, for encoders that expect tokens.

        The encoder derives positions and lengths from these tokens. None of them is padding.

        Args:
            embedding: pixel embeddings [batch size, length, embed_dim], as returned by :meth:`forward`.

        Returns:
            Token indices [batch size, length].
        """
        return torch.full(embedding.shape[:2], self.padding_idx + 1, device=embedding.device)


class TransformerSequenceLayer(TransformerEncoderLayerBase):
    """fairseq's Transformer encoder layer with this project's activation functions.

    GELU is computed in float32 even for half-precision inputs.

    Args:
        cfg: fairseq's TransformerConfig.
    """

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.activation_fn = activation_function(cfg.activation_fn)


class TransformerSequenceEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder, with layers that may be applied repeatedly.

    It can replace :class:`FairseqLunaEncoder` in a classifier.

    Args:
        cfg: fairseq's TransformerConfig, extended with Luna's options.
        dictionary: source dictionary; None for pixels.
        embed_tokens: token or pixel embedding.
        layer_repeats: number of times the layers are applied, with shared weights (default: 1).
    """

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Module, layer_repeats: int = 1):
        super().__init__(cfg, dictionary, embed_tokens)
        if layer_repeats > 1:
            self.layers: nn.ModuleList = RepeatedLayers(self.layers, layer_repeats)

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        """Build a Transformer layer, compiled, checkpointed or sharded if the options request it.

        Overrides the method of fairseq's ``TransformerEncoderBase``.

        Args:
            cfg: fairseq's TransformerConfig.

        Returns:
            The layer.
        """
        return wrap_layer(TransformerSequenceLayer(cfg), cfg)
