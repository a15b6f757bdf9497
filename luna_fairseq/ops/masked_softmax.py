"""Softmax with masked keys, in plain torch."""

from typing import Optional

import torch
from torch import Tensor


def naive_softmax_weights(
    q: Tensor, k: Tensor, mask: Optional[Tensor] = None, bias: Optional[Tensor] = None
) -> Tensor:
    """Compute the weights softmax(q k^T / sqrt(K) + bias) [.., T, S] by definition, in float32 or float64.

    q is [.., T, K] and k is [.., S, K]. mask and bias broadcast to [.., T, S]; the mask is True at masked
    keys. A query whose keys are all masked has weights of zero.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        logits = (q.to(dtype) * q.size(-1) ** -0.5) @ k.to(dtype).transpose(-2, -1)
        return masked_softmax(logits if bias is None else logits + bias, mask)


def masked_softmax(logits: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Compute the softmax over the last dimension, with zero weight where the mask is True.

    The weights sum to one, or are all zero if every key is masked.

    Example:
        >>> import torch
        >>> masked_softmax(torch.zeros(3), torch.tensor([False, False, True]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    if mask is None:
        return logits.softmax(dim=-1)
    # The most negative finite value, unlike -inf, avoids NaN gradients if every key is masked.
    weights = logits.masked_fill(mask, torch.finfo(logits.dtype).min).softmax(dim=-1)
    return weights.masked_fill(mask, 0.0)
