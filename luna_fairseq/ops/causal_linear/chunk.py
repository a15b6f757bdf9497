"""Chunkwise causal linear attention, with memory linear in the sequence length.

For query features x, key features y and values z, the output at position t is::

    output_t = sum_{j<=t} D_tj (x_t . y_j) z_j

D_tj is the decay from position j to position t. The sequence is processed in chunks of positions. The sum
over the positions of the same chunk is a masked matrix product. The sum over earlier chunks is the product of
x_t and the state, the decayed sum of the outer products y_j^T z_j. The result matches the naive
implementation up to rounding.

The backward pass is hand-written. It recomputes the products and the states from the saved inputs.
"""

from typing import List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from luna_fairseq.ops.chunks import chunk_size, chunk_slices, write_chunk


def chunk_causal_linear(
    x: Tensor, y: Tensor, z: Tensor, log_decay: Optional[Tensor] = None, state: Optional[Tensor] = None
) -> Tensor:
    """Compute causal linear attention chunk by chunk, with memory linear in the sequence length.

    The output is ``output_t = sum_{j<=t} decay(j, t) (x_t . y_j) z_j``, where decay(j, t) is the exponential
    of the sum of ``log_decay`` over the positions after j up to t. All sums are accumulated in float32
    (float64 for float64 inputs), even under autocast.

    Args:
        x: features [B, H, T, M] of the queries: batch size B, H heads, T positions, and M features.
        y: features of the keys, with the same shape as ``x``.
        z: values [B, H, T, N] of width N.
        log_decay: log decay [B, H, T] at each position, at most 0 (default: None, no decay).
        state: sum [B, H, M, N] of the outer products of y and z over earlier positions (default: None, no
            earlier positions).

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
    """Inputs of causal linear attention for a whole sequence.

    Shapes: n heads in the batch (batch size times number of heads), T positions, M features, and values of
    width N.

    Attributes:
        x: features [n, T, M] of the queries.
        y: features [n, T, M] of the keys.
        z: values [n, T, N].
        log_decay: log of the factor [n, T] by which each position decays the sums over earlier positions
            (None if there is no decay).
        state: decayed sum [n, M, N] of the outer products of y and z over earlier positions (None if there
            are no earlier positions).
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
        """Return the state before the first chunk.

        The state is the decayed sum of the outer products of key features and values over earlier positions.

        Returns:
            The state [n, M, N] in float32 or float64, zero if there are no earlier positions: n heads in the
            batch, M features, and values of width N.
        """
        state = self.state
        if state is None:
            state = self.x.new_zeros(self.x.size(0), self.x.size(2), self.z.size(2))
        return state.to(self.dtype())

    def chunk_slices(self) -> List[slice]:
        """Return the position slice of each chunk, in order."""
        return chunk_slices(self.x.size(1), chunk_size(self.x, self.z.size(2)))


class Chunk(NamedTuple):
    """Inputs of causal linear attention for one chunk of c positions, in float32 or float64.

    Shapes: n heads in the batch (batch size times number of heads), c positions, M features, and values of
    width N.

    Attributes:
        x: features [n, c, M] of the queries.
        y: features [n, c, M] of the keys.
        z: values [n, c, N].
        decay: decay [n, c, c] from each position j to each position t, indexed by t and j, 0 for j > t (None
            if there is no decay).
        decay_from_start: decay [n, c, 1] from the end of the previous chunk to each position (None if there
            is no decay).
        decay_to_end: decay [n, c, 1] from each position to the end of the chunk (None if there is no decay).
    """

    x: Tensor
    y: Tensor
    z: Tensor
    decay: Optional[Tensor]
    decay_from_start: Optional[Tensor]
    decay_to_end: Optional[Tensor]

    def decayed_x(self) -> Tensor:
        """Multiply the query features of each position by the decay accumulated since the start of the chunk.

        Multiplying the result by the state before the chunk gives the contribution of earlier chunks.

        Returns:
            The decayed features [n, c, M], ``x`` itself if there is no decay: n heads in the batch, c
            positions, and M features.
        """
        return self.x if self.decay_from_start is None else self.x * self.decay_from_start

    def decayed_y(self) -> Tensor:
        """Multiply the key features of each position by the decay from this position to the end of the chunk.

        The chunk adds the outer products of the result and the values z to the state.

        Returns:
            The decayed features [n, c, M], ``y`` itself if there is no decay: n heads in the batch, c
            positions, and M features.
        """
        return self.y if self.decay_to_end is None else self.y * self.decay_to_end

    def mask_(self, product: Tensor) -> Tensor:
        """Apply the decay and the causal mask to a matrix of dot products between the positions of a chunk.

        The product x_t . y_j is multiplied by the decay from position j to position t if j <= t, and set to 0
        otherwise.

        Args:
            product: products x_t . y_j [n, c, c], indexed by t and j: n heads in the batch, and c positions.
                Modified in place.

        Returns:
            The modified tensor ``product``.
        """
        return product.tril_() if self.decay is None else product.mul_(self.decay)

    def decay_state(self, state: Tensor) -> Tensor:
        """Multiply a state, or the gradient of a state, by the decay over the whole chunk.

        A state is the sum of the outer products of key features and values over earlier positions.

        Args:
            state: state or gradient [n, M, N]: n heads in the batch, M features, and values of width N.

        Returns:
            The decayed state, with the same shape; ``state`` itself if there is no decay.
        """
        return state if self.decay_from_start is None else state * self.decay_from_start[:, -1:]

    def next_state(self, state: Tensor) -> Tensor:
        """Compute the state after the chunk, ``decay * state + y^T z``.

        The outer products y^T z of key features y and values z are summed over the positions of the chunk,
        each decayed to the end of the chunk.

        Args:
            state: state [n, M, N] before the chunk: n heads in the batch, M features, and values of width N.

        Returns:
            The new state, with the same shape as ``state``.
        """
        return torch.baddbmm(self.decay_state(state), self.decayed_y().transpose(1, 2), self.z)


class ChunkGradients(NamedTuple):
    """Gradients of the inputs of one chunk of causal linear attention.

    Shapes: n heads in the batch, c positions in the chunk, M features, and values of width N.

    Attributes:
        x: gradient [n, c, M] of the query features.
        y: gradient [n, c, M] of the key features.
        z: gradient [n, c, N] of the values.
        log_decay: gradient [n, c, 1] of the log decay (None if there is no decay).
    """

    x: Tensor
    y: Tensor
    z: Tensor
    log_decay: Optional[Tensor]


class _ChunkCausalLinear(Function):
    """Autograd function of chunkwise causal linear attention, with a hand-written backward pass.

    The arguments of ``apply`` are the fields of :class:`Inputs`, in order. Only they are saved for the
    backward pass.
    """

    @staticmethod
    def forward(ctx: Function, *tensors: Optional[Tensor]) -> Tensor:
        """Compute causal linear attention chunk by chunk.

        Args:
            ctx: autograd context, which saves the inputs for the backward pass.
            *tensors: fields of :class:`Inputs`, in order.

        Returns:
            The output [n, T, N] in the dtype of the values: n heads in the batch, and T positions of width N.
        """
        ctx.save_for_backward(*tensors)
        inputs = Inputs(*tensors)
        state = inputs.initial_state()
        results: List[Optional[Tensor]] = []
        for span in inputs.chunk_slices():
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
            ctx: autograd context with the saved inputs.
            grad: gradient [n, T, N] of the output: n heads in the batch, and T positions of width N.

        Returns:
            The gradient of each field of :class:`Inputs`, or None for fields that were None.
        """
        inputs = Inputs(*ctx.saved_tensors)
        # The backward pass may run under the caller's autocast, even if the forward pass did not.
        with torch.autocast(grad.device.type, enabled=False):
            return all_gradients(inputs, grad)


def all_gradients(inputs: Inputs, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
    """Compute the gradients of all inputs, chunk by chunk from the last to the first.

    Args:
        inputs: inputs of the whole sequence.
        grad: gradient [n, T, N] of the output: n heads in the batch, and T positions of width N.

    Returns:
        The gradients of x, y, z, log_decay and state, each None if the input is None.
    """
    slices = inputs.chunk_slices()
    states = [inputs.initial_state()]  # the state before each chunk
    for span in slices[:-1]:
        states.append(take_chunk(inputs, span).next_state(states[-1]))
    state_after = grad_after = torch.zeros_like(states[0])
    results: List[Optional[Tensor]] = []
    for span in reversed(slices):
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
    """Compute the gradients of the inputs of one chunk, and of the state before the chunk.

    The state is the decayed sum of the outer products of key features and values over earlier positions.

    Shapes: n heads in the batch, c positions in the chunk, M features, and values of width N.

    Args:
        chunk: inputs of the chunk.
        grad: gradient [n, c, N] of the output.
        state_before: state [n, M, N] before the chunk.
        state_after: state [n, M, N] after the chunk, used only if there is decay.
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
    """Slice one chunk from the inputs of the whole sequence, and compute the decay within the chunk.

    Args:
        inputs: inputs of the whole sequence.
        span: positions of the chunk, as a slice of the sequence.

    Returns:
        The inputs of the chunk, in the dtype in which sums are accumulated (float32 or float64).
    """
    dtype = inputs.dtype()
    x, y, z = inputs.x[:, span].to(dtype), inputs.y[:, span].to(dtype), inputs.z[:, span].to(dtype)
    if inputs.log_decay is None:
        return Chunk(x, y, z, None, None, None)
    total = inputs.log_decay[:, span].to(dtype).cumsum(dim=1).unsqueeze(-1)
    # The exponential from a later position to an earlier position may be infinite; tril_ removes it.
    decay = (total - total.transpose(1, 2)).exp_().tril_()
    return Chunk(x, y, z, decay, total.exp(), (total[:, -1:] - total).exp_())
