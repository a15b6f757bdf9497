"""Softmax attention to a choice of keys: what windows, blocks and buckets come down to."""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

# scaled_dot_product_attention came with torch 2.0; until 2.5 it gave NaN for a row whose keys are all left
# out.
_FUSED = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5)

# The most that a bias against distance takes from a logit: e^-50 is nothing beside 1, in float64 too. Without
# a limit the weights of what is far would be denormal numbers, with which a CPU reckons many times slower.
MAX_PENALTY = 50.0


def naive_softmax_weights(
    q: Tensor, k: Tensor, excluded: Optional[Tensor] = None, bias: Optional[Tensor] = None
) -> Tensor:
    """The weights of :func:`softmax_attention` [.., T, S], in float32 (float64 for float64 input)."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        logits = (q.to(dtype) * q.size(-1) ** -0.5) @ k.to(dtype).transpose(-2, -1)
        return masked_softmax(logits if bias is None else logits + bias, excluded)


def masked_softmax(logits: Tensor, excluded: Optional[Tensor]) -> Tensor:
    """Softmax over the last dimension, without what is True in ``excluded``; zeros where nothing is left."""
    if excluded is None:
        return logits.softmax(dim=-1)
    # The smallest finite number instead of -inf: a row without any key then has no NaN in its gradient
    # either.
    return (
        logits.masked_fill(excluded, torch.finfo(logits.dtype).min).softmax(dim=-1).masked_fill(excluded, 0.0)
    )


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
