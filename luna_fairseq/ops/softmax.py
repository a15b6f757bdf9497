"""Softmax attention to a choice of keys: what windows, blocks and buckets come down to."""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.masked_softmax import naive_softmax_weights

# scaled_dot_product_attention came with torch 2.0; until 2.5 it gave NaN for a row whose keys are all left
# out.
_FUSED = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5)

# The most that a bias against distance takes from a logit: e^-50 is nothing beside 1, in float64 too. Without
# a limit the weights of what is far would be denormal numbers, with which a CPU reckons many times slower.
MAX_PENALTY = 50.0


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    excluded: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tensor:
    """softmax(q k^T / sqrt(K) + bias) v over the keys that are not left out.

    Args:
        q: queries [B, H, T, K], not yet scaled by K^-0.5
        k, v: keys and values [B, H, S, K]
        excluded: broadcast to [B, H, T, S], True at keys that a query leaves out; a query that leaves all out
            gets zeros
        dropout: probability with which a weight is dropped
        bias: added to the logits, broadcast to [B, H, T, S]

    Returns:
        [B, H, T, K] in the type of ``q``
    """
    if not _FUSED:
        weights = F.dropout(naive_softmax_weights(q, k, excluded, bias), dropout)
        return (weights @ v.to(weights.dtype)).to(q.dtype)
    mask = None if excluded is None else ~excluded
    if bias is not None:
        mask = bias.to(q.dtype) if mask is None else bias.to(q.dtype).masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
