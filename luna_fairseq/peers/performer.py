"""Performer (Choromanski et al., 2020, "Rethinking Attention with Performers"): FAVOR+ attention.

FAVOR+ approximates softmax attention with M positive random features of queries and keys x of width K::

    phi(x)_r = M^(-1/2) exp(w_r . x' - |x'|^2 / 2)    with x' = x K^(-1/4), r = 1 .. M

The random vectors w_r are orthogonal, with normally distributed entries. The mean of phi(q) . phi(k) over w
is exp(q . k / sqrt(K)), so more features give a better approximation.

To avoid overflow, the maximum exponent of each query is subtracted from its exponents, and the maximum
exponent over all keys of a sequence is subtracted from the exponents of the keys. Both cancel in the division
by the sum of the weights.
"""

from typing import Any, Optional

import torch
from torch import Tensor

from luna_fairseq.peers.feature_maps import FeatureMapAttention, Keys, mask_features, weighted_mean
from luna_fairseq.peers.resampling import ResampledNormal


class PerformerAttention(FeatureMapAttention):
    """Performer (Choromanski et al., 2020): softmax attention approximated in linear time.

    The random vectors of the features are resampled every ``--performer-redraw-interval`` updates.
    """

    name = "performer"

    def build(self, options: Any) -> None:
        self.features = ResampledNormal(
            (options.performer_features, self.head_dim), options.performer_redraw_interval, orthogonal=True
        )

    def exponents(self, x: Tensor) -> Tensor:
        """Compute the exponents [B, H, T, M] of M random features of x [B, H, T, K], in float32 or higher.

        With a random vector w_r, the exponent is w_r . x' - |x'|^2 / 2, where x' = x K^(-1/4).
        """
        x = x.to(torch.promote_types(x.dtype, torch.float32)) * self.head_dim**-0.25
        return x @ self.features.values.to(x.dtype).t() - x.pow(2).sum(dim=-1, keepdim=True) / 2

    def map_queries(self, q: Tensor) -> Tensor:
        exponents = self.exponents(q)
        return (exponents - exponents.detach().amax(dim=-1, keepdim=True)).exp()

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *extra: Tensor) -> Keys:
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
