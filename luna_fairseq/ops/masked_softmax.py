"""Softmax over the keys that are not left out."""

from typing import Optional

import torch
from torch import Tensor


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
