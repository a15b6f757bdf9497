"""Recurrent form of causal linear attention: some new positions at a time, with a state of constant size."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.causal_linear.chunk import chunk_causal_linear


def recurrent_causal_linear(
    x: Tensor, y: Tensor, z: Tensor, log_decay: Optional[Tensor] = None, state: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """Positions that follow those in ``state``: one while decoding, several for a prefix.

    Args:
        x, y: the new positions [B, H, T, M]
        z: [B, H, T, N]
        log_decay: [B, H, T], or None
        state: what the earlier positions left [B, H, M, N], None at the beginning

    Returns:
        output [B, H, T, N] in the type of ``z``, and the state after these positions, in float32 (float64 for
        float64)
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):  # the state must not lose precision from call to call
        added, decayed = y.to(dtype), state
        if log_decay is not None:
            total = log_decay.to(dtype).cumsum(dim=-1).unsqueeze(-1)
            added = added * (total[..., -1:, :] - total).exp()
            decayed = None if state is None else state * total[..., -1:, :].exp()
        after = added.transpose(-2, -1) @ z.to(dtype)
        after = after if decayed is None else after + decayed
        if x.size(-2) == 1:
            return (x.to(dtype) @ after).to(z.dtype), after
        return chunk_causal_linear(x, y, z, log_decay, state), after
