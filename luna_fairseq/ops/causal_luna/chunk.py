"""Chunkwise form of causal Luna attention: equal to the naive form, in memory that grows linearly with T.

Inside a chunk, ``x_t sum_j y_j^T z_j = sum_j (x_t . y_j) z_j`` is a small masked matrix product; what came
before the chunk enters through one L x K state. The gradient is written out, so that nothing is kept between
the passes but the inputs and the softmax over the rows of P: products and states are computed again.

Letters as in ops/README.md, and N = B x H, c positions in a chunk. In tied attention keys are values, and
what belongs to both is one tensor: one state A^T K instead of A^T K and A^T V, and one gradient.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from luna_fairseq.ops.causal_luna.decay import (
    ChunkDecay,
    cumulative_log_decay,
    decay_of_chunk,
    decayed_counts,
    scale_,
    scaled,
    sum_over_sentences,
)
from luna_fairseq.ops.causal_luna.inputs import count_steps, mask_padding
from luna_fairseq.ops.causal_luna.state import CausalLunaState
from luna_fairseq.ops.chunks import chunk_size, put, spans

# Sums over positions for the keys and the values, or for both as one (tied), each [N, L, K]; None is zero.
States = Optional[Sequence[Tensor]]


class Chunk(NamedTuple):
    """c positions of N heads, in the type that sums are in.

    Attributes:
        q: [N, c, K]
        pack_weights: A [N, c, L]
        inverse_steps: 1 / t [1 or N, c, 1]
        noise: what dropout multiplies the unpack weights with [N, c, L], or None
        excluded: rows of P that are left out [1 or N, 1, L], or None
        decay: what is left from position to position, or None where nothing decays
        keys_values: keys and values, or both as one, each [N, c, K]
    """

    q: Tensor
    pack_weights: Tensor
    inverse_steps: Tensor
    noise: Optional[Tensor]
    excluded: Optional[Tensor]
    decay: Optional[ChunkDecay]
    keys_values: Sequence[Tensor]

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        """x_t . y_j for j <= t, as much as is left of it, 0 elsewhere. x, y [N, c, *] -> [N, c, c]."""
        product = torch.bmm(x, y.transpose(1, 2))
        return product.tril_() if self.decay is None else scale_(product, self.decay.inside)

    def reading(self, x: Tensor) -> Tensor:
        """x [N, c, *] as the state before the chunk is read by."""
        return x if self.decay is None else scaled(x, self.decay.from_start)

    def adding(self, x: Tensor) -> Tensor:
        """x [N, c, *] as the state after the chunk is added to by."""
        return x if self.decay is None else scaled(x, self.decay.to_end)

    def left_of(self, states: Sequence[Tensor]) -> Sequence[Tensor]:
        """States before the chunk, or gradients of those after it, over the chunk's length."""
        return states if self.decay is None else [scaled(state, self.decay.whole) for state in states]

    def drop_and_divide(self, x: Tensor) -> Tensor:
        """x [N, c, L] after dropout, divided by t: from softmax to unpack weights, and their gradient the
        other way."""
        x = x * self.inverse_steps
        return x if self.noise is None else x.mul_(self.noise)

    def next_states(self, before: States) -> List[Tensor]:
        """The state of all positions up to the end of the chunk."""
        rows = self.adding(self.pack_weights).transpose(1, 2)
        if before is None:
            return [torch.bmm(rows, x) for x in self.keys_values]
        return [torch.baddbmm(state, rows, x) for state, x in zip(self.left_of(before), self.keys_values)]


def chunk_forward(chunk: Chunk, before: States) -> Tuple[Tensor, Tensor]:
    """Output [N, c, K] and softmax [N, c, L], from the state of all positions before the chunk."""
    q, A, keys_values = chunk.q, chunk.pack_weights, chunk.keys_values
    logits = torch.bmm(chunk.product(q, keys_values[0]), A)
    if before is not None:
        logits.baddbmm_(chunk.reading(q), before[0].transpose(1, 2))
    logits.mul_(chunk.inverse_steps * q.size(-1) ** -0.5)
    if chunk.excluded is None:
        softmax = logits.softmax(dim=-1)
    else:
        logits.masked_fill_(chunk.excluded, torch.finfo(logits.dtype).min)
        softmax = logits.softmax(dim=-1).masked_fill_(chunk.excluded, 0.0)
    weights = chunk.drop_and_divide(softmax)
    output = torch.bmm(chunk.product(weights, A), keys_values[-1])
    if before is not None:
        output.baddbmm_(chunk.reading(weights), before[-1])
    return output, softmax


def chunk_backward(
    chunk: Chunk, softmax: Tensor, grad: Tensor, before: States, behind: States
) -> Tuple[List[Tensor], States]:
    """Gradients of q, A, and keys and values (or both as one); and that of the state before the chunk if
    there is one.

    With decay the first list goes on with two sums [N, c, 1], of what reads and of what is added, each times
    its gradient: the cumulative log decay G enters as exp(G) times the one and exp(-G) times the other, 1 / t
    as a factor of the first.

    Args:
        chunk: the inputs
        softmax: as :func:`chunk_forward` gave it [N, c, L]
        grad: gradient of the output [N, c, K]
        before: state of all positions before the chunk
        behind: gradient of the state after it
    """
    q, A, keys_values = chunk.q, chunk.pack_weights, chunk.keys_values
    tied = len(keys_values) == 1
    weights = chunk.drop_and_divide(softmax)

    grad_products = chunk.product(grad, keys_values[-1])
    grad_softmax = torch.bmm(grad_products, A)
    if before is not None:
        grad_softmax.baddbmm_(chunk.reading(grad), before[-1].transpose(1, 2))
    grad_softmax = chunk.drop_and_divide(grad_softmax)
    of_weights = (grad_softmax * softmax).sum(dim=-1, keepdim=True)
    grad_logits = grad_softmax.sub_(of_weights).mul_(softmax)
    grad_logits.mul_(chunk.inverse_steps * q.size(-1) ** -0.5)

    to_keys, to_values = chunk.product(grad_logits, A), chunk.product(weights, A)
    grad_q = torch.bmm(to_keys, keys_values[0])
    grad_A = torch.bmm(grad_products.transpose(1, 2), weights)
    grad_A.baddbmm_(chunk.product(q, keys_values[0]).transpose(1, 2), grad_logits)
    of_inputs = product_sums(to_keys, q, to_values, grad, tied)
    if behind is not None:
        rows = chunk.adding(A)
        for x, grad_x, state in zip(keys_values, of_inputs, behind):
            grad_x.baddbmm_(rows, state)
            grad_A.baddbmm_(chunk.adding(x), state.transpose(1, 2))
    of_states: States = None  # where nothing came earlier, nothing of it was read
    if before is not None:
        reading = chunk.reading(grad_logits)
        grad_q.baddbmm_(reading, before[0])
        later = None if behind is None else chunk.left_of(behind)
        of_states = product_sums(reading, q, chunk.reading(weights), grad, tied, later)
    parts = [grad_q, grad_A, *of_inputs]
    if chunk.decay is not None:
        added = [(x * grad_x).sum(dim=-1, keepdim=True) for x, grad_x in zip(keys_values, of_inputs)]
        parts += [of_weights + (q * grad_q).sum(dim=-1, keepdim=True), sum(added[1:], added[0])]
    return parts, of_states


def product_sums(
    of_keys: Tensor, q: Tensor, of_values: Tensor, grad: Tensor, tied: bool, start: States = None
) -> List[Tensor]:
    """of_keys^T q and of_values^T grad [N, *, K], or the sum of both (tied), added to ``start``."""
    first, second = (of_keys.transpose(1, 2), q), (of_values.transpose(1, 2), grad)
    keys = torch.bmm(*first) if start is None else torch.baddbmm(start[0], *first)
    if tied:
        return [keys.baddbmm_(*second)]
    return [keys, torch.bmm(*second) if start is None else torch.baddbmm(start[1], *second)]


def chunk_causal_luna(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack_weights: Tensor,
    packed_padding_mask: Optional[Tensor] = None,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    state: Optional[CausalLunaState] = None,
    log_decay: Optional[Tensor] = None,
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
        total = None
        if log_decay is not None:
            log_decay = log_decay.to(dtype)
            steps = decayed_counts(log_decay, steps)
            total = cumulative_log_decay(log_decay, q, key_padding_mask).flatten(0, 1)
        excluded = None
        if packed_padding_mask is not None:
            excluded = per_head(packed_padding_mask[:, None, None, :], B, H)
        keys_values, sums = [k, v], []
        if state is not None:
            sums = [state.key_sum.transpose(-2, -1).flatten(0, 1), state.value_sum.flatten(0, 1)]
        elif v is k:
            keys_values = [k]
        output = _ChunkCausalLuna.apply(
            *(x.flatten(0, 1) for x in (q, pack_weights)),
            *(per_head(steps.to(dtype).reciprocal(), B, H), noise, excluded, total),
            *(x.flatten(0, 1) for x in keys_values),
            *sums,
        )
    return output.unflatten(0, (B, H))


def per_head(x: Tensor, B: int, H: int) -> Tensor:
    """[1, 1, *, *] -> [1, *, *], and [1 or B, 1 or H, *, *] -> [B H, *, *]."""
    return x[0] if x.shape[:2] == (1, 1) else x.expand(B, H, -1, -1).flatten(0, 1)


class _ChunkCausalLuna(Function):
    """From the attributes of :class:`Chunk` for T positions, with the cumulative log decay [H or N, T, 1] in
    the place of the last but one, and after keys and values their states [N, L, K] when there were earlier
    positions: [N, T, K]."""

    @staticmethod
    def forward(ctx: Function, *inputs: Tensor) -> Tensor:
        q = inputs[0]
        results: List[Tensor] = []
        state: States = inputs[8:] or None  # after k and v
        for span in spans(q.size(1), chunk_size(q, inputs[1].size(-1))):
            chunk = cut(inputs, span)
            output, softmax = chunk_forward(chunk, state)
            results = put(results, (output.to(q.dtype), softmax), span, q.size(1))
            if span.stop < q.size(1):
                state = chunk.next_states(state)
        output, softmax = results
        ctx.save_for_backward(softmax, *inputs)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Function, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        softmax, *inputs = ctx.saved_tensors
        q, pack_weights, inverse_steps, _, _, total, *keys_values = inputs
        like, state = (q, pack_weights, *keys_values[:2]), keys_values[2:]
        results: List[Tensor] = []
        before: List[States] = [state or None]
        behind: States = None
        # The caller's autocast may be on here, whatever it was in the forward pass.
        with torch.autocast(q.device.type, enabled=False):
            chunks = spans(q.size(1), chunk_size(q, pack_weights.size(-1)))
            for span in chunks[:-1]:
                before.append(cut(inputs, span).next_states(before[-1]))
            for span in reversed(chunks):
                of_output = grad[:, span].to(softmax.dtype)
                parts, behind = chunk_backward(
                    cut(inputs, span), softmax[:, span], of_output, before.pop(), behind
                )
                parts[: len(like)] = [part.to(x.dtype) for part, x in zip(parts, like)]
                results = put(results, parts, span, q.size(1))
            of_steps = of_total = None
            if total is not None:
                *results, reads, adds = results
                of_steps = reads / inverse_steps
                of_total = sum_over_sentences((reads - adds).to(total.dtype), total.size(0))
        of_state = (behind or ()) if state else ()
        return (*results[:2], of_steps, None, None, of_total, *results[2:], *of_state)


def cut(inputs: Sequence[Tensor], span: slice) -> Chunk:
    """The part of the inputs at these positions."""
    q, pack_weights, inverse_steps, noise, excluded, total, *keys_values = inputs
    dtype = pack_weights.dtype
    parts = []
    for x in keys_values[:2]:  # in a comprehension torch.compile would take the length for a constant
        parts.append(x[:, span].to(dtype))
    return Chunk(
        q[:, span].to(dtype),
        pack_weights[:, span],
        inverse_steps[:, span],
        None if noise is None else noise[:, span],
        excluded,
        None if total is None else decay_of_chunk(total, span, dtype),
        parts,
    )
