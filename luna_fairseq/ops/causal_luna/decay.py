"""Exponential decay of the sums over time in causal Luna attention.

A position that lies n real positions back has the weight ``exp(log_decay * n)``.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.ops.causal_luna.inputs import count_positions


def cumulative_log_decay(log_decay: Tensor, q: Tensor, key_padding_mask: Optional[Tensor]) -> Tensor:
    """Return the total decay G_t = log_decay * t up to the t-th real position.

    At position t, position j has the weight ``exp(G_t - G_j)``. Padding does not decay the sums.

    Args:
        log_decay: logarithm of the decay per position of each head [H]
        q: queries [B, H, T, K], for their length and device
        key_padding_mask: mask [B, T], True at padding; None without padding

    Returns:
        The total log decay [1 or B, H, T, 1] in float64, because only differences of these large numbers are
        used.
    """
    return log_decay.double()[None, :, None, None] * count_positions(q, key_padding_mask)


def decayed_counts(log_decay: Tensor, steps: Tensor) -> Tensor:
    """Return the sum of the weights of t positions, ``sum_{n<t} exp(log_decay n)``.

    Without decay this sum would be t.

    Args:
        log_decay: logarithm of the decay per position of each head [H], below 0
        steps: number of positions t [1 or B, 1, T, 1]

    Returns:
        The sums [1 or B, H, T, 1].
    """
    log_decay = log_decay[None, :, None, None]
    return torch.expm1(log_decay * steps) / torch.expm1(log_decay)


class ChunkDecay(NamedTuple):
    """Decay between the c positions of a chunk, for n heads.

    n is H, or B x H if the batch has padding.

    Attributes:
        between: decay from each position to each later position [n, c, c], and 0 elsewhere
        from_start: decay from the end of the previous chunk to each position [n, c, 1]
        to_end: decay from each position to the end of the chunk [n, c, 1]
        whole: decay from the end of the previous chunk to the end of this chunk [n, 1, 1]
    """

    between: Tensor
    from_start: Tensor
    to_end: Tensor
    whole: Tensor


def chunk_decay(total: Tensor, span: slice, dtype: torch.dtype) -> ChunkDecay:
    """Compute the decay between the positions of one chunk.

    Args:
        total: total log decay of all positions [n, T, 1], see :func:`cumulative_log_decay`
        span: positions of the chunk
        dtype: dtype of the result
    """
    inside, end = total[:, span], total[:, span.stop - 1 : span.stop]
    start = total[:, span.start - 1 : span.start] if span.start else torch.zeros_like(end)
    logs = inside - inside.transpose(1, 2), inside - start, end - inside, end - start
    between, from_start, to_end, whole = (log.to(dtype).exp_() for log in logs)
    # The exponential from a later position to an earlier position may be infinite; tril_ removes it.
    return ChunkDecay(between.tril_(), from_start, to_end, whole)


def scale(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply a tensor by a factor that is the same for all examples of the batch.

    Args:
        x: values [N, *, *] of N / n examples
        factor: factors [n, *, *], one set for all examples

    Returns:
        The product [N, *, *].
    """
    return (x.unflatten(0, (-1, factor.size(0))) * factor).flatten(0, 1)


def scale_(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply a tensor in place by a factor that is the same for all examples of the batch.

    Args:
        x: values [N, *, *] of N / n examples, changed in place
        factor: factors [n, *, *], one set for all examples

    Returns:
        The changed tensor ``x``.
    """
    x.unflatten(0, (-1, factor.size(0))).mul_(factor)
    return x


def sum_over_examples(x: Tensor, n: int) -> Tensor:
    """Sum a tensor over the examples of the batch.

    This is the backward pass of :func:`scale` for the factor.

    Args:
        x: values [N, *, *] of N / n examples
        n: number of values of one example, the first dimension of the result

    Returns:
        The sum [n, *, *].
    """
    return x.unflatten(0, (-1, n)).sum(dim=0)
