"""Chunkwise form of causal Luna attention: equal to the naive form, in memory that grows linearly with T.

Inside a chunk, ``x_t sum_j y_j^T z_j = sum_j (x_t . y_j) z_j`` is a small masked matrix product; what came
before the chunk enters through one L x K state. The gradient is written out, so that nothing is kept between
the passes but the inputs and the softmax over the rows of P: products and states are computed again.
"""

from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from luna_fairseq.ops.causal_luna import chunk_gradient
from luna_fairseq.ops.causal_luna.chunk_gradient import Chunk, States
from luna_fairseq.ops.causal_luna.decay import (
    decay_of_chunk,
    decayed_counts,
    find_ages,
    sum_over_sentences,
)
from luna_fairseq.ops.causal_luna.naive import count_steps, mask_padding
from luna_fairseq.ops.causal_luna.state import CausalLunaState
from luna_fairseq.ops.chunks import chunk_size, put, spans


def chunk_causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    state: Optional[CausalLunaState] = None,
    rates: Optional[Tensor] = None,
) -> Tensor:
    """What :func:`naive_causal_luna` defines, going on from ``state`` when it is given. Returns [B, H, T, K].

    The arguments are those of the naive form; everything is summed in float32 (float64 for float64 input).
    Where ``v`` is ``k`` itself (tied), much is computed once for both.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    B, H = q.shape[:2]
    with torch.autocast(q.device.type, enabled=False):
        pack_weights = mask_padding(pack_weights.to(dtype), key_padding_mask)
        steps = count_steps(q, key_padding_mask, None if state is None else state.steps)
        noise = F.dropout(torch.ones_like(pack_weights), dropout).flatten(0, 1) if dropout else None
        ages = None
        if rates is not None:
            rates = rates.to(dtype)
            steps, ages = decayed_counts(rates, steps), find_ages(rates, q, key_padding_mask).flatten(0, 1)
        excluded = (
            None if packed_padding_mask is None else per_head(packed_padding_mask[:, None, None, :], B, H)
        )
        sums = []
        if state is not None:
            sums = [state.key_sum.transpose(-2, -1).flatten(0, 1), state.value_sum.flatten(0, 1)]
        tied = v is k and state is None
        output = _ChunkCausalLuna.apply(
            *(x.flatten(0, 1) for x in (q, pack_weights)),
            *(per_head(steps.to(dtype).reciprocal(), B, H), noise, excluded, ages),
            *(x.flatten(0, 1) for x in ((k,) if tied else (k, v))),
            *sums,
        )
    return output.unflatten(0, (B, H))


def per_head(x: Tensor, B: int, H: int) -> Tensor:
    """[1 or B, 1, *, *] -> [1 or B H, *, *], and [1, H, *, *] -> [H, *, *]."""
    return x[0] if x.size(0) == 1 else x.expand(B, H, -1, -1).flatten(0, 1)


class _ChunkCausalLuna(torch.autograd.Function):
    """The attention of N = B x H heads, with its gradient.

    Inputs: q [N, T, K], pack weights [N, T, L], 1 / t [1, H or N, T, 1], noise [N, T, L], excluded [1 or N,
    1, L], ages [H or N, T, 1]; k and v, or k alone when it is both, [N, T, K]; after k and v, their states
    [N, L, K] when there were earlier positions.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        q = inputs[0]
        results: List[Tensor] = []
        state = initial_states(inputs)
        for span in chunks(q, inputs[1]):
            chunk = cut(inputs, span)
            output, softmax = chunk_gradient.forward(chunk, state)
            results = put(results, (output.to(q.dtype), softmax), span, q.size(1))
            if span.stop < q.size(1):
                state = chunk_gradient.next_states(chunk, state)
        output, softmax = results
        ctx.save_for_backward(softmax, *inputs)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        softmax, *inputs = ctx.saved_tensors
        # The caller's autocast may be on here, whatever it was in the forward pass.
        with torch.autocast(softmax.device.type, enabled=False):
            gradients = descend(inputs, softmax, grad)
        of_steps, of_ages, grad_q, grad_A, *grad_keys_values = gradients
        return (grad_q, grad_A, of_steps, None, None, of_ages, *grad_keys_values)


def descend(inputs: Sequence[Any], softmax: Tensor, grad: Tensor) -> List[Optional[Tensor]]:
    """Gradients of 1 / t and ages (None where nothing is forgotten), q, A, keys and values (or both as one),
    and of the states before the first chunk if there are any."""
    q, pack_weights, inverse_steps, _, _, ages, *keys_values = inputs
    cuts = chunks(q, pack_weights)
    before = [initial_states(inputs)]
    for span in cuts[:-1]:
        before.append(chunk_gradient.next_states(cut(inputs, span), before[-1]))
    results: List[Tensor] = []
    behind: States = None
    for span in reversed(cuts):
        grad_chunk = grad[:, span].to(softmax.dtype)
        parts, behind = chunk_gradient.backward(
            cut(inputs, span), softmax[:, span], grad_chunk, before.pop(), behind
        )
        like = (q, pack_weights, *keys_values[:2])
        parts[: len(like)] = [part.to(x.dtype) for part, x in zip(parts, like)]
        results = put(results, parts, span, q.size(1))
    of_steps = of_ages = None
    if ages is not None:
        *results, reads, adds = results
        of_steps = sum_over_sentences(reads, inverse_steps.size(0)) / inverse_steps
        of_ages = sum_over_sentences((adds - reads).to(ages.dtype), ages.size(0))
    has_states = len(keys_values) > 2
    return [of_steps, of_ages, *results, *((behind or ()) if has_states else ())]


def chunks(q: Tensor, pack_weights: Tensor) -> List[slice]:
    """The positions of every chunk, for q [N, T, K] and pack weights [N, T, L]."""
    return spans(q.size(1), chunk_size(q, pack_weights.size(-1)))


def initial_states(inputs: Sequence[Any]) -> States:
    """The states before the first chunk: the inputs after k and v."""
    return inputs[8:] or None


def cut(inputs: Sequence[Any], span: slice) -> Chunk:
    """The part of the inputs at these positions, in the type that sums are in."""
    q, pack_weights, inverse_steps, noise, excluded, ages, *keys_values = inputs
    dtype = pack_weights.dtype
    return Chunk(
        q[:, span].to(dtype),
        pack_weights[:, span],
        inverse_steps[:, span],
        None if noise is None else noise[:, span],
        excluded,
        [x[:, span].to(dtype) for x in keys_values[:2]],
        None if ages is None else decay_of_chunk(ages, span, dtype),
    )
