"""Softmax attention with an arbitrary mask. Window, block and bucket attention build on it."""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.masked_softmax import naive_softmax_weights

# Before torch 2.5, scaled_dot_product_attention returned NaN for a query whose keys are all masked. Before
# torch 2.0 it did not exist.
_FUSED = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5)

# Largest penalty for distance that a bias subtracts from a logit. A weight of e^-50 is negligible even in
# float64. Without a limit, the weights of distant keys would be denormal numbers, which slow down a CPU many
# times.
MAX_PENALTY = 50.0


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tensor:
    """Compute softmax attention with an arbitrary mask: softmax(q k^T / sqrt(K) + bias) v.

    q [B, H, T, K] is not yet scaled. k and v are [B, H, S, K]; mask and bias broadcast to [B, H, T, S], and
    the mask is True at masked keys. A query whose keys are all masked has an output of zeros. Dropout of the
    weights is applied in evaluation too.

    Example:
        >>> import torch
        >>> x, later = torch.randn(2, 8, 10, 64), torch.ones(10, 10, dtype=torch.bool).triu(1)
        >>> softmax_attention(x, x, x, later).shape  # causal attention
        torch.Size([2, 8, 10, 64])
    """
    if not _FUSED:
        weights = F.dropout(naive_softmax_weights(q, k, mask, bias), dropout)
        return (weights @ v.to(weights.dtype)).to(q.dtype)
    attn_mask = None if mask is None else ~mask
    if bias is not None:
        bias = bias.to(q.dtype)
        attn_mask = bias if mask is None else bias.masked_fill(mask, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout)
