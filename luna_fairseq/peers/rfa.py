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
    """Random feature attention, RFA (Peng et al., 2021): softmax attention approximated in linear time.

    The features of queries and keys are sines and cosines of random projections. Each head has its own random
    vectors, which are drawn once. With the option ``--rfa-gate``, causal attention learns a gate with which
    it forgets earlier positions. See :class:`PeerAttention` for the constructor arguments.
    """

    name = "rfa"

    def build(self, options: Any) -> None:
        """Draw the random vectors w_r, and create the learned scales sigma and the projection of the gate.

        Overrides :meth:`PeerAttention.build`. The features are sines and cosines of w_r . x, where each w_r
        is a normally distributed vector multiplied by sigma.

        Args:
            options: namespace with the fields of :class:`luna_fairseq.peers.PeerOptions`. Only ``rfa_dim``
                (number of random vectors), ``rfa_sigma`` (initial sigma) and ``rfa_gate`` (use a gate) are
                read.
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
        """Compute the random features of queries, D^(-1/2) [sin(w_r . q), cos(w_r . q)] for r = 1 .. D.

        Overrides :meth:`FeatureMapAttention.map_queries`. The queries are first normalized to length 1. The
        vectors w_r are the D random vectors, multiplied by the learned scales.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.

        Returns:
            Features [B, H, T, 2 D] in float32 or higher precision.
        """
        q = F.normalize(q.to(torch.promote_types(q.dtype, torch.float32)), dim=-1)
        vectors = (self.vectors.values * self.sigma).to(q.dtype)
        projected = q @ vectors.transpose(-2, -1)
        return torch.cat([projected.sin(), projected.cos()], dim=-1) * vectors.size(-2) ** -0.5

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *extra: Tensor) -> Keys:
        """Compute the random features of keys, multiplied by 1 - g if there is a gate g.

        Overrides :meth:`FeatureMapAttention.map_keys`. The gate g_t = sigmoid(logit_t) decays the sums over
        earlier positions: S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T, with features phi(k_t) and values
        v_t.

        Args:
            k: keys [B, H, S, K]: batch size B, H heads, S positions, and head width K.
            padding_mask: mask [B, S], True at padding (None if there is no padding).
            extra: logits [B, H, S, 1] of the gate. Empty if there is no gate.

        Returns:
            Features [B, H, S, 2 D] for D random vectors, 0 at padding. With a gate, ``log_decay`` [B, H, S]
            is log g, and 0 at padding.
        """
        features = mask_features(self.map_queries(k), padding_mask)
        if not extra:
            return Keys(features)
        gate = extra[0].to(features.dtype)
        log_decay = mask_features(F.logsigmoid(gate), padding_mask).squeeze(-1)
        return Keys(features * torch.sigmoid(-gate), log_decay=log_decay)

    def least_divisor(self, sums: Tensor, *total: Tensor) -> Tensor:
        """Return the noise level of the sum of the weights, the smallest divisor of the weighted mean.

        Overrides :meth:`FeatureMapAttention.least_divisor`. The noise level is ``0.5 D^(-1/2) total`` for D
        random vectors, where ``total`` is the sum of the weights if all features were equal. A smaller sum of
        weights is not meaningful.

        Args:
            sums: weighted sums [..., K + 1], used for their dtype.
            total: one tensor [..., 1] with the total of each position.

        Returns:
            The smallest divisors [..., 1].
        """
        return self.noise * total[0].clamp(min=torch.finfo(sums.dtype).tiny ** 0.5)

    def weight_totals(
        self, keys: Keys, padding_mask: Optional[Tensor], before: Optional[Tensor] = None
    ) -> Parts:
        """Compute the total weight of all keys at each position, if all query-key products were equal to 1.

        Overrides :meth:`FeatureMapAttention.weight_totals`. The total bounds the divisor of attention from
        below. Without a gate, every key has the weight 1. With a gate g in causal attention, the sums over
        keys are multiplied by g_t at each position t, and a new key is weighted by 1 - g_t. Key j then has
        the weight (1 - g_j) g_(j+1) .. g_t at position t, and the total is 1 - g_1 g_2 .. g_t.

        Args:
            keys: features of the T new keys and the log of their gates.
            padding_mask: mask [B, T], True at padding, for batch size B (None if there is no padding).
            before: total [B, 1 or H, 1, 1] at the last earlier position (default: None, no earlier
                positions).

        Returns:
            A one-element tuple. The tensor is the number of tokens [B, 1, T, 1] up to each position, or with
            a gate, the total [B, H, T, 1] for H heads.
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
