"""Chunkwise form of causal linear attention, in memory that grows linearly with the sequence length.

The result equals that of the naive form up to rounding. Within a chunk, the output is a masked matrix
product, ``sum_j D_tj (x_t . y_j) z_j`` with the decay D_tj from position j to position t. Earlier chunks
enter through one M x N state.

The gradient is written by hand. Only the inputs are kept between the passes, and the backward pass computes
products and states again.
"""

from typing import List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from luna_fairseq.ops.chunks import chunk_size, spans, write_chunk


def chunk_causal_linear(
    x: Tensor, y: Tensor, z: Tensor, log_decay: Optional[Tensor] = None, state: Optional[Tensor] = None
) -> Tensor:
    """Compute causal linear attention chunk by chunk, in memory linear in the sequence length.

    All sums are accumulated in float32 (float64 for float64 inputs), under autocast too.

    B is the batch size, H the number of heads, T the sequence length, M the width of the features, and N the
    width of the values.

    Args:
        x: features [B, H, T, M] of the queries.
        y: features [B, H, T, M] of the keys.
        z: values [B, H, T, N].
        log_decay: logarithm [B, H, T] of the decay at each position, at most 0 (default: None, no decay).
        state: sum [B, H, M, N] over earlier positions (default: None, no earlier positions).

    Returns:
        The output [B, H, T, N] in the dtype of ``z``.

    Example:
        >>> import torch
        >>> x, y, z = torch.rand(2, 8, 100, 32), torch.rand(2, 8, 100, 32), torch.randn(2, 8, 100, 64)
        >>> chunk_causal_linear(x, y, z).shape
        torch.Size([2, 8, 100, 64])
    """
    with torch.autocast(x.device.type, enabled=False):
        flat = [None if part is None else part.flatten(0, 1) for part in (x, y, z, log_decay, state)]
        return _ChunkCausalLinear.apply(*flat).unflatten(0, x.shape[:2])


class Inputs(NamedTuple):
    """Inputs of causal linear attention for the whole sequence of T positions.

    In the shapes, n is batch size times number of heads, M the width of the features, and N the width of the
    values.

    Attributes:
        x: features [n, T, M] of the queries.
        y: features [n, T, M] of the keys.
        z: values [n, T, N].
        log_decay: logarithm [n, T] of the decay at each position, or None without decay.
        state: sum [n, M, N] over earlier positions, or None.
    """

    x: Tensor
    y: Tensor
    z: Tensor
    log_decay: Optional[Tensor]
    state: Optional[Tensor]

    def dtype(self) -> torch.dtype:
        """Return the dtype in which sums are accumulated."""
        return torch.promote_types(self.x.dtype, torch.float32)

    def initial_state(self) -> Tensor:
        """Return the state before the first chunk, which is zero if there are no earlier positions.

        Returns:
            The state [n, M, N] in the dtype in which sums are accumulated.
        """
        state = self.state
        if state is None:
            state = self.x.new_zeros(self.x.size(0), self.x.size(2), self.z.size(2))
        return state.to(self.dtype())

    def spans(self) -> List[slice]:
        """Return the positions of every chunk as slices."""
        return spans(self.x.size(1), chunk_size(self.x, self.z.size(2)))


class Chunk(NamedTuple):
    """Inputs of the c positions of one chunk, in the dtype in which sums are accumulated.

    In the shapes, n is batch size times number of heads, M the width of the features, and N the width of the
    values.

    Attributes:
        x: features [n, c, M] of the queries.
        y: features [n, c, M] of the keys.
        z: values [n, c, N].
        decay: D, decay [n, c, c] from each position to each later position, and 0 elsewhere; None without
            decay.
        decay_from_start: decay [n, c, 1] from the end of the previous chunk to each position, or None.
        decay_to_end: decay [n, c, 1] from each position to the end of the chunk, or None.
    """

    x: Tensor
    y: Tensor
    z: Tensor
    decay: Optional[Tensor]
    decay_from_start: Optional[Tensor]
    decay_to_end: Optional[Tensor]

    def decayed_x(self) -> Tensor:
        """Multiply the query features of each position by the decay from the chunk's start to this position.

        The product of the result and the state before the chunk is the contribution of earlier chunks.

        Returns:
            The product [n, c, M], or ``x`` itself without decay.
        """
        return self.x if self.decay_from_start is None else self.x * self.decay_from_start

    def decayed_y(self) -> Tensor:
        """Multiply the key features of each position by the decay from this position to the chunk's end.

        A position adds the outer product of this vector and its value z to the state.

        Returns:
            The product [n, c, M], or ``y`` itself without decay.
        """
        return self.y if self.decay_to_end is None else self.y * self.decay_to_end

    def mask_(self, product: Tensor) -> Tensor:
        """Multiply the products of all pairs of positions by the decay D in place.

        Args:
            product: products x_t . y_j of positions t and j [n, c, c]. Without decay, the entries for j after
                t become zero.

        Returns:
            The changed tensor ``product``.
        """
        return product.tril_() if self.decay is None else product.mul_(self.decay)

    def decay_state(self, state: Tensor) -> Tensor:
        """Multiply a state, or the gradient of a state, by the decay of the whole chunk.

        Args:
            state: state or gradient [n, M, N].

        Returns:
            The product [n, M, N], or ``state`` itself without decay.
        """
        return state if self.decay_from_start is None else state * self.decay_from_start[:, -1:]

    def next_state(self, state: Tensor) -> Tensor:
        """Return the state after the chunk.

        Args:
            state: state [n, M, N] before the chunk.

        Returns:
            The state [n, M, N].
        """
        return torch.baddbmm(self.decay_state(state), self.decayed_y().transpose(1, 2), self.z)


class ChunkGradients(NamedTuple):
    """Gradients of the inputs of one chunk.

    The letters n, c, M and N are those of :class:`Chunk`.

    Attributes:
        x: gradient [n, c, M] of x.
        y: gradient [n, c, M] of y.
        z: gradient [n, c, N] of z.
        log_decay: gradient [n, c, 1] of the logarithms of the decay, or None without decay.
    """

    x: Tensor
    y: Tensor
    z: Tensor
    log_decay: Optional[Tensor]


class _ChunkCausalLinear(Function):
    """Autograd function of chunkwise causal linear attention.

    The arguments are the fields of :class:`Inputs`. Only they are saved for the backward pass.
    """

    @staticmethod
    def forward(ctx: Function, *tensors: Optional[Tensor]) -> Tensor:
        """Compute causal linear attention.

        Args:
            ctx: context, in which the inputs are saved for the backward pass.
            *tensors: fields of :class:`Inputs`.

        Returns:
            The output [n, T, N] in the dtype of the values.
        """
        ctx.save_for_backward(*tensors)
        inputs = Inputs(*tensors)
        state = inputs.initial_state()
        results: List[Optional[Tensor]] = []
        for span in inputs.spans():
            chunk = take_chunk(inputs, span)
            output = torch.bmm(chunk.mask_(torch.bmm(chunk.x, chunk.y.transpose(1, 2))), chunk.z)
            output.baddbmm_(chunk.decayed_x(), state)
            results = write_chunk(results, [output.to(inputs.z.dtype)], span, inputs.x.size(1))
            state = chunk.next_state(state)
        return results[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Function, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        """Compute the gradients of all inputs.

        Args:
            ctx: context with the saved inputs.
            grad: gradient [n, T, N] of the output.

        Returns:
            The gradient of each field of :class:`Inputs`, or None for fields without a gradient.
        """
        inputs = Inputs(*ctx.saved_tensors)
        # The backward pass may run under the caller's autocast, even if the forward pass did not.
        with torch.autocast(grad.device.type, enabled=False):
            return all_gradients(inputs, grad)


def all_gradients(inputs: Inputs, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    """Compute the gradients of all inputs, chunk by chunk from the last to the first.

    The letters n, T, M and N are those of :class:`Inputs`.

    Args:
        inputs: inputs of the whole sequence.
        grad: gradient [n, T, N] of the output.

    Returns:
        The gradients of x, y, z, log_decay and state, each None if the input is None.
    """
    chunk_spans = inputs.spans()
    states = [inputs.initial_state()]  # the state before each chunk
    for span in chunk_spans[:-1]:
        states.append(take_chunk(inputs, span).next_state(states[-1]))
    state_after = grad_after = torch.zeros_like(states[0])
    results: List[Optional[Tensor]] = []
    for span in reversed(chunk_spans):
        chunk, state_before = take_chunk(inputs, span), states.pop()
        gradients, grad_before = chunk_gradients(
            chunk, grad[:, span].to(grad_after.dtype), state_before, state_after, grad_after
        )
        results = write_chunk(results, gradients, span, inputs.x.size(1))
        state_after, grad_after = state_before, grad_before
    total = ChunkGradients(*results)
    grad_log_decay = total.log_decay
    if inputs.log_decay is not None and grad_log_decay is not None:
        grad_log_decay = grad_log_decay.squeeze(-1).to(inputs.log_decay.dtype)
    return (
        total.x.to(inputs.x.dtype),
        total.y.to(inputs.y.dtype),
        total.z.to(inputs.z.dtype),
        grad_log_decay,
        None if inputs.state is None else grad_after,
    )


def chunk_gradients(
    chunk: Chunk, grad: Tensor, state_before: Tensor, state_after: Tensor, grad_after: Tensor
) -> Tuple[ChunkGradients, Tensor]:
    """Compute the gradients of the inputs of one chunk and of the state before the chunk.

    The letters n, c, M and N are those of :class:`Chunk`.

    Args:
        chunk: inputs of the chunk.
        grad: gradient [n, c, N] of the output.
        state_before: state [n, M, N] before the chunk.
        state_after: state [n, M, N] after the chunk, used only with decay.
        grad_after: gradient [n, M, N] of the state after the chunk.

    Returns:
        - gradients of the inputs of the chunk.
        - gradient [n, M, N] of the state before the chunk.
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
    """Slice the inputs of the whole sequence at the positions of one chunk.

    Args:
        inputs: inputs of the whole sequence.
        span: positions of the chunk.

    Returns:
        The inputs of the chunk.
    """
    dtype = inputs.dtype()
    x, y, z = inputs.x[:, span].to(dtype), inputs.y[:, span].to(dtype), inputs.z[:, span].to(dtype)
    if inputs.log_decay is None:
        return Chunk(x, y, z, None, None, None)
    total = inputs.log_decay[:, span].to(dtype).cumsum(dim=1).unsqueeze(-1)
    # The exponential from a later position to an earlier position may be infinite; tril_ removes it.
    decay = (total - total.transpose(1, 2)).exp_().tril_()
    return Chunk(x, y, z, decay, total.exp(), (total[:, -1:] - total).exp_())
