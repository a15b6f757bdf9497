"""Convolutional Linformer: attention to keys and values shortened by a convolution.

Source: Estupinan Ojeda et al., "Informer, an Information Organization Transformer Architecture".

Before the split into heads, keys and values are padded with zeros to the maximum length n, and convolved
along the length. Kernel size and stride are n / r, so r tokens remain. The convolution has C input and C
output channels, where C is the model width. Leaky ReLU and max-pooling by two follow, so r / 2 keys remain.

The paper does not give the number of channels. With C channels, its 135,368,888 parameters leave 24,572
embedding rows, close to the 24,900 words of its corpus with five or more occurrences.
"""

from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import naive_softmax_weights, softmax_attention
from luna_fairseq.peers.attention import BIDIRECTIONAL, PeerAttention
from luna_fairseq.peers.feature_maps import mask_features

# Kernel and stride of max-pooling.
POOL = 2


class ConvLinformerAttention(PeerAttention):
    """Convolutional Linformer (Estupinan Ojeda et al.): softmax attention to convolved keys and values."""

    name = "conv_linformer"
    roles = (BIDIRECTIONAL,)
    needs_left_alignment = True
    has_value_weights = False  # the convolved values are not linear in the values

    def build(self, options: Any) -> None:
        r, n = options.conv_linformer_r, self.max_positions
        if r < POOL or r % POOL or n % r:
            raise InputError(
                f"Expected --conv-linformer-r to be even and to divide the maximum length {n}, got {r}. Use "
                "another number, or change the maximum length."
            )
        self.key_conv, self.value_conv = (
            nn.Conv1d(self.embed_dim, self.embed_dim, n // r, stride=n // r) for _ in range(2)
        )

    def shorten(self, x: Tensor, conv: nn.Module, padding_mask: Optional[Tensor]) -> Tensor:
        """Shorten keys or values [B, H, T, K] to [B, H, r / 2, K] with a convolution and pooling.

        The convolution runs along the length, with the dimensions of all heads as its channels.
        """
        T = x.size(2)
        self.check_length(T)
        whole = F.pad(mask_features(x, padding_mask), (0, 0, 0, self.max_positions - T))
        parts = conv(whole.transpose(2, 3).flatten(1, 2))  # [B, C, n] -> [B, C, r]
        kept = F.max_pool1d(F.leaky_relu(parts), POOL)
        return kept.unflatten(1, (self.num_heads, -1)).transpose(2, 3)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        k, v = self.shorten(k, self.key_conv, padding_mask), self.shorten(v, self.value_conv, padding_mask)
        return softmax_attention(q, k, v, None, self.dropout)

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        shorter = []
        for x, conv in ((k, self.key_conv), (v, self.value_conv)):
            width, T = conv.kernel_size[0], x.size(2)
            whole = x.new_zeros(x.size(0), self.max_positions, self.embed_dim)
            whole[:, :T] = mask_features(x, padding_mask).transpose(1, 2).flatten(2)
            parts = whole.unflatten(1, (-1, width))  # [B, r, width, C]
            parts = torch.einsum("brwi,oiw->bro", parts, conv.weight) + conv.bias
            parts = torch.maximum(parts, 0.01 * parts).unflatten(1, (-1, POOL)).amax(dim=2)
            shorter.append(parts.unflatten(2, (self.num_heads, -1)).transpose(1, 2))
        return naive_softmax_weights(q, shorter[0]) @ shorter[1]
