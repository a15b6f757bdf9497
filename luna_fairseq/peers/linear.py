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
    """Compute elu(x) + 1 in float32 or higher precision."""
    return F.elu(x.to(torch.promote_types(x.dtype, torch.float32))) + 1


class LinearAttention(FeatureMapAttention):
    """Linear attention (Katharopoulos et al., 2020), with time and memory linear in the sequence length."""

    name = "linear"

    def map_queries(self, q: Tensor) -> Tensor:
        return elu_plus_one(q)

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *extra: Tensor) -> Keys:
        return Keys(mask_features(elu_plus_one(k), padding_mask))

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        return weighted_mean(v, self.unnormalized_weights(elu_plus_one(q), elu_plus_one(k), padding_mask))
