"""Performer (Choromanski et al., 2020, "Rethinking Attention with Performers"): FAVOR+ attention.

FAVOR+ approximates softmax attention with M positive random features::

    phi(x)_r = M^(-1/2) exp(w_r . x' - |x'|^2 / 2)    with x' = x K^(-1/4), r = 1 .. M

The random vectors w_r are orthogonal, with normally distributed entries. The mean of phi(q) . phi(k) over w
is exp(q . k / sqrt(K)), so more features give a better approximation.

Before the exponential function, the greatest exponent of each query is subtracted, and so is the greatest
exponent of all keys of a sequence. Both cancel in the division by the sum of the weights.
"""

from typing import Any, Optional

import torch
from torch import Tensor

from luna_fairseq.peers.feature_maps import FeatureMapAttention, Keys, mask_features, weighted_mean
from luna_fairseq.peers.resampling import ResampledNormal


class PerformerAttention(FeatureMapAttention):
    """Performer: feature-map attention with M positive orthogonal random features.

    The features are resampled during training only. A checkpoint stores the seed of the current sample. The
    arguments and the other letters of shapes are those of :class:`PeerAttention`.
    """

    name = "performer"

    def build(self, options: Any) -> None:
        """Draw the M random vectors of width K.

        Args:
            options: namespace with the fields of :class:`luna_fairseq.peers.PeerOptions`. Its
                ``performer_features`` is M.
        """
        self.features = ResampledNormal(
            (options.performer_features, self.head_dim), options.performer_redraw_interval, orthogonal=True
        )

    def exponents(self, x: Tensor) -> Tensor:
        """Compute the exponents of the features, w_r . x' - |x'|^2 / 2.

        Args:
            x: queries or keys [B, H, T, K].

        Returns:
            Exponents [B, H, T, M] in float32 or wider.
        """
        x = x.to(torch.promote_types(x.dtype, torch.float32)) * self.head_dim**-0.25
        return x @ self.features.values.to(x.dtype).t() - x.pow(2).sum(dim=-1, keepdim=True) / 2

    def map_queries(self, q: Tensor) -> Tensor:
        """Compute the feature maps phi(q), divided by the greatest feature of each query.

        Args:
            q: queries [B, H, T, K].

        Returns:
            Features [B, H, T, M] in float32 or wider.
        """
        exponents = self.exponents(q)
        return (exponents - exponents.detach().amax(dim=-1, keepdim=True)).exp()

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *extra: Tensor) -> Keys:
        """Compute the feature maps phi(k), divided by the greatest feature of each sequence.

        Args:
            k: keys [B, H, S, K].
            padding_mask: mask [B, S], True at padding, or None without padding.
            extra: not used.

        Returns:
            Features [B, H, S, M], 0 at padding, and the logarithm of their divisor as ``log_scale``.
        """
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
        """Compute the output of :meth:`attend` with explicit weights, as a reference.

        Args:
            q: queries [B, H, T, K].
            k: keys [B, H, T, K].
            v: values [B, H, T, K].
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output heads [B, H, T, K].
        """
        return weighted_mean(
            v, self.unnormalized_weights(self.exponents(q).exp(), self.exponents(k).exp(), padding_mask)
        )
