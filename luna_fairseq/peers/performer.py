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
    """Performer (Choromanski et al., 2020): softmax attention approximated in linear time by random features.

    The features are positive, and their random vectors are orthogonal. ``--performer-features`` sets the
    number of features. The vectors are resampled during training only, and a checkpoint stores the seed of
    the current sample. See :class:`PeerAttention` for the constructor arguments.
    """

    name = "performer"

    def build(self, options: Any) -> None:
        """Draw the random vectors of the features.

        Overrides :meth:`PeerAttention.build`.

        Args:
            options: namespace with the fields of :class:`luna_fairseq.peers.PeerOptions`; only
                ``performer_features`` and ``performer_redraw_interval`` are used.
        """
        self.features = ResampledNormal(
            (options.performer_features, self.head_dim), options.performer_redraw_interval, orthogonal=True
        )

    def exponents(self, x: Tensor) -> Tensor:
        """Compute the exponents of the random features, w_r . x' - |x'|^2 / 2.

        The features of x are the exponentials of these numbers, times a constant. w_r are the M random
        vectors, and x' is x divided by the fourth root of the head width.

        Args:
            x: queries or keys [B, H, T, K]: batch size B, H heads, T positions, and head width K.

        Returns:
            Exponents [B, H, T, M] in float32 or higher precision.
        """
        x = x.to(torch.promote_types(x.dtype, torch.float32)) * self.head_dim**-0.25
        return x @ self.features.values.to(x.dtype).t() - x.pow(2).sum(dim=-1, keepdim=True) / 2

    def map_queries(self, q: Tensor) -> Tensor:
        """Compute the random features of queries, divided by the largest feature of each query.

        Overrides :meth:`FeatureMapAttention.map_queries`. The division avoids overflow, and cancels when the
        attention weights are normalized.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.

        Returns:
            Features [B, H, T, M] in float32 or higher precision, for M random vectors.
        """
        exponents = self.exponents(q)
        return (exponents - exponents.detach().amax(dim=-1, keepdim=True)).exp()

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *extra: Tensor) -> Keys:
        """Compute the random features of keys, divided by the largest feature per sequence and head.

        Overrides :meth:`FeatureMapAttention.map_keys`. The division avoids overflow, and cancels when the
        attention weights are normalized.

        Args:
            k: keys [B, H, S, K]: batch size B, H heads, S positions, and head width K.
            padding_mask: mask [B, S], True at padding (None if there is no padding).
            extra: ignored.

        Returns:
            Features [B, H, S, M] for M random vectors, 0 at padding, with the log of the divisor [B, H, 1, 1]
            as ``log_scale``.
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
        """Compute the output of :meth:`attend` from materialized attention weights, as a reference for tests.

        Overrides :meth:`PeerAttention.attend_naively`.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            k: keys, with the same shape as ``q``.
            v: values, with the same shape as ``q``.
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output of each head, with the same shape as ``q``.
        """
        return weighted_mean(
            v, self.unnormalized_weights(self.exponents(q).exp(), self.exponents(k).exp(), padding_mask)
        )
