"""Random feature attention, RFA (Peng et al., 2021), with an optional gate in causal attention.

Queries and keys x are normalized to length 1 and mapped to 2 D random features::

    phi(x) = D^(-1/2) [sin(w_1 . x), .., sin(w_D . x), cos(w_1 . x), .., cos(w_D . x)]

Each w_r is a normally distributed vector multiplied by a learned per-dimension sigma. The expected value of
``phi(q) . phi(k)`` is exp(-|sigma (q - k)|^2 / 2). For sigma = 1, the attention weights approximate a softmax
of q . k.

Causal attention keeps two running sums over the keys k and values v: S_t for the values, and z_t for the
normalizer. In RFA-Gate, each head has a gate g_t = sigmoid(w_g . x_t + b_g), with which the sums forget
earlier positions::

    S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T
    z_t = g_t z_(t-1) + (1 - g_t) phi(k_t)
    y_t = phi(q_t) S_t / (phi(q_t) . z_t)

Sines can be negative, so the divisor may come close to 0 if there are few features. The divisor is therefore
clamped from below, to the noise level of the sum: half of D^(-1/2) per key.
"""

from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.peers.attention import CAUSAL, Parts
from luna_fairseq.peers.feature_maps import FeatureMapAttention, Keys, mask_features
from luna_fairseq.peers.resampling import ResampledNormal

# Initial bias of the gate. The memory spans about 1 / (1 - sigmoid(3)) = 21 positions.
GATE_BIAS = 3.0


class RandomFeatureAttention(FeatureMapAttention):
    """Random feature attention, RFA (Peng et al., 2021), which approximates softmax attention in linear time.

    With ``--rfa-gate``, causal attention also takes gate logits [B, H, T, 1]. The gates let the weights of
    earlier tokens decay.
    """

    name = "rfa"

    def build(self, options: Any) -> None:
        self.vectors = ResampledNormal((self.num_heads, options.rfa_dim, self.head_dim))
        self.sigma = nn.Parameter(torch.full((self.num_heads, 1, self.head_dim), options.rfa_sigma))
        self.noise = 0.5 * options.rfa_dim**-0.5
        self.gate_proj: Optional[nn.Linear] = None
        if options.rfa_gate and self.role == CAUSAL:
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

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *extra: Tensor) -> Keys:
        """Compute the random features of keys k [B, H, S, K], with their decay if there is a gate.

        ``extra`` holds the logits of a gate g, if any. Features are scaled by 1 - g, and earlier sums by g.
        """
        features = mask_features(self.map_queries(k), padding_mask)
        if not extra:
            return Keys(features)
        gate = extra[0].to(features.dtype)
        log_decay = mask_features(F.logsigmoid(gate), padding_mask).squeeze(-1)
        return Keys(features * torch.sigmoid(-gate), log_decay=log_decay)

    def least_divisor(self, sums: Tensor, *total: Tensor) -> Tensor:
        """Return the lower bound of the divisor: the noise of random features in a sum over ``total`` keys.

        The features can be negative, so the divisor, the sum of the attention weights, may be close to 0.
        """
        return self.noise * total[0].clamp(min=torch.finfo(sums.dtype).tiny ** 0.5)

    def weight_totals(
        self, keys: Keys, padding_mask: Optional[Tensor], before: Optional[Tensor] = None
    ) -> Parts:
        """Compute the sum of the attention weights at each position, as if every phi(q) . phi(k) were 1.

        :meth:`least_divisor` multiplies the noise level by this sum. Without a gate, the sum is the number of
        tokens up to the position, [B, 1, T, 1]. With a gate, [B, H, T, 1], it is the sum of (1 - g_j) g_(j+1)
        .. g_t over j. ``before`` is the sum at the last earlier position, or None. Return a 1-tuple.
        """
        if keys.log_decay is None:
            real = torch.ones_like(keys.features[:, :1, :, :1])
            count = mask_features(real, padding_mask).cumsum(dim=2)
            return (count if before is None else count + before,)
        # The weights (1 - g_j) g_(j+1) .. g_t of positions j <= t sum to 1 - g_1 .. g_t.
        decay = keys.log_decay.cumsum(dim=-1).unsqueeze(-1).exp()
        return (1 - (decay if before is None else decay * (1 - before)),)

    def attend_naively(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Optional[Tensor] = None,
        padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        shares = self.unnormalized_weights(
            torch.ones_like(q[..., :1]), torch.ones_like(k[..., :1]), padding_mask
        )
        if gate is not None:
            log_decay = mask_features(F.logsigmoid(gate), padding_mask).cumsum(dim=2)
            decay = (log_decay - log_decay.transpose(-2, -1)).tril().exp()
            shares = shares * decay * torch.sigmoid(-gate).transpose(-2, -1)
        weights = shares * (self.map_queries(q) @ self.map_queries(k).transpose(-2, -1))
        floor = self.noise * shares.sum(dim=-1, keepdim=True).clamp(min=1e-30)
        return weights @ v / torch.maximum(weights.sum(dim=-1, keepdim=True), floor)
