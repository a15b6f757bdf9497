"""Chunkwise causal linear attention, with memory linear in the sequence length.

Within a chunk, a sum over positions is a masked matrix product. Earlier chunks are accumulated in a state,
the decayed sum of the outer products ``y_j^T z_j`` of key features and values. The backward pass is written
by hand, and needs only the inputs.

Shapes: n heads in the batch (batch size times heads), T positions, c positions in a chunk, M features x of a
query and y of a key, values z of width N, states [n, M, N]. ``naive.py`` has the formula.
"""

from typing import Any, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Function

from luna_fairseq.ops.attention import disable_autocast
from luna_fairseq.ops.chunks import chunk_size, chunk_slices, write_chunk
from luna_fairseq.ops.second_derivatives import refuse_second_derivatives


def chunk_causal_linear(
    x: Tensor, y: Tensor, z: Tensor, log_decay: Optional[Tensor] = None, state: Optional[Tensor] = None
) -> Tensor:
    """Compute causal linear attention over a whole sequence, chunk by chunk, in linear memory.

    The query and key features x and y are [B, H, T, M], the values z and the result [B, H, T, N], for B
    examples and H heads. ``log_decay`` [B, H, T] is the log decay at each position, finite and at most 0, or
    None for no decay. ``state`` [B, H, M, N] is the decayed sum of ``y_j^T z_j`` over earlier positions, or
    None for zeros.
    """
    with disable_autocast(x.device):
        flat = [None if part is None else part.flatten(0, 1) for part in (x, y, z, log_decay, state)]
        return _ChunkCausalLinear.apply(*flat).unflatten(0, x.shape[:2])


class Inputs(NamedTuple):
    """Inputs of causal linear attention over a whole sequence.

    Shapes: n heads in the batch (batch size times heads), T positions, M features, values of width N.

    Attributes:
        x: query features [n, T, M].
        y: key features [n, T, M].
        z: values [n, T, N].
        log_decay: log decay [n, T] at each position, finite and at most 0. None without decay.
        state: decayed sum [n, M, N] of ``y_j^T z_j`` over earlier positions j. None if there are no earlier
            positions.
    """

    x: Tensor
    y: Tensor
    z: Tensor
    log_decay: Optional[Tensor]
    state: Optional[Tensor]

    def dtype(self) -> torch.dtype:
        """Return the dtype in which sums are accumulated, float32 or float64."""
        return torch.promote_types(self.x.dtype, torch.float32)

    def initial_state(self) -> Tensor:
        """Return the state [n, M, N] before the first chunk, zeros if there are no earlier positions."""
        state = self.state
        if state is None:
            state = self.x.new_zeros(self.x.size(0), self.x.size(2), self.z.size(2))
        return state.to(self.dtype())

    def spans(self) -> List[slice]:
        """Return the slice of positions of each chunk, in order."""
        return chunk_slices(self.x.size(1), chunk_size(self.x, self.z.size(2)))


class Chunk(NamedTuple):
    """Inputs of one chunk of c positions, and the decay factors between its positions, in float32 or float64.

    Shapes: n heads in the batch, c positions, M features of queries and keys, values of width N. All decay
    factors are None in attention without decay.

    Attributes:
        x: query features [n, c, M].
        y: key features [n, c, M].
        z: values [n, c, N].
        decay: decay factors from position j to position t, [n, c, c], indexed by t and j. 0 for j > t.
        decay_from_start: decay factors from the end of the previous chunk to each position, [n, c, 1].
        decay_to_end: decay factors from each position to the end of the chunk, [n, c, 1].
    """

    x: Tensor
    y: Tensor
    z: Tensor
    decay: Optional[Tensor]
    decay_from_start: Optional[Tensor]
    decay_to_end: Optional[Tensor]

    def decayed_x(self) -> Tensor:
        """Return the query features [n, c, M], multiplied by the decay since the start of the chunk."""
        return self.x if self.decay_from_start is None else self.x * self.decay_from_start

    def decayed_y(self) -> Tensor:
        """Return the key features [n, c, M], multiplied by the decay to the end of the chunk."""
        return self.y if self.decay_to_end is None else self.y * self.decay_to_end

    def mask_(self, product: Tensor) -> Tensor:
        """Apply decay and the causal mask to dot products [n, c, c] in place. They become 0 for j > t."""
        return product.tril_() if self.decay is None else product.mul_(self.decay)

    def decay_state(self, state: Tensor) -> Tensor:
        """Multiply a state [n, M, N], or its gradient, by the decay over the chunk, if there is decay."""
        return state if self.decay_from_start is None else state * self.decay_from_start[:, -1:]

    def next_state(self, state: Tensor) -> Tensor:
        """Return the state [n, M, N] after the chunk: the decayed ``state`` plus ``decayed_y^T z``."""
        return torch.baddbmm(self.decay_state(state), self.decayed_y().transpose(1, 2), self.z)


class ChunkOutput(NamedTuple):
    """Output [n, c, N] of causal linear attention at c positions, for n heads and values of width N."""

    output: Tensor


class ChunkGradients(NamedTuple):
    """Gradients of the inputs of one chunk: n heads in the batch, c positions, M features, values of width N.

    Attributes:
        x: gradient [n, c, M] of the query features.
        y: gradient [n, c, M] of the key features.
        z: gradient [n, c, N] of the values.
        log_decay: gradient [n, c, 1] of the log decay. None without decay.
    """

    x: Tensor
    y: Tensor
    z: Tensor
    log_decay: Optional[Tensor]


class _ChunkCausalLinear(Function):
    """Autograd function of chunkwise causal linear attention, with output [n, T, N] for values of width N."""

    @staticmethod
    def forward(ctx: Function, *tensors: Optional[Tensor]) -> Tensor:
        ctx.save_for_backward(*tensors)
        inputs = Inputs(*tensors)
        state = inputs.initial_state()
        results: Any = None
        for span in inputs.spans():
            chunk = take_chunk(inputs, span)
            output = torch.bmm(chunk.mask_(torch.bmm(chunk.x, chunk.y.transpose(1, 2))), chunk.z)
            output.baddbmm_(chunk.decayed_x(), state)
            results = write_chunk(results, ChunkOutput(output.to(inputs.z.dtype)), span, inputs.x.size(1))
            state = chunk.next_state(state)
        return results.output

    @staticmethod
    def backward(ctx: Function, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        refuse_second_derivatives("Causal linear attention", "Use naive_causal_linear")
        inputs = Inputs(*ctx.saved_tensors)
        # The backward pass may run under the caller's autocast, even if the forward pass did not.
        with disable_autocast(grad.device):
            return all_gradients(inputs, grad)


def all_gradients(inputs: Inputs, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    """Compute the gradients with respect to all tensors in ``inputs``, in the order of its fields.

    If a field is None, so is its gradient. ``grad`` [n, T, N] is the gradient of the output. The chunks are
    processed from the last to the first.
    """
    slices = inputs.spans()
    states = [inputs.initial_state()]  # the state before each chunk
    for span in slices[:-1]:
        states.append(take_chunk(inputs, span).next_state(states[-1]))
    state_after = grad_after = torch.zeros_like(states[0])
    total: Any = None
    for span in reversed(slices):
        chunk, state_before = take_chunk(inputs, span), states.pop()
        gradients, grad_before = chunk_gradients(
            chunk, grad[:, span].to(grad_after.dtype), state_before, state_after, grad_after
        )
        total = write_chunk(total, gradients, span, inputs.x.size(1))
        state_after, grad_after = state_before, grad_before
    results = {name: getattr(total, name).to(getattr(inputs, name).dtype) for name in ("x", "y", "z")}
    if inputs.log_decay is not None:
        results["log_decay"] = total.log_decay.squeeze(-1).to(inputs.log_decay.dtype)
    if inputs.state is not None:
        results["state"] = grad_after
    return tuple(results.get(name) for name in Inputs._fields)


def chunk_gradients(
    chunk: Chunk, grad: Tensor, state_before: Tensor, state_after: Tensor, grad_after: Tensor
) -> Tuple[ChunkGradients, Tensor]:
    """Compute the gradients of the inputs of one chunk, and of the state [n, M, N] before the chunk.

    ``grad`` [n, c, N] is the gradient of the chunk's output, and ``grad_after`` the gradient of the state
    after the chunk. ``state_before`` and ``state_after`` are the states at both ends of the chunk.
    ``state_after`` is used only with decay.
    """
    products = chunk.mask_(torch.bmm(chunk.x, chunk.y.transpose(1, 2)))
    grad_products = chunk.mask_(torch.bmm(grad, chunk.z.transpose(1, 2)))
    grad_x = torch.bmm(grad, state_before.transpose(1, 2))
    grad_y = torch.bmm(chunk.z, grad_after.transpose(1, 2))
    if chunk.decay is not None:
        grad_x, grad_y = grad_x * chunk.decay_from_start, grad_y * chunk.decay_to_end
    grad_x.baddbmm_(grad_products, chunk.y)
    grad_y.baddbmm_(grad_products.transpose(1, 2), chunk.x)
    grad_z = torch.bmm(products.transpose(1, 2), grad).baddbmm_(chunk.decayed_y(), grad_after)
    grad_before = torch.baddbmm(chunk.decay_state(grad_after), chunk.decayed_x().transpose(1, 2), grad)
    grad_log_decay = None
    if chunk.decay is not None:
        # Let G_t be the sum of log_decay up to t. The chunk's outputs depend on log_decay only through
        # exp(G_t) x_t and exp(-G_t) y_t. Later outputs depend on log_decay through the state after the chunk,
        # too. One sum over the whole sequence instead would accumulate rounding errors.
        within = (chunk.x * grad_x - chunk.y * grad_y).sum(dim=-1, keepdim=True)
        later = (state_after * grad_after).sum(dim=(1, 2), keepdim=True)
        grad_log_decay = within.flip(1).cumsum(dim=1).flip(1) + later
    return ChunkGradients(grad_x, grad_y, grad_z, grad_log_decay), grad_before


def take_chunk(inputs: Inputs, span: slice) -> Chunk:
    """Select the positions ``span`` of the inputs, and compute the decay factors between them."""
    dtype = inputs.dtype()
    x, y, z = inputs.x[:, span].to(dtype), inputs.y[:, span].to(dtype), inputs.z[:, span].to(dtype)
    if inputs.log_decay is None:
        return Chunk(x, y, z, None, None, None)
    total = inputs.log_decay[:, span].to(dtype).cumsum(dim=1).unsqueeze(-1)
    # The exponential from a later position to an earlier position may be infinite; tril_ removes it.
    decay = (total - total.transpose(1, 2)).exp_().tril_()
    return Chunk(x, y, z, decay, total.exp(), (total[:, -1:] - total).exp_())
