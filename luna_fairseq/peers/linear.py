"""Linear attention (Katharopoulos et al., 2020, "Transformers are RNNs").

The feature map is phi(x) = elu(x) + 1, and queries are not scaled::

    y_i = sum_j (phi(q_i) . phi(k_j)) v_j / sum_j phi(q_i) . phi(k_j)
"""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.peers.feature_maps import FeatureMapAttention, Keys, mask_features, weighted_mean


def elu_plus_one(x: Tensor) -> Tensor:
    """Compute the feature map phi(x) = elu(x) + 1.

    Args:
        x: queries or keys of any shape.

    Returns:
        Features of the same shape, in float32 or wider.
    """
    return F.elu(x.to(torch.promote_types(x.dtype, torch.float32))) + 1


class LinearAttention(FeatureMapAttention):
    """Linear attention: feature-map attention with the feature map elu(x) + 1.

    The number of features is the width of a head. The arguments and the letters of shapes are those of
    :class:`PeerAttention`.
    """

    name = "linear"

    def map_queries(self, q: Tensor) -> Tensor:
        """Compute the feature maps phi(q) of queries.

        Args:
            q: queries [B, H, T, K].

        Returns:
            Features [B, H, T, K] in float32 or wider.
        """
        return elu_plus_one(q)

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *extra: Tensor) -> Keys:
        """Compute the feature maps phi(k) of keys.

        Args:
            k: keys [B, H, S, K].
            padding_mask: mask [B, S], True at padding, or None without padding.
            extra: ignored.

        Returns:
            Features [B, H, S, K], 0 at padding, without scale and decay.
        """
        return Keys(mask_features(elu_plus_one(k), padding_mask))

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
        return weighted_mean(v, self.unnormalized_weights(elu_plus_one(q), elu_plus_one(k), padding_mask))
