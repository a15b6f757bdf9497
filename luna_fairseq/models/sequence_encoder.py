"""Pixel embedding and Transformer encoder for long-sequence classification.

The Transformer encoder is fairseq's and serves as the baseline for Luna's encoder. Shapes: B sequences of T
(or S) tokens or pixels, width C.
"""

from typing import Any, Dict, Optional

import torch
from torch import Tensor, nn

from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from luna_fairseq.models.fairseq_layers import (
    RepeatedLayers,
    activation_function,
    replace_dropout,
    wrap_layer,
)
from luna_fairseq.modules.batch import drop_empty_mask
from luna_fairseq.modules.heads import dropout_probability, merge_heads, split_heads
from luna_fairseq.ops.absorbed import PACK_FORMS, absorbed_pack, split_input_projection
from luna_fairseq.ops.attention import key_mask, softmax_attention


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
        """Embed pixel intensities [B, T]. Return vectors [B, T, C], or [B, T + 1, C] with ``prepend_cls``."""
        x = self.linear(pixels.unsqueeze(-1).type_as(self.linear.weight))
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.size(0), 1, -1), x], dim=1)
        return x

    def placeholder_tokens(self, embedding: Tensor) -> Tensor:
        """Return token indices [B, T], none of which is padding, for pixel embeddings [B, T, C]."""
        return torch.full(embedding.shape[:2], self.padding_idx + 1, device=embedding.device)


class TransformerSequenceLayer(TransformerEncoderLayerBase):
    """fairseq's Transformer encoder layer, with GELU in float32 even for half-precision inputs."""

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.activation_fn = activation_function(cfg.activation_fn)

    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Optional[Tensor],
        attn_mask: Optional[Tensor] = None,
        num_outputs: Optional[int] = None,
    ) -> Tensor:
        """Apply the layer to x [T, B, C], and return all T outputs or only the first ``num_outputs``."""
        if num_outputs is None:
            return super().forward(x, encoder_padding_mask, attn_mask)
        y = self.self_attn_layer_norm(x) if self.normalize_before else x
        y = self.dropout_module(self.attend(y, encoder_padding_mask, num_outputs))
        x = self.residual_connection(y, x[:num_outputs])
        x = x if self.normalize_before else self.self_attn_layer_norm(x)
        y = self.final_layer_norm(x) if self.normalize_before else x
        y = self.fc2(self.activation_dropout_module(self.activation_fn(self.fc1(y))))
        x = self.residual_connection(self.dropout_module(y), x)
        return x if self.normalize_before else self.final_layer_norm(x)

    def attend(self, x: Tensor, padding_mask: Optional[Tensor], num_outputs: int) -> Tensor:
        """Attend from the first ``num_outputs`` tokens of x [T, B, C] to all tokens, with the mask [B, T]."""
        attention, H = self.self_attn, self.self_attn.num_heads
        q = split_heads(attention.q_proj(x[:num_outputs]), H)
        projections = attention.k_proj, attention.v_proj
        dropout = dropout_probability(attention.dropout_module)
        if PACK_FORMS.choose(q, x, projections) == "absorbed":
            key, value = (split_input_projection(layer.weight, layer.bias, H) for layer in projections)
            output = absorbed_pack(q, x, key, value, padding_mask, dropout)
        else:
            key, value = (split_heads(layer(x), H) for layer in projections)
            output = softmax_attention(q, key, value, key_mask(padding_mask), dropout)
        return attention.out_proj(merge_heads(output))


class TransformerSequenceEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder, with its stack of layers applied ``layer_repeats`` times."""

    def __init__(self, cfg: Any, dictionary: Any, embed_tokens: nn.Module, layer_repeats: int = 1):
        super().__init__(cfg, dictionary, embed_tokens)
        replace_dropout(self)
        if layer_repeats > 1:
            self.layers: nn.ModuleList = RepeatedLayers(self.layers, layer_repeats)

    def build_encoder_layer(self, cfg: Any) -> nn.Module:
        return wrap_layer(TransformerSequenceLayer(cfg), cfg)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
        num_outputs: Optional[int] = None,
    ) -> Dict[str, Any]:
        """Encode tokens [B, S], and return fairseq's dictionary of encoder outputs.

        If ``num_outputs`` is given, the last layer computes only the outputs of that many leading tokens, and
        the result has only the entries ``encoder_out`` and ``encoder_padding_mask``.
        """
        if num_outputs is None:
            return super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        padding_mask = src_tokens.eq(self.padding_idx)
        x, _ = self.forward_embedding(src_tokens, token_embeddings)
        mask = drop_empty_mask(padding_mask)
        if mask is not None:
            x = x.masked_fill(mask.unsqueeze(-1), 0.0)
        x = x.transpose(0, 1)
        layers = list(self.layers)
        for number, layer in enumerate(layers, start=1):
            x = layer(x, mask, num_outputs=num_outputs if number == len(layers) else None)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {"encoder_out": [x], "encoder_padding_mask": [padding_mask]}
