"""Recurrent form of causal Luna attention: some new positions at a time, with a state of constant size."""

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna
from luna_fairseq.ops.causal_luna.naive import mask_padding, unpack_weights
from luna_fairseq.ops.causal_luna.state import CausalLunaState


def recurrent_causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    state: Optional[CausalLunaState] = None,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
) -> Tuple[Tensor, CausalLunaState]:
    """Positions that follow those in ``state``: one while decoding, several for a prefix.

    Args:
        q, k, v: the new positions [B, H, T, K]
        pack_weights: their A_pack [B, H, T, L]
        state: what the earlier positions left, None at the beginning
        packed_padding_mask: [B, L], True at rows of P that are left out
        key_padding_mask: [B, T], True at new positions that are padding
        dropout: probability with which an unpack weight is dropped

    Returns:
        output [B, H, T, K] and the state after these positions
    """
    with torch.autocast(q.device.type, enabled=False):  # the state must not lose precision from call to call
        after = add_to_state(k, v, pack_weights, state, key_padding_mask)
        if q.size(2) > 1:
            output = chunk_causal_luna(
                q, k, v, pack_weights, packed_padding_mask, key_padding_mask, dropout, state
            )
            return output, after
        # A single position sees exactly the new state: no sum over positions is left to do.
        steps = after.steps.clamp(min=1)[:, None, None, None]
        scaled = q.to(after.key_sum.dtype) * q.size(-1) ** -0.5
        weights = F.dropout(unpack_weights(scaled @ after.key_sum / steps, packed_padding_mask), dropout)
        return (weights @ after.value_sum / steps).to(q.dtype), after


def add_to_state(
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    state: Optional[CausalLunaState] = None,
    key_padding_mask: Optional[Tensor] = None,
) -> CausalLunaState:
    """The state after the positions of ``k``, ``v`` [B, H, T, K] and ``pack_weights`` [B, H, T, L] were added."""
    dtype = torch.promote_types(k.dtype, torch.float32)
    pack_weights = mask_padding(pack_weights.to(dtype), key_padding_mask)
    key_sum = k.to(dtype).transpose(-2, -1) @ pack_weights
    value_sum = pack_weights.transpose(-2, -1) @ v.to(dtype)
    if key_padding_mask is None:
        steps = torch.full((k.size(0),), k.size(2), dtype=torch.long, device=k.device)
    else:
        steps = (~key_padding_mask).sum(dim=1)
    if state is None:
        return CausalLunaState(key_sum, value_sum, steps)
    return CausalLunaState(state.key_sum + key_sum, state.value_sum + value_sum, state.steps + steps)
