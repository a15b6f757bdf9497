"""FLARE, fast low-rank attention routing engine (Puri et al., 2025), a mechanism closely related to Luna.

Each head has M learned latent queries Q. First the latents attend to all tokens. Then the tokens attend to
the latents, with their keys K acting as queries. With values V, the output is Y::

    Z = softmax(Q K^T) V
    Y = softmax(K Q^T) Z

The logits are not scaled by 1 / sqrt(head width), and tokens have no queries. The paper computes keys and
values with deep networks. Here, keys and values are linear projections, as in the other mechanisms.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.ops.attention import naive_softmax_weights, softmax_attention
from luna_fairseq.peers.attention import BIDIRECTIONAL, PeerAttention, combine_masks


class FlareAttention(PeerAttention):
    """FLARE (Puri et al., 2025): attention from latents to the tokens, then from tokens to latents."""

    name = "flare"
    roles = (BIDIRECTIONAL,)
    projections: Tuple[str, ...] = ("k", "v")

    def build(self, options: Any) -> None:
        self.latents = nn.Parameter(torch.randn(self.num_heads, options.flare_latents, self.head_dim) * 0.1)

    def attend(self, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        latents = self.latents.to(k.dtype).expand(k.size(0), -1, -1, -1)
        unscaled = latents * self.head_dim**0.5
        gathered = softmax_attention(unscaled, k, v, combine_masks(padding_mask), self.dropout)
        return softmax_attention(k, unscaled, gathered, None, self.dropout)

    def attend_naively(self, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        scale = self.head_dim**0.5
        gather = naive_softmax_weights(self.latents * scale, k, combine_masks(padding_mask))
        scatter = naive_softmax_weights(k * scale, self.latents)
        return scatter @ gather @ v
