"""Naive causal linear attention: the formula as a loop over positions, as a reference for tests."""

from typing import List, Optional

import torch
from torch import Tensor


def naive_causal_linear(
    x: Tensor, y: Tensor, z: Tensor, log_decay: Optional[Tensor] = None, state: Optional[Tensor] = None
) -> Tensor:
    """Compute causal linear attention as a loop over positions, a reference for faster implementations.

    The state is S_t = exp(log_decay_t) S_{t-1} + y_t^T z_t, and the output at position t is x_t S_t.

    Args:
        x: M features of the query at each of T positions, [..., T, M].
        y: features of the keys, with the same shape as ``x``.
        z: values [..., T, N] of width N. A column of ones yields the sum of the weights.
        log_decay: log decay [..., T] at each position, at most 0. None means no decay.
        state: state [..., M, N] before the first position. None means zeros.

    Returns:
        The output [..., T, N].
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
