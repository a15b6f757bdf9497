"""Causal Luna attention that forgets: what is n positions back counts ``exp(-rate n)`` of what it was.

Both of its sums over time are causal linear attention with a decay, chunkwise in training and one position at a
time in decoding.
"""

from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.causal_linear import chunk_causal_linear, recurrent_causal_linear
from luna_fairseq.ops.causal_luna.naive import count_steps, mask_padding
from luna_fairseq.ops.causal_luna.state import CausalLunaState
from luna_fairseq.ops.luna.naive import masked_softmax


def decayed_causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    rates: Tensor,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
) -> Tensor:
    """What :func:`naive_causal_luna` defines with ``rates``. Same arguments; returns [B, H, T, K].

    Everything is summed in float32 (float64 for float64 input).
    """
    masks = packed_padding_mask, key_padding_mask, dropout
    return _attend(_without_state, q, k, v, pack_weights, rates, None, *masks)[0]


def recurrent_decayed_causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    rates: Tensor,
    state: Optional[CausalLunaState] = None,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
) -> Tuple[Tensor, CausalLunaState]:
    """Positions that follow those in ``state``, as :func:`recurrent_causal_luna`.

    Args:
        q, k, v: the new positions [B, H, T, K]
        pack_weights: their A_pack [B, H, T, L]
        rates: how fast each head forgets, per position [H], above 0
        state: what the earlier positions left, None at the beginning; its sums are decayed ones
        packed_padding_mask: [B, L], True at rows of P that are left out
        key_padding_mask: [B, T], True at new positions that are padding: they add nothing, and no time passes
        dropout: probability with which an unpack weight is dropped

    Returns:
        output [B, H, T, K] and the state after these positions
    """
    masks = packed_padding_mask, key_padding_mask, dropout
    output, key_sum, value_sum = _attend(
        recurrent_causal_linear, q, k, v, pack_weights, rates, state, *masks
    )
    before = q.new_zeros(q.size(0), dtype=torch.long) if state is None else state.steps
    new = q.size(2) if key_padding_mask is None else (~key_padding_mask).sum(dim=1)
    return output, CausalLunaState(key_sum, value_sum, before + new)


def _attend(
    linear: Callable[..., Tuple[Tensor, Any]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    rates: Tensor,
    state: Optional[CausalLunaState],
    packed_padding_mask: Optional[Tensor],
    key_padding_mask: Optional[Tensor],
    dropout: float,
) -> Tuple[Tensor, Any, Any]:
    """Output, and the two sums that ``linear``, a form of causal linear attention, leaves."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        rates, pack_weights = rates.to(dtype), mask_padding(pack_weights.to(dtype), key_padding_mask)
        seen = None if state is None else state.steps
        counts = decayed_counts(rates, count_steps(q, key_padding_mask, seen))
        passing = log_decay(rates, q, key_padding_mask)
        key_sum, value_sum = (None, None) if state is None else state[:2]
        logits, key_sum = linear(q, k, pack_weights, passing, key_sum)
        weights = masked_softmax(logits / (counts * q.size(-1) ** 0.5), packed_padding_mask)
        weights = F.dropout(weights, dropout) / counts
        output, value_sum = linear(weights, pack_weights, v, passing, value_sum)
    return output, key_sum, value_sum


def _without_state(*inputs: Any) -> Tuple[Tensor, None]:
    return chunk_causal_linear(*inputs), None


def log_decay(rates: Tensor, q: Tensor, key_padding_mask: Optional[Tensor]) -> Tensor:
    """What passes from each position to the next, as its logarithm [B, H, T]: no time passes at padding."""
    passing = -rates[None, :, None].expand(q.size(0), -1, q.size(2))
    return passing if key_padding_mask is None else passing.masked_fill(key_padding_mask[:, None, :], 0.0)


def decayed_counts(rates: Tensor, steps: Tensor) -> Tensor:
    """``sum_{n<t} exp(-rate n)``, what the count t is where all is remembered.

    Args:
        rates: [H]
        steps: t [1 or B, 1, T, 1]

    Returns:
        [1 or B, H, T, 1]
    """
    rates = rates[None, :, None, None]
    return torch.expm1(-rates * steps) / torch.expm1(-rates)
