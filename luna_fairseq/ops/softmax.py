"""Softmax attention to a choice of keys: what windows, blocks and buckets come down to."""

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

# scaled_dot_product_attention came with torch 2.0; until 2.5 it gave NaN for a row whose keys are all left
# out.
_FUSED = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5)

# The most that a logit is below another: e^-50 is nothing beside 1, in float64 too. Without a limit the
# weights of what is far would be numbers below 1e-38, with which a CPU reckons many times slower.
FURTHEST = 50.0


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


def partial_attention(
    q: Tensor, k: Tensor, v: Tensor, excluded: Tensor, dropout: float = 0.0, bias: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """Softmax attention to some of the keys, and what :func:`merge_parts` needs to know of it.

    Args:
        q: [.., T, K], scaled already
        k, v: [.., S, K]
        excluded: broadcast to [.., T, S], True at keys that are left out
        dropout: probability with which a weight is dropped
        bias: added to the logits, broadcast to [.., T, S]

    Returns:
        output [.., T, K], and the logarithm of the sum of exp(logit) [.., T, 1], both in float32 or wider
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        logits = q.to(dtype) @ k.to(dtype).transpose(-2, -1)
        logits = logits if bias is None else logits + bias
        logits = logits.masked_fill(excluded, torch.finfo(dtype).min)
        largest = logits.detach().amax(dim=-1, keepdim=True)
        # A CPU is ten times slower at an exponential that is 0 than at one that is 1e-22.
        each = (logits - largest).clamp(min=-FURTHEST).exp().masked_fill(excluded, 0.0)
        total = each.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(dtype).tiny)
        return F.dropout(each / total, dropout) @ v.to(dtype), largest + total.log()


def merge_parts(outputs: Tensor, totals: Tensor) -> Tensor:
    """Softmax attention to all keys, from that to disjoint parts of them: [parts, .., T, K], [parts, .., T,
    1] -> [.., T, K]."""
    return (outputs * totals.softmax(dim=0)).sum(dim=0)
