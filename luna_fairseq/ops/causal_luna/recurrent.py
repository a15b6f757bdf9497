"""Recurrent form of causal Luna attention: some new positions at a time, with a state of constant size."""

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna
from luna_fairseq.ops.causal_luna.decay import cumulative_log_decay, decayed_counts
from luna_fairseq.ops.causal_luna.inputs import mask_padding
from luna_fairseq.ops.causal_luna.state import CausalLunaState
from luna_fairseq.ops.masked_softmax import masked_softmax


def recurrent_causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    state: Optional[CausalLunaState] = None,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    log_decay: Optional[Tensor] = None,
) -> Tuple[Tensor, CausalLunaState]:
    """Positions that follow those in ``state``: one while decoding, several for a prefix.

    Args:
        q, k, v: the new positions [B, H, T, K]
        pack_weights: their A_pack [B, H, T, L]
        state: what the earlier positions left, None at the beginning
        packed_padding_mask: [B, L], True at rows of P that are left out
        key_padding_mask: [B, T], True at new positions that are padding
        dropout: probability with which an unpack weight is dropped
        log_decay: of each head per position [H], below 0; None where nothing decays

    Returns:
        output [B, H, T, K] and the state after these positions
    """
    with torch.autocast(q.device.type, enabled=False):  # the state must not lose precision from call to call
        after = add_to_state(k, v, pack_weights, state, key_padding_mask, log_decay)
        if q.size(2) > 1:
            output = chunk_causal_luna(
                q, k, v, pack_weights, packed_padding_mask, key_padding_mask, dropout, state, log_decay
            )
            return output, after
        # A single position sees exactly the new state: no sum over positions is left to do.
        steps = after.steps.clamp(min=1).to(after.key_sum.dtype)[:, None, None, None]
        if log_decay is not None:
            steps = decayed_counts(log_decay.to(steps.dtype), steps)
        logits = product(q.to(after.key_sum.dtype), after.key_sum) / (steps * q.size(-1) ** 0.5)
        excluded = None if packed_padding_mask is None else packed_padding_mask[:, None, None, :]
        weights = F.dropout(masked_softmax(logits, excluded), dropout)
        return product(weights / steps, after.value_sum).to(q.dtype), after


def add_to_state(
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    state: Optional[CausalLunaState] = None,
    key_padding_mask: Optional[Tensor] = None,
    log_decay: Optional[Tensor] = None,
) -> CausalLunaState:
    """The state after the positions of ``k``, ``v`` [B, H, T, K] and ``pack_weights`` [B, H, T, L] were
    added.

    Where ``v`` is ``k`` itself, as it then was from the first position on (tied), one sum is the transpose of
    the other and shares its memory.
    """
    dtype = torch.promote_types(k.dtype, torch.float32)
    pack_weights = mask_padding(pack_weights.to(dtype), key_padding_mask)
    if log_decay is not None:
        total = cumulative_log_decay(log_decay, k, key_padding_mask)
        end = total[:, :, -1:]
        pack_weights = pack_weights * (end - total).to(dtype).exp()
        if state is not None:
            left = end.to(dtype).exp()
            state = CausalLunaState(state.key_sum * left, state.value_sum * left, state.steps)
    key_sum = product(k.to(dtype).transpose(-2, -1), pack_weights, None if state is None else state.key_sum)
    if v is k:
        value_sum = key_sum.transpose(-2, -1)
    else:
        value_sum = product(
            pack_weights.transpose(-2, -1), v.to(dtype), None if state is None else state.value_sum
        )
    before = k.new_zeros(k.size(0), dtype=torch.long) if state is None else state.steps
    new = k.size(2) if key_padding_mask is None else (~key_padding_mask).sum(dim=1)
    return CausalLunaState(key_sum, value_sum, before + new)


def product(x: Tensor, y: Tensor, added_to: Optional[Tensor] = None) -> Tensor:
    """x [B, H, M, N] times y [B, H, N, O], added to ``added_to`` [B, H, M, O]: fewer small operations than
    ``added_to + x @ y``."""
    if added_to is not None and x.size(-1) == 1:
        return torch.addcmul(
            added_to, x, y
        )  # the outer product of one position: a third of a matrix product's time
    heads, x, y = x.shape[:2], x.flatten(0, 1), y.flatten(0, 1)
    result = torch.bmm(x, y) if added_to is None else torch.baddbmm(added_to.flatten(0, 1), x, y)
    return result.unflatten(0, heads)
