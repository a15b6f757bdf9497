"""FLARE, fast low-rank attention routing engine (Puri et al., 2025): Luna's nearest relative among
bidirectional attentions.

M learned latent queries Q of every head gather from all positions, and positions read what was gathered by
their own *keys*, with the latents as what they are compared with: ``Z = softmax(Q K^T) V``, ``Y = softmax(K
Q^T) Z``, without scaling by sqrt(K). The same latents in every layer's pack and unpack, and no queries; the
paper's deeper projections of keys and values are not part of the attention here, as all peers have linear
ones.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.ops.masked_softmax import naive_softmax_weights
from luna_fairseq.ops.softmax import softmax_attention
from luna_fairseq.peers.attention import BIDIRECTIONAL, PeerAttention, excluded_keys


class FlareAttention(PeerAttention):
    """Two softmax attentions through a fixed length, as in Luna, with one set of learned vectors."""

    name = "flare"
    forms = (BIDIRECTIONAL,)
    projections: Tuple[str, ...] = ("k", "v")

    def build(self, options: Any) -> None:
        self.latents = nn.Parameter(torch.randn(self.num_heads, options.flare_latents, self.head_dim) * 0.1)

    def attend(self, k: Tensor, v: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        latents = self.latents.to(k.dtype).expand(k.size(0), -1, -1, -1)
        unscaled = latents * self.head_dim**0.5
        gathered = softmax_attention(unscaled, k, v, excluded_keys(padding), self.dropout)
        return softmax_attention(k, unscaled, gathered, None, self.dropout)

    def define(self, k: Tensor, v: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        scale = self.head_dim**0.5
        gather = naive_softmax_weights(self.latents * scale, k, excluded_keys(padding))
        scatter = naive_softmax_weights(k * scale, self.latents)
        return scatter @ gather @ v
