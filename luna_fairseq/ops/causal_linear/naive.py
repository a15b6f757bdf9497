"""The definition of causal linear attention: one matrix that every position decays and adds to, and then
reads. Slow."""

from typing import List, Optional

import torch
from torch import Tensor


def naive_causal_linear(
    x: Tensor, y: Tensor, z: Tensor, log_decay: Optional[Tensor] = None, state: Optional[Tensor] = None
) -> Tensor:
    """S_t = exp(log_decay_t) S_{t-1} + y_t^T z_t, output_t = x_t S_t.

    Args:
        x: what reads, as feature maps of queries [.., T, M]
        y: what is remembered by, as feature maps of keys [.., T, M]
        z: what is remembered, as values [.., T, N]; a column of ones gives the sum that a mean is divided by
        log_decay: [.., T], at most 0; None for a sum without forgetting
        state: S before the first position [.., M, N]; None for zeros

    Returns:
        [.., T, N]
    """
    if state is None:
        state = x.new_zeros(*x.shape[:-2], x.size(-1), z.size(-1))
    outputs: List[Tensor] = []
    for t in range(x.size(-2)):
        if log_decay is not None:
            state = state * log_decay[..., t, None, None].exp()
        state = state + y[..., t, :, None] * z[..., t, None, :]
        outputs.append((x[..., t, None, :] @ state).squeeze(-2))
    return torch.stack(outputs, dim=-2)
