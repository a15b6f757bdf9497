"""Linear attention (Katharopoulos et al., 2020, "Transformers are RNNs").

Queries q and keys k are mapped to positive features by phi(x) = elu(x) + 1, without scaling the queries. The
output for query i is the weighted mean of the values v_j::

    y_i = sum_j (phi(q_i) . phi(k_j)) v_j / sum_j phi(q_i) . phi(k_j)
"""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.peers.feature_maps import FeatureMapAttention, Keys, mask_features, weighted_mean


def elu_plus_one(x: Tensor) -> Tensor:
    """Compute elu(x) + 1, the feature map of linear attention.

    Args:
        x: queries or keys of any shape.

    Returns:
        Features of the same shape, in float32 or higher precision.
    """
    return F.elu(x.to(torch.promote_types(x.dtype, torch.float32))) + 1


class LinearAttention(FeatureMapAttention):
    """Linear attention (Katharopoulos et al., 2020), with time and memory linear in the sequence length.

    The weight of key k for query q is phi(q) . phi(k), divided by the sum over all keys. The feature map
    phi(x) = elu(x) + 1 is positive, and its dimension equals the head width. See :class:`PeerAttention` for
    the constructor arguments.
    """

    name = "linear"

    def map_queries(self, q: Tensor) -> Tensor:
        """Compute the features elu(q) + 1 of queries.

        Overrides :meth:`FeatureMapAttention.map_queries`.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.

        Returns:
            Features in float32 or higher precision, with the same shape as ``q``.
        """
        return elu_plus_one(q)

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *extra: Tensor) -> Keys:
        """Compute the features elu(k) + 1 of keys.

        Overrides :meth:`FeatureMapAttention.map_keys`.

        Args:
            k: keys [B, H, S, K]: batch size B, H heads, S positions, and head width K.
            padding_mask: mask [B, S], True at padding (None if there is no padding).
            extra: ignored.

        Returns:
            Features [B, H, S, K] in float32 or higher precision, 0 at padding. There is no scale and no
            decay.
        """
        return Keys(mask_features(elu_plus_one(k), padding_mask))

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
        return weighted_mean(v, self.unnormalized_weights(elu_plus_one(q), elu_plus_one(k), padding_mask))
