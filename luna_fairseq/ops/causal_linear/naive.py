"""Naive causal linear attention: the definition, as a loop over positions.

At each position, a state matrix decays, the outer product of key features and value is added, and the query
features are multiplied by the state. This implementation is slow. Tests of the other implementations use it
as their reference.
"""

from typing import List, Optional

import torch
from torch import Tensor


def naive_causal_linear(
    x: Tensor, y: Tensor, z: Tensor, log_decay: Optional[Tensor] = None, state: Optional[Tensor] = None
) -> Tensor:
    """Compute causal linear attention by definition, with a loop over positions.

    The state S_t decays and grows at each position: S_t = exp(log_decay_t) S_{t-1} + y_t^T z_t. The output is
    output_t = x_t S_t.

    Args:
        x: features [.., T, M] of the queries: T positions and M features.
        y: features of the keys, with the same shape as ``x``.
        z: values [.., T, N] of width N. If z has a column of ones, this column of the output is the sum of
            the weights, the divisor of a weighted mean.
        log_decay: log decay [.., T] at each position, at most 0 (default: None, no decay).
        state: state [.., M, N] before the first position (default: None, zeros).

    Returns:
        The output [.., T, N].

    Example:
        >>> import torch
        >>> x, y, z = torch.rand(2, 8, 100, 32), torch.rand(2, 8, 100, 32), torch.randn(2, 8, 100, 64)
        >>> naive_causal_linear(x, y, z).shape
        torch.Size([2, 8, 100, 64])
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
