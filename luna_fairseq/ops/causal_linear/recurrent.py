"""Recurrent causal linear attention: each call adds new positions to a constant-size state."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.attention import disable_autocast
from luna_fairseq.ops.causal_linear.chunk import chunk_causal_linear


def recurrent_causal_linear(
    x: Tensor, y: Tensor, z: Tensor, log_decay: Optional[Tensor] = None, state: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """Compute causal linear attention for the next T positions, given the state after all earlier positions.

    Args:
        x: M features of each new query, [B, H, T, M], for B examples and H heads.
        y: features of the new keys, with the same shape as ``x``.
        z: new values [B, H, T, N] of width N.
        log_decay: log decay [B, H, T] at each position, finite and at most 0. None means no decay.
        state: state [B, H, M, N] returned by the previous call. None means zeros.

    Returns:
        The output [B, H, T, N] in the dtype of ``z``, and the new state in float32 (float64 for float64
        inputs).
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    # Under autocast the state would lose precision from call to call.
    with disable_autocast(x.device):
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
