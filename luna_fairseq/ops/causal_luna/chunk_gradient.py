"""What the chunkwise form computes for one chunk of positions: output, gradients, states.

Letters as in ops/README.md, and N = B x H, c positions in a chunk. In tied attention keys are values, and
what belongs to both is one tensor: one state A^T K instead of A^T K and A^T V, and one gradient.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

# Sums over positions for the keys and the values, or for both as one (tied), each [N, L, K]; None is zero.
States = Optional[Sequence[Tensor]]


class Chunk(NamedTuple):
    """A chunk's part of the inputs.

    Attributes:
        q: [N, c, K]
        pack_weights: A [N, c, L]
        inverse_steps: 1 / t [1 or N, c, 1]
        noise: what dropout multiplies the unpack weights with [N, c, L], or None
        excluded: rows of P that are left out [1 or N, 1, L], or None
        keys_values: keys and values, or both as one, each [N, c, K]
    """

    q: Tensor
    pack_weights: Tensor
    inverse_steps: Tensor
    noise: Optional[Tensor]
    excluded: Optional[Tensor]
    keys_values: Sequence[Tensor]


def forward(chunk: Chunk, before: States) -> Tuple[Tensor, Tensor]:
    """Output [N, c, K] and softmax [N, c, L], from the state of all positions before the chunk."""
    q, A, keys_values = chunk.q, chunk.pack_weights, chunk.keys_values
    logits = torch.bmm(causal_product(q, keys_values[0]), A)
    if before is not None:
        logits.baddbmm_(q, before[0].transpose(1, 2))
    logits *= chunk.inverse_steps * q.size(-1) ** -0.5
    if chunk.excluded is None:
        softmax = logits.softmax(dim=-1)
    else:
        logits.masked_fill_(chunk.excluded, torch.finfo(logits.dtype).min)
        softmax = logits.softmax(dim=-1).masked_fill_(chunk.excluded, 0.0)
    weights = drop_and_divide(softmax, chunk)
    output = torch.bmm(causal_product(weights, A), keys_values[-1])
    if before is not None:
        output.baddbmm_(weights, before[-1])
    return output, softmax


def backward(
    chunk: Chunk, softmax: Tensor, grad: Tensor, before: States, behind: States
) -> Tuple[List[Tensor], List[Tensor]]:
    """Gradients of q, A, and keys and values (or both as one); and that of the state before the chunk.

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

    grad_products = causal_product(grad, keys_values[-1])
    grad_softmax = torch.bmm(grad_products, A)
    if before is not None:
        grad_softmax.baddbmm_(grad, before[-1].transpose(1, 2))
    grad_softmax = drop_and_divide(grad_softmax, chunk)
    grad_logits = grad_softmax.sub_((grad_softmax * softmax).sum(dim=-1, keepdim=True)).mul_(softmax)
    grad_logits *= chunk.inverse_steps * q.size(-1) ** -0.5

    to_keys, to_values = causal_product(grad_logits, A), causal_product(weights, A)
    grad_q = torch.bmm(to_keys, keys_values[0])
    if before is not None:
        grad_q.baddbmm_(grad_logits, before[0])
    grad_A = torch.bmm(grad_products.transpose(1, 2), weights)
    grad_A.baddbmm_(causal_product(q, keys_values[0]).transpose(1, 2), grad_logits)
    of_inputs = product_sums(to_keys, q, to_values, grad, tied)
    if behind is not None:
        for x, grad_x, state in zip(keys_values, of_inputs, behind):
            grad_x.baddbmm_(A, state)
            grad_A.baddbmm_(x, state.transpose(1, 2))
    return [grad_q, grad_A, *of_inputs], product_sums(grad_logits, q, weights, grad, tied, behind)


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
    rows = chunk.pack_weights.transpose(1, 2)
    if before is None:
        return [torch.bmm(rows, x) for x in chunk.keys_values]
    return [torch.baddbmm(state, rows, x) for state, x in zip(before, chunk.keys_values)]


def drop_and_divide(x: Tensor, chunk: Chunk) -> Tensor:
    """x [N, c, L] after dropout, divided by t: from softmax to unpack weights, and their gradient the other
    way."""
    x = x * chunk.inverse_steps
    return x if chunk.noise is None else x.mul_(chunk.noise)


def causal_product(x: Tensor, y: Tensor) -> Tensor:
    """x_t . y_j for j <= t, 0 elsewhere. x, y [N, c, *] -> [N, c, c]."""
    return torch.bmm(x, y.transpose(1, 2)).tril_()
