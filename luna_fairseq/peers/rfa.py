"""Random feature attention, RFA (Peng et al., 2021), with an optional gate in causal attention.

Queries and keys x are normalized to length 1 and mapped to 2 D random features::

    phi(x) = D^(-1/2) [sin(w_1 . x), .., sin(w_D . x), cos(w_1 . x), .., cos(w_D . x)]

Each w_r is a normally distributed vector multiplied by a learned per-dimension sigma. The mean of
``phi(q) . phi(k)`` over w is exp(-|sigma (q - k)|^2 / 2). For sigma = 1, the weights equal a softmax of q .
k.

Causal attention keeps the sums S_t and z_t over the keys k and values v. With the gate
g_t = sigmoid(w_g . x_t + b_g) of each head (RFA-Gate), the sums forget earlier positions::

    S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T
    z_t = g_t z_(t-1) + (1 - g_t) phi(k_t)

Sines can be negative, so the sum of the weights may come close to 0 if there are few features. The sum is
therefore clamped from below. The bound is the noise of the sum, half of D^(-1/2) per key.
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
    """Random feature attention, RFA (Peng et al., 2021): softmax attention approximated in linear time.

    The features of queries and keys are sines and cosines of random projections. Each head has its own random
    vectors, which are drawn once. With ``--rfa-gate``, causal attention forgets earlier positions. See
    :class:`PeerAttention` for the constructor arguments.
    """

    name = "rfa"

    def build(self, options: Any) -> None:
        """Draw the random vectors, and create their learned scales and the projection of the gate.

        Overrides :meth:`PeerAttention.build`.

        Args:
            options: namespace with the fields of :class:`luna_fairseq.peers.PeerOptions`; only ``rfa_dim``,
                ``rfa_sigma`` and ``rfa_gate`` are used.
        """
        self.vectors = ResampledNormal((self.num_heads, options.rfa_dim, self.head_dim))
        self.sigma = nn.Parameter(torch.full((self.num_heads, 1, self.head_dim), options.rfa_sigma))
        self.noise = 0.5 * options.rfa_dim**-0.5
        self.gate_proj: Optional[nn.Linear] = None
        if options.rfa_gate and self.form == CAUSAL:
            self.gate_proj = nn.Linear(self.embed_dim, self.num_heads)
            nn.init.xavier_uniform_(self.gate_proj.weight)
            nn.init.constant_(self.gate_proj.bias, GATE_BIAS)

    def project(self, x: Tensor) -> Parts:
        """Project the input to queries, keys, values and, if there is a gate, gate logits.

        Overrides :meth:`PeerAttention.project`.

        Args:
            x: input [T, B, C]: T positions, batch size B, and model width C.

        Returns:
            - queries, keys and values, each [B, H, T, K]: H heads of width K.
            - logits [B, H, T, 1] of the gate, only if there is a gate.
        """
        return super().project(x) if self.gate_proj is None else self.project_heads(x, "q", "k", "v", "gate")

    def map_queries(self, q: Tensor) -> Tensor:
        """Compute the random features of queries, sines and cosines of random projections.

        Overrides :meth:`FeatureMapAttention.map_queries`.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.

        Returns:
            Features [B, H, T, 2 D] in float32 or higher precision, for D random vectors.
        """
        q = F.normalize(q.to(torch.promote_types(q.dtype, torch.float32)), dim=-1)
        vectors = (self.vectors.values * self.sigma).to(q.dtype)
        projected = q @ vectors.transpose(-2, -1)
        return torch.cat([projected.sin(), projected.cos()], dim=-1) * vectors.size(-2) ** -0.5

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *extra: Tensor) -> Keys:
        """Compute the random features of keys, multiplied by 1 - g if there is a gate g.

        Overrides :meth:`FeatureMapAttention.map_keys`.

        Args:
            k: keys [B, H, S, K]: batch size B, H heads, S positions, and head width K.
            padding_mask: mask [B, S], True at padding (None if there is no padding).
            extra: logits [B, H, S, 1] of the gate; empty without a gate.

        Returns:
            Features [B, H, S, 2 D] for D random vectors, 0 at padding. With a gate, ``log_decay`` is log g.
        """
        features = mask_features(self.map_queries(k), padding_mask)
        if not extra:
            return Keys(features)
        gate = extra[0].to(features.dtype)
        log_decay = mask_features(F.logsigmoid(gate), padding_mask).squeeze(-1)
        return Keys(features * torch.sigmoid(-gate), log_decay=log_decay)

    def least_divisor(self, sums: Tensor, *total: Tensor) -> Tensor:
        """Return the noise of the sum of the weights as the smallest divisor of the weighted mean.

        Overrides :meth:`FeatureMapAttention.least_divisor`. A sum of weights below its noise level is
        meaningless.

        Args:
            sums: weighted sums [..., K + 1], used for their dtype.
            total: one tensor [..., 1], the normalizer for uniform features.

        Returns:
            The smallest divisors [..., 1].
        """
        return self.noise * total[0].clamp(min=torch.finfo(sums.dtype).tiny ** 0.5)

    def weight_totals(
        self, keys: Keys, padding_mask: Optional[Tensor], before: Optional[Tensor] = None
    ) -> Parts:
        """Compute the normalizer (total weight) of each position for uniform features.

        Overrides :meth:`FeatureMapAttention.weight_totals`. In causal attention with a gate g, position j
        contributes (1 - g_j) g_(j+1) .. g_t to position t. Without a gate, every position contributes 1.

        Args:
            keys: features of the new keys.
            padding_mask: mask [B, T] for B sequences of T new positions, True at padding (None if there is no
                padding).
            before: sum [B, 1 or H, 1, 1] up to the last earlier position (default: None, at the start).

        Returns:
            A one-element tuple. Without a gate, the tensor is the number of tokens [B, 1, T, 1] up to each
            position. With a gate, it is 1 minus the product of all gates so far [B, H, T, 1], for H heads.
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
        """Compute the output of :meth:`attend` from materialized attention weights, as a reference for tests.

        Overrides :meth:`PeerAttention.attend_naively`.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            k: keys, with the same shape as ``q``.
            v: values, with the same shape as ``q``.
            gate: logits [B, H, T, 1] of the gate (default: None, no gate).
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output of each head, with the same shape as ``q``.
        """
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
