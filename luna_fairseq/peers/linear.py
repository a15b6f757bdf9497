"""Linear attention (Katharopoulos et al., 2020, "Transformers are RNNs").

``y_i = sum_j (phi(q_i) . phi(k_j)) v_j / sum_j phi(q_i) . phi(k_j)`` with phi(x) = elu(x) + 1. Queries are
not scaled.
"""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.peers.feature_maps import FeatureMapAttention, Keys, mask_features, mean_of


def positive(x: Tensor) -> Tensor:
    """phi: elu(x) + 1, in float32 or wider."""
    return F.elu(x.to(torch.promote_types(x.dtype, torch.float32))) + 1


class LinearAttention(FeatureMapAttention):
    """As many features as a head is wide."""

    name = "linear"

    def map_queries(self, q: Tensor) -> Tensor:
        return positive(q)

    def map_keys(self, k: Tensor, padding: Optional[Tensor], *more: Tensor) -> Keys:
        return Keys(mask_features(positive(k), padding))

    def define(self, q: Tensor, k: Tensor, v: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        return mean_of(v, self.weigh(positive(q), positive(k), padding))
