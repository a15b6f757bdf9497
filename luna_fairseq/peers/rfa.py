"""Random feature attention (Peng et al., 2021), with the gate of RFA-Gate in causal attention where asked
for.

``phi(x) = D^(-1/2) [sin(w_r . x), cos(w_r . x)]``, r = 1 .. D, for queries and keys of length 1; w_r = sigma
* normal, with a learned sigma for every dimension. phi(q) . phi(k) is exp(-|sigma (q - k)|^2 / 2) in the
mean: softmax of q . k for sigma = 1. Gated: ``S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T``, z_t alike, with
g_t = sigmoid(w_g . x_t + b_g) for every head.

Sines take any sign, so the sum of weights may come near 0 where there are few features; it is taken to be at
least its own noise, half of D^(-1/2) a key.
"""

from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.peers.attention import CAUSAL, Parts
from luna_fairseq.peers.feature_maps import FeatureMapAttention, Keys, mask_features
from luna_fairseq.peers.resampling import ResampledNormal

# Where the gate begins: a memory of about 20 positions, 1 / (1 - sigmoid(3)).
GATE_BIAS = 3.0


class RandomFeatureAttention(FeatureMapAttention):
    """Every head has random vectors of its own, drawn once."""

    name = "rfa"

    def build(self, options: Any) -> None:
        self.vectors = ResampledNormal((self.num_heads, options.rfa_dim, self.head_dim))
        self.sigma = nn.Parameter(torch.full((self.num_heads, 1, self.head_dim), options.rfa_sigma))
        self.noise = 0.5 * options.rfa_dim**-0.5
        self.gate_proj: Optional[nn.Linear] = None
        if options.rfa_gate and self.form == CAUSAL:
            self.gate_proj = nn.Linear(self.embed_dim, self.num_heads)
            nn.init.xavier_uniform_(self.gate_proj.weight)
            nn.init.constant_(self.gate_proj.bias, GATE_BIAS)

    def project(self, x: Tensor) -> Parts:
        return super().project(x) if self.gate_proj is None else self.project_heads(x, "q", "k", "v", "gate")

    def map_queries(self, q: Tensor) -> Tensor:
        q = F.normalize(q.to(torch.promote_types(q.dtype, torch.float32)), dim=-1)
        vectors = (self.vectors.values * self.sigma).to(q.dtype)
        projected = q @ vectors.transpose(-2, -1)
        return torch.cat([projected.sin(), projected.cos()], dim=-1) * vectors.size(-2) ** -0.5

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *more: Tensor) -> Keys:
        features = mask_features(self.map_queries(k), padding_mask)
        if not more:
            return Keys(features)
        gate = more[0].to(features.dtype)
        log_decay = mask_features(F.logsigmoid(gate), padding_mask).squeeze(-1)
        return Keys(features * torch.sigmoid(-gate), log_decay=log_decay)

    def floor(self, sums: Tensor, *total: Tensor) -> Tensor:
        return self.noise * total[0].clamp(min=torch.finfo(sums.dtype).tiny ** 0.5)

    def totals(self, keys: Keys, padding_mask: Optional[Tensor], before: Optional[Tensor] = None) -> Parts:
        """What the weights would sum to if every feature map were alike [B, 1 or H, T, 1]."""
        if keys.log_decay is None:
            real = torch.ones_like(keys.features[:, :1, :, :1])
            count = mask_features(real, padding_mask).cumsum(dim=2)
            return (count if before is None else count + before,)
        left = keys.log_decay.cumsum(dim=-1).unsqueeze(-1).exp()
        return (1 - (left if before is None else left * (1 - before)),)

    def attend_naively(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Optional[Tensor] = None,
        padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        each = self.unnormalized_weights(
            torch.ones_like(q[..., :1]), torch.ones_like(k[..., :1]), padding_mask
        )
        if gate is not None:
            log_decay = mask_features(F.logsigmoid(gate), padding_mask).cumsum(dim=2)
            left = (log_decay - log_decay.transpose(-2, -1)).tril().exp()
            each = each * left * torch.sigmoid(-gate).transpose(-2, -1)
        weights = each * (self.map_queries(q) @ self.map_queries(k).transpose(-2, -1))
        least = self.noise * each.sum(dim=-1, keepdim=True).clamp(min=1e-30)
        return weights @ v / torch.maximum(weights.sum(dim=-1, keepdim=True), least)
