"""What the chunkwise form computes for one chunk of positions: output, gradients, states.

Letters as in ops/README.md, and N = B x H, c positions in a chunk. In tied attention keys are values, and
what belongs to both is one tensor: one state A^T K instead of A^T K and A^T V, and one gradient.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.causal_luna.decay import ChunkDecay, scale_, scaled

# Sums over positions for the keys and the values, or for both as one (tied), each [N, L, K]; None is zero.
States = Optional[Sequence[Tensor]]


class Chunk(NamedTuple):
    """A chunk's part of the inputs.

    Attributes:
        q: [N, c, K]
        pack_weights: A [N, c, L]
        inverse_steps: 1 / t [1, H or N, c, 1]
        noise: what dropout multiplies the unpack weights with [N, c, L], or None
        excluded: rows of P that are left out [1 or N, 1, L], or None
        keys_values: keys and values, or both as one, each [N, c, K]
        decay: what is left from position to position, or None where nothing is forgotten
    """

    q: Tensor
    pack_weights: Tensor
    inverse_steps: Tensor
    noise: Optional[Tensor]
    excluded: Optional[Tensor]
    keys_values: Sequence[Tensor]
    decay: Optional[ChunkDecay] = None

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


def forward(chunk: Chunk, before: States) -> Tuple[Tensor, Tensor]:
    """Output [N, c, K] and softmax [N, c, L], from the state of all positions before the chunk."""
    q, A, keys_values = chunk.q, chunk.pack_weights, chunk.keys_values
    logits = torch.bmm(chunk.product(q, keys_values[0]), A)
    if before is not None:
        logits.baddbmm_(chunk.reading(q), before[0].transpose(1, 2))
    scale_(logits, chunk.inverse_steps * q.size(-1) ** -0.5)
    if chunk.excluded is None:
        softmax = logits.softmax(dim=-1)
    else:
        logits.masked_fill_(chunk.excluded, torch.finfo(logits.dtype).min)
        softmax = logits.softmax(dim=-1).masked_fill_(chunk.excluded, 0.0)
    weights = drop_and_divide(softmax, chunk)
    output = torch.bmm(chunk.product(weights, A), keys_values[-1])
    if before is not None:
        output.baddbmm_(chunk.reading(weights), before[-1])
    return output, softmax


def backward(
    chunk: Chunk, softmax: Tensor, grad: Tensor, before: States, behind: States
) -> Tuple[List[Tensor], States]:
    """Gradients of q, A, and keys and values (or both as one); and that of the state before the chunk if
    there is one.

    With decay the first list goes on with two sums [N, c, 1], of what reads and of what is added, each times
    its gradient: ages enter as exp(-age) times the one and exp(age) times the other, 1 / t as a factor of the
    first.

    Args:
        chunk: the inputs
        softmax: as :func:`forward` gave it [N, c, L]
        grad: gradient of the output [N, c, K]
        before: state of all positions before the chunk
        behind: gradient of the state after it
    """
    q, A, keys_values = chunk.q, chunk.pack_weights, chunk.keys_values
    tied = len(keys_values) == 1
    weights = drop_and_divide(softmax, chunk)

    grad_products = chunk.product(grad, keys_values[-1])
    grad_softmax = torch.bmm(grad_products, A)
    if before is not None:
        grad_softmax.baddbmm_(chunk.reading(grad), before[-1].transpose(1, 2))
    grad_softmax = drop_and_divide(grad_softmax, chunk)
    of_weights = (grad_softmax * softmax).sum(dim=-1, keepdim=True)
    grad_logits = scale_(
        grad_softmax.sub_(of_weights).mul_(softmax), chunk.inverse_steps * q.size(-1) ** -0.5
    )

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
        parts += [of_weights + (q * grad_q).sum(dim=-1, keepdim=True), added[0] + sum(added[1:])]
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


def next_states(chunk: Chunk, before: States) -> List[Tensor]:
    """The state of all positions up to the end of the chunk."""
    rows = chunk.adding(chunk.pack_weights).transpose(1, 2)
    if before is None:
        return [torch.bmm(rows, x) for x in chunk.keys_values]
    return [torch.baddbmm(state, rows, x) for state, x in zip(chunk.left_of(before), chunk.keys_values)]


def drop_and_divide(x: Tensor, chunk: Chunk) -> Tensor:
    """x [N, c, L] after dropout, divided by t: from softmax to unpack weights, and their gradient the other
    way."""
    x = scaled(x, chunk.inverse_steps)
    return x if chunk.noise is None else x.mul_(chunk.noise)
