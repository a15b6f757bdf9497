"""Chunkwise form of causal linear attention: equal to the naive form, in memory that grows linearly with T.

Inside a chunk, ``x_t S_t`` is a masked matrix product, ``sum_j D_tj (x_t . y_j) z_j`` with the decay D_tj
from j to t; what came before the chunk enters through one M x N state. The gradient is written out, so that
nothing is kept between the passes but the inputs: products and states are computed again.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from luna_fairseq.ops.chunks import chunk_size, put, spans


def chunk_causal_linear(
    x: Tensor, y: Tensor, z: Tensor, log_decay: Optional[Tensor] = None, state: Optional[Tensor] = None
) -> Tensor:
    """What :func:`naive_causal_linear` defines. Same arguments, with two leading dimensions; returns [B, H,
    T, N].

    Everything is summed in float32 (float64 for float64 input), under autocast too; the output has the type
    of ``z``.
    """
    with torch.autocast(x.device.type, enabled=False):
        flat = [part if part is None else part.flatten(0, 1) for part in (x, y, z, log_decay, state)]
        return _ChunkCausalLinear.apply(*flat).unflatten(0, x.shape[:2])


class Chunk(NamedTuple):
    """A chunk's part of the inputs, in the type that sums are in; n = B x H, c positions.

    Attributes:
        x: [n, c, M]
        y: [n, c, M]
        z: [n, c, N]
        weights: D, the decay from every position to every later one [n, c, c] and 0 elsewhere; None without
            decay
        from_start: the decay from before the chunk to every position [n, c, 1], or None
        to_end: the decay from every position to the chunk's end [n, c, 1], or None
    """

    x: Tensor
    y: Tensor
    z: Tensor
    weights: Optional[Tensor]
    from_start: Optional[Tensor]
    to_end: Optional[Tensor]

    def reading(self) -> Tensor:
        """x as the state before the chunk is read by [n, c, M]."""
        return self.x if self.from_start is None else self.x * self.from_start

    def adding(self) -> Tensor:
        """y as the state after the chunk is added to by [n, c, M]."""
        return self.y if self.to_end is None else self.y * self.to_end

    def mask(self, product: Tensor) -> Tensor:
        """D times a product [n, c, c] of the chunk's positions, in place."""
        return product.tril_() if self.weights is None else product.mul_(self.weights)

    def decay(self, state: Tensor) -> Tensor:
        """A state [n, M, N], or the gradient of one, after all of the chunk's decay."""
        return state if self.from_start is None else state * self.from_start[:, -1:]


class _ChunkCausalLinear(Function):
    """x, y [n, T, M], z [n, T, N], log_decay [n, T] or None, state [n, M, N] or None -> [n, T, N]."""

    @staticmethod
    def forward(ctx: Function, *inputs: Tensor) -> Tensor:
        x, _, z, _, state = inputs
        ctx.save_for_backward(*inputs)
        state = initial_state(x, z, state)
        results: List[Tensor] = []
        for span in chunks(x, z):
            chunk = cut(inputs, span)
            output = torch.bmm(chunk.mask(torch.bmm(chunk.x, chunk.y.transpose(1, 2))), chunk.z)
            output.baddbmm_(chunk.reading(), state)
            results = put(results, (output.to(z.dtype),), span, x.size(1))
            state = next_state(chunk, state)
        return results[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Function, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        inputs = ctx.saved_tensors
        # The caller's autocast may be on here, whatever it was in the forward pass.
        with torch.autocast(grad.device.type, enabled=False):
            return all_gradients(inputs, grad)


def all_gradients(inputs: Sequence[Tensor], grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    """Gradients of all inputs, from the last chunk to the first."""
    x, y, z, log_decay, state = inputs
    cuts = chunks(x, z)
    before = [initial_state(x, z, state)]
    for span in cuts[:-1]:
        before.append(next_state(cut(inputs, span), before[-1]))
    after = behind = torch.zeros_like(before[0])
    results: List[Tensor] = []
    for span in reversed(cuts):
        chunk, after_chunk, behind_chunk = cut(inputs, span), after, behind
        after = before.pop()
        parts, behind = chunk_gradients(chunk, grad[:, span].to(behind.dtype), after, behind)
        if log_decay is not None:
            # With G_t the sum of the log decays up to t, the output depends on exp(G_t) x_t and exp(-G_t) y_t
            # alone; what is after the chunk, on the state there. Summed over all, rounding would add up.
            own = (chunk.x * parts[0] - chunk.y * parts[1]).sum(dim=-1, keepdim=True)
            later = (after_chunk * behind_chunk).sum(dim=(1, 2), keepdim=True)
            parts.append(own.flip(1).cumsum(dim=1).flip(1) + later)
        results = put(results, parts, span, x.size(1))
    gradients = [result.to(part.dtype) for result, part in zip(results, (x, y, z))]
    if log_decay is None:
        return (*gradients, None, behind if state is not None else None)
    of_decay = results[3].squeeze(-1).to(log_decay.dtype)
    return (*gradients, of_decay, behind if state is not None else None)


def chunk_gradients(
    chunk: Chunk, grad: Tensor, before: Tensor, behind: Tensor
) -> Tuple[List[Tensor], Tensor]:
    """Gradients of the chunk's x, y, z and of the state before it.

    Args:
        chunk: the inputs
        grad: gradient of the output [n, c, N]
        before: the state before the chunk [n, M, N]
        behind: gradient of the state after it
    """
    products = chunk.mask(torch.bmm(chunk.x, chunk.y.transpose(1, 2)))
    grad_products = chunk.mask(torch.bmm(grad, chunk.z.transpose(1, 2)))
    from_state, to_state = torch.bmm(grad, before.transpose(1, 2)), torch.bmm(chunk.z, behind.transpose(1, 2))
    if chunk.from_start is not None:
        from_state, to_state = from_state * chunk.from_start, to_state * chunk.to_end
    grad_x = from_state.baddbmm_(grad_products, chunk.y)
    grad_y = to_state.baddbmm_(grad_products.transpose(1, 2), chunk.x)
    grad_z = torch.bmm(products.transpose(1, 2), grad).baddbmm_(chunk.adding(), behind)
    grad_state = torch.baddbmm(chunk.decay(behind), chunk.reading().transpose(1, 2), grad)
    return [grad_x, grad_y, grad_z], grad_state


def next_state(chunk: Chunk, state: Tensor) -> Tensor:
    """The state after the chunk [n, M, N]."""
    return torch.baddbmm(chunk.decay(state), chunk.adding().transpose(1, 2), chunk.z)


def initial_state(x: Tensor, z: Tensor, state: Optional[Tensor]) -> Tensor:
    """The state before the first chunk [n, M, N], in the type that sums are in."""
    if state is None:
        state = x.new_zeros(x.size(0), x.size(2), z.size(2))
    return state.to(torch.promote_types(x.dtype, torch.float32))


def chunks(x: Tensor, z: Tensor) -> List[slice]:
    """The positions of every chunk, for x [n, T, M] and z [n, T, N]."""
    return spans(x.size(1), chunk_size(x, z.size(2)))


def cut(inputs: Sequence[Tensor], span: slice) -> Chunk:
    """The part of the inputs at these positions."""
    x, y, z, log_decay, _ = inputs
    dtype = torch.promote_types(x.dtype, torch.float32)
    x, y, z = (part[:, span].to(dtype) for part in (x, y, z))
    if log_decay is None:
        return Chunk(x, y, z, None, None, None)
    total = log_decay[:, span].to(dtype).cumsum(dim=1).unsqueeze(-1)
    weights = (total - total.transpose(1, 2)).exp_().tril_()  # from a later position back it may be infinite
    return Chunk(x, y, z, weights, total.exp(), (total[:, -1:] - total).exp_())
