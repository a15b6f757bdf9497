"""Linformer (Wang et al., 2020, "Self-Attention with Linear Complexity").

Keys and values are projected along the length, from n tokens to k (``--linformer-k``), with learned matrices
E and F [k, n]. For queries q and head width K, the output is::

    y = softmax(q (E keys)^T / sqrt(K)) (F values)

n is the maximum length. Shorter sequences are left-aligned and use the first columns of E and F. E and F
mix all positions, so causal attention is not possible.
"""

from typing import Any, List, Optional

import torch
from torch import Tensor, nn

from luna_fairseq.ops.attention import softmax_attention
from luna_fairseq.peers.attention import BIDIRECTIONAL, PeerAttention
from luna_fairseq.peers.feature_maps import mask_features


class LinformerAttention(PeerAttention):
    """Linformer (Wang et al., 2020): softmax attention to keys and values projected to fewer positions."""

    name = "linformer"
    roles = (BIDIRECTIONAL,)
    needs_left_alignment = True

    def build(self, options: Any) -> None:
        """Create the matrices E and F, which project keys and values along the length.

        ``--linformer-sharing`` has four values:

        - none: separate E and F for each head.
        - headwise: the same E and F for all heads of a layer.
        - key-value: a single matrix for both E and F, for all heads of a layer.
        - layerwise: one matrix for all layers (:meth:`share_projections`).
        """
        self.sharing = options.linformer_sharing
        heads = self.num_heads if self.sharing == "none" else 1
        shape = (heads, options.linformer_k, self.max_positions)
        self.length_proj = nn.ParameterList(
            nn.Parameter(torch.empty(shape)) for _ in range(2 if self.sharing in ("none", "headwise") else 1)
        )
        for parameter in self.length_proj:
            # Each row of E and F has a norm of about 1, so projected keys are as large as the tokens' keys.
            nn.init.normal_(parameter, std=self.max_positions**-0.5)

    def share_projections(self, first: "LinformerAttention") -> None:
        """Use the length projection of the ``first`` layer if ``--linformer-sharing`` is "layerwise"."""
        if self.sharing == "layerwise":
            self.length_proj = first.length_proj

    def shorten(self, x: Tensor, index: int, padding_mask: Optional[Tensor]) -> Tensor:
        """Project x [B, H, T, K], keys (``index`` 0) or values (1), from T to ``--linformer-k`` positions."""
        T = x.size(2)
        self.check_length(T)
        weights: List[Tensor] = list(self.length_proj)
        return weights[index % len(weights)][:, :, :T].to(x.dtype) @ mask_features(x, padding_mask)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        k, v = self.shorten(k, 0, padding_mask), self.shorten(v, 1, padding_mask)
        return softmax_attention(q, k, v, None, self.dropout)

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        """Compute softmax(q (E keys)^T / sqrt(K)) (F values) directly, without dropout.

        E and F project keys and values along the length. The result is [B, H, T, K] for head width K.
        """
        E, F = (self.length_proj[i][..., : k.size(2)] for i in (0, -1))
        keys, values = E @ mask_features(k, padding_mask), F @ mask_features(v, padding_mask)
        return (q @ keys.transpose(-2, -1) * q.size(-1) ** -0.5).softmax(dim=-1) @ values
