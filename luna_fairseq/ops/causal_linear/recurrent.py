"""Recurrent causal linear attention: each call adds new positions to a constant-size state."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.causal_linear.chunk import chunk_causal_linear


def recurrent_causal_linear(
    x: Tensor, y: Tensor, z: Tensor, log_decay: Optional[Tensor] = None, state: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """Compute causal linear attention for the next T positions, given the state after all earlier positions.

    T is 1 during decoding and larger for a prefix. At each position t, the state S decays and grows, and is
    then multiplied by the query features: S_t = exp(log_decay_t) S_{t-1} + y_t^T z_t, and output_t = x_t S_t.

    Args:
        x: features [B, H, T, M] of the new queries: batch size B, H heads, T positions, and M features.
        y: features of the new keys, with the same shape as ``x``.
        z: new values [B, H, T, N] of width N.
        log_decay: log decay [B, H, T] at each position, at most 0 (default: None, no decay).
        state: state [B, H, M, N] returned by the previous call (default: None, no earlier positions).

    Returns:
        - output [B, H, T, N] in the dtype of ``z``.
        - new state [B, H, M, N] in float32 (float64 for float64 inputs).

    Example:
        >>> import torch
        >>> x, y, z = torch.rand(2, 8, 1, 32), torch.rand(2, 8, 1, 32), torch.randn(2, 8, 1, 64)
        >>> output, state = recurrent_causal_linear(x, y, z)
        >>> output, state = recurrent_causal_linear(x, y, z, state=state)
        >>> output.shape, state.shape
        (torch.Size([2, 8, 1, 64]), torch.Size([2, 8, 32, 64]))
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    # Under autocast the state would lose precision from call to call.
    with torch.autocast(x.device.type, enabled=False):
        decayed_y, decayed_state = y.to(dtype), state
        if log_decay is not None:
            total = log_decay.to(dtype).cumsum(dim=-1).unsqueeze(-1)
            decayed_y = decayed_y * (total[..., -1:, :] - total).exp()
            decayed_state = None if state is None else state * total[..., -1:, :].exp()
        new_state = decayed_y.transpose(-2, -1) @ z.to(dtype)
        if decayed_state is not None:
            new_state = new_state + decayed_state
        if x.size(-2) == 1:
            return (x.to(dtype) @ new_state).to(z.dtype), new_state
        return chunk_causal_linear(x, y, z, log_decay, state), new_state
