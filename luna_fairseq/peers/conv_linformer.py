"""Convolutional Linformer: attention to keys and values shortened by a convolution.

Source: Estupinan Ojeda et al., "Informer, an Information Organization Transformer Architecture".

Before the split into heads, keys and values are padded with zeros to the maximum length n, and convolved
along the length. Kernel size and stride are n / r, so r tokens remain. The convolution has C input and C
output channels, where C is the model width. Leaky ReLU and max-pooling by two follow, so r / 2 keys remain.

The paper does not give the number of channels, but its parameter count supports this choice. With C channels,
and one convolution each for the keys and the values of every layer, the paper's 135,368,888 parameters leave
24,572 embedding rows for both vocabularies. The published vocabularies of its corpus (words with five or more
occurrences) have 24,900 entries in total.
"""

from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.errors import InputError
from luna_fairseq.ops.masked_softmax import naive_softmax_weights
from luna_fairseq.ops.softmax import softmax_attention
from luna_fairseq.peers.attention import BIDIRECTIONAL, PeerAttention
from luna_fairseq.peers.feature_maps import mask_features

# Kernel and stride of max-pooling.
POOL = 2


class ConvLinformerAttention(PeerAttention):
    """Convolutional Linformer (Estupinan Ojeda et al.): softmax attention to fewer keys and values.

    A convolution along the length and max-pooling shorten keys and values from any length to r / 2 tokens,
    where r is ``--conv-linformer-r``. See :class:`PeerAttention` for the constructor arguments.
    """

    name = "conv_linformer"
    forms = (BIDIRECTIONAL,)
    needs_left_alignment = True
    has_value_weights = False  # the convolved values are not linear in the values

    def build(self, options: Any) -> None:
        """Create the convolutions that shorten the keys and values.

        Overrides :meth:`PeerAttention.build`.

        Args:
            options: namespace with the fields of :class:`luna_fairseq.peers.PeerOptions`; only
                ``conv_linformer_r`` is used.

        Raises:
            InputError: ``conv_linformer_r`` is odd, or does not divide the maximum length.
        """
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
        """Shorten keys or values to length r / 2 with a convolution, leaky ReLU and max-pooling.

        The sequence is padded with zeros to the maximum length. The convolution leaves r tokens, where r is
        the option ``--conv-linformer-r``, and max-pooling leaves half of them.

        Args:
            x: keys or values [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            conv: convolution along the length, with one channel per feature of all heads.
            padding_mask: mask [B, T], True at padding (None if there is no padding).

        Returns:
            Shortened keys or values [B, H, r / 2, K].

        Raises:
            InputError: T exceeds the maximum length.
        """
        T = x.size(2)
        self.check_length(T)
        whole = F.pad(mask_features(x, padding_mask), (0, 0, 0, self.max_positions - T))
        parts = conv(whole.transpose(2, 3).flatten(1, 2))  # [B, C, n] -> [B, C, r]
        kept = F.max_pool1d(F.leaky_relu(parts), POOL)
        return kept.unflatten(1, (self.num_heads, -1)).transpose(2, 3)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        """Compute softmax attention to the shortened keys and values.

        Overrides :meth:`PeerAttention.attend`.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            k: keys, with the same shape as ``q``.
            v: values, with the same shape as ``q``.
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output of each head, with the same shape as ``q``.
        """
        k, v = self.shorten(k, self.key_conv, padding_mask), self.shorten(v, self.value_conv, padding_mask)
        return softmax_attention(q, k, v, None, self.dropout)

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        """Compute the output of :meth:`attend` with an einsum as the convolution, as a reference for tests.

        Overrides :meth:`PeerAttention.attend_naively`.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            k: keys, with the same shape as ``q``.
            v: values, with the same shape as ``q``.
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output of each head, with the same shape as ``q``.
        """
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
