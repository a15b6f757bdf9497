"""Performer (Choromanski et al., 2020, "Rethinking Attention with Performers"): FAVOR+, positive orthogonal
random features.

``phi(x) = M^(-1/2) exp(w_r . x' - |x'|^2 / 2)``, r = 1 .. M, with x' = x K^(-1/4) and w_r normal and
orthogonal. Then phi(q) . phi(k) is exp(q . k / sqrt(K)) in the mean over w: softmax attention in the limit of
many features.

The greatest exponent of a query, and of all keys of a sentence, is taken off before exp and cancels in the
division.
"""

from typing import Any, Optional

import torch
from torch import Tensor

from luna_fairseq.peers.feature_maps import FeatureMapAttention, Keys, mask_features, weighted_mean
from luna_fairseq.peers.resampling import ResampledNormal


class PerformerAttention(FeatureMapAttention):
    """What the random features are drawn from is in the checkpoint; outside of training they are fixed."""

    name = "performer"

    def build(self, options: Any) -> None:
        self.features = ResampledNormal(
            (options.performer_features, self.head_dim), options.performer_redraw_interval, orthogonal=True
        )

    def exponents(self, x: Tensor) -> Tensor:
        """w_r . x' - |x'|^2 / 2 for x [B, H, T, K]: [B, H, T, M], in float32 or wider."""
        x = x.to(torch.promote_types(x.dtype, torch.float32)) * self.head_dim**-0.25
        return x @ self.features.values.to(x.dtype).t() - x.pow(2).sum(dim=-1, keepdim=True) / 2

    def map_queries(self, q: Tensor) -> Tensor:
        exponents = self.exponents(q)
        return (exponents - exponents.detach().amax(dim=-1, keepdim=True)).exp()

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *more: Tensor) -> Keys:
        exponents = self.exponents(k)
        if padding_mask is not None:
            exponents = exponents.masked_fill(
                padding_mask[:, None, :, None], torch.finfo(exponents.dtype).min
            )
        log_scale = exponents.detach().amax(dim=(-2, -1), keepdim=True)
        return Keys(mask_features((exponents - log_scale).exp(), padding_mask), log_scale)

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        return weighted_mean(
            v, self.unnormalized_weights(self.exponents(q).exp(), self.exponents(k).exp(), padding_mask)
        )
