"""Recurrent causal Luna attention for decoding: each call adds new positions to a constant-size state.

Shapes: batch size B, H heads of width K, T new positions, L rows of the packed sequence P.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import disable_autocast, masked_softmax
from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna
from luna_fairseq.ops.causal_luna.decay import cumulative_log_decay, decay_of_position, inverse_decayed_counts
from luna_fairseq.ops.causal_luna.inputs import CausalLunaState, TokenCounts, mask_padding
from luna_fairseq.ops.forms import Form, FormTable, otherwise

STEP_FORMS = FormTable(
    "causal attention after a state",
    Form(
        "recurrent",
        "one new position",
        "all products within a chunk: the output is read from the new sums",
        lambda q: q.size(2) == 1,
        lambda q: q.size(2) == 1,
    ),
    Form(
        "chunk",
        "several new positions (a prefix)",
        "calls: one for all positions",
        otherwise,
    ),
)


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
    counts: Optional[TokenCounts] = None,
) -> Tuple[Tensor, CausalLunaState]:
    """Compute causal Luna attention for the next T positions, given the state after all earlier positions.

    T is 1 during decoding and larger for a prefix. For one new position t with the query q_t, and the sums of
    the new state (:class:`CausalLunaState`), the output is::

        u_t = softmax(K^-0.5 (1 / t) q_t key_sum)     unpack weights [L]
        y_t = (1 / t) u_t value_sum                   output [K]

    :func:`luna_fairseq.ops.causal_luna` describes the tensors. ``state`` was returned by the previous call,
    and is None for the first. ``counts`` is the result of :meth:`TokenCounts.compute`, shared by all layers.

    Example:
        >>> import torch
        >>> x, weights = torch.randn(2, 8, 1, 64), torch.rand(2, 8, 1, 16)
        >>> output, state = recurrent_causal_luna(x, x, x, weights)
        >>> output, state = recurrent_causal_luna(x, x, x, weights, state)
        >>> state.steps
        tensor([2, 2])
    """
    # Under autocast the state would lose precision from call to call.
    with disable_autocast(q.device):
        if counts is None:
            earlier = k.new_zeros(k.size(0), dtype=torch.long) if state is None else state.steps
            if earlier is None:
                raise InputError("the state has no token counts. Pass the decoder's counts")
            counts = TokenCounts.compute(earlier, k.size(2), key_padding_mask, k.dtype)
        new_state = update_state(k, v, pack_weights, state, key_padding_mask, log_decay, counts)
        if STEP_FORMS.choose(q) == "chunk":
            if state is not None:
                state = state._replace(steps=counts.earlier)
            output = chunk_causal_luna(
                q, k, v, pack_weights, packed_padding_mask, key_padding_mask, dropout, state, log_decay
            )
            return output, new_state
        # A single position attends to exactly the positions in the new state, so no sum over positions
        # remains.
        mean = counts.mean
        if log_decay is not None:
            mean = inverse_decayed_counts(cast_if_needed(log_decay, mean.dtype), counts.divisor)
        logits = (cast_if_needed(q, mean.dtype) @ new_state.key_sum) * (mean * q.size(-1) ** -0.5)
        mask = None if packed_padding_mask is None else packed_padding_mask[:, None, None, :]
        weights = masked_softmax(logits, mask)
        if dropout:
            weights = F.dropout(weights, dropout)
        return cast_if_needed((weights * mean) @ new_state.values(), q.dtype), new_state


def update_state(
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    state: Optional[CausalLunaState],
    key_padding_mask: Optional[Tensor],
    log_decay: Optional[Tensor],
    counts: TokenCounts,
) -> CausalLunaState:
    """Add the keys and values of T new positions to the sums of ``state``, and return the new state.

    k and v are [B, H, T, K], and pack_weights [B, H, T, L]. Positions where ``key_padding_mask`` [B, T] is
    True are not added. ``counts`` includes the new positions. ``log_decay`` is [H] or None. In tied attention
    (``v is k`` in every call), the value sum of the new state is a view of its key sum.
    """
    dtype = counts.mean.dtype
    old_key_sum, old_value_sum = (None, None) if state is None else state[:2]
    pack_weights = mask_padding(cast_if_needed(pack_weights, dtype), key_padding_mask)
    if log_decay is not None:
        if k.size(2) == 1:  # the new position itself does not decay
            decay = decay_of_position(cast_if_needed(log_decay, dtype), key_padding_mask)
        else:
            total = cumulative_log_decay(log_decay, k, key_padding_mask)
            end = total[:, :, -1:]
            pack_weights = pack_weights * (end - total).to(dtype).exp()
            decay = end.to(dtype).exp()
        if state is not None:
            old_key_sum = state.key_sum * decay
            old_value_sum = None if v is k else state.values() * decay
    key_sum = matmul_add(cast_if_needed(k, dtype).transpose(-2, -1), pack_weights, old_key_sum)
    if v is k:
        value_sum = key_sum.transpose(-2, -1)
    else:
        value_sum = matmul_add(pack_weights.transpose(-2, -1), cast_if_needed(v, dtype), old_value_sum)
    return CausalLunaState(key_sum, value_sum, counts.steps)


def cast_if_needed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a tensor to a dtype, without an operator call if it already has this dtype."""
    return x if x.dtype == dtype else x.to(dtype)


def matmul_add(x: Tensor, y: Tensor, addend: Optional[Tensor]) -> Tensor:
    """Compute ``addend + x @ y`` for x [B, H, M, N] and y [B, H, N, O] with a single fused operation."""
    if addend is not None and x.size(-1) == 1:
        # The outer product of one position takes a third of the time of a matrix product.
        return torch.addcmul(addend, x, y)
    heads, x, y = x.shape[:2], x.flatten(0, 1), y.flatten(0, 1)
    result = torch.bmm(x, y) if addend is None else torch.baddbmm(addend.flatten(0, 1), x, y)
    return result.unflatten(0, heads)
