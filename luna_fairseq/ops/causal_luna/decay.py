"""Exponential decay of earlier positions in causal Luna attention.

A key n positions before the query is weighted by ``exp(log_decay * n)``. Padding does not count as a
position.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.ops.causal_luna.inputs import count_positions


def cumulative_log_decay(log_decay: Tensor, q: Tensor, key_padding_mask: Optional[Tensor]) -> Tensor:
    """Return the cumulative log decay G_t = log_decay * t of the t-th non-padding position.

    At position t, position j is weighted by ``exp(G_t - G_j)``.

    Args:
        log_decay: log decay [H] per position of each of the H heads.
        q: queries [B, H, T, K] for B examples of T positions, which determine T and the device.
        key_padding_mask: mask [B, T], True at padding (None if there is no padding).

    Returns:
        The cumulative log decay [B, H, T, 1], or [1, H, T, 1] if there is no padding. It is in float64,
        because only differences between these large numbers are used.
    """
    return log_decay.double()[None, :, None, None] * count_positions(q, key_padding_mask)


def decayed_counts(log_decay: Tensor, steps: Tensor) -> Tensor:
    """Return the sum of the decay factors over t positions, ``sum_{n<t} exp(log_decay n)``.

    With decay, this sum replaces the number of positions t as the divisor of a mean.

    Args:
        log_decay: log decay [H] per position of each of the H heads, negative.
        steps: number of positions t [B, 1, T, 1] for B examples of T positions, or [1, 1, T, 1] if all
            examples have the same counts.

    Returns:
        The sums [B or 1, H, T, 1].
    """
    log_decay = log_decay.view(-1, 1, 1)
    return torch.expm1(log_decay * steps) / torch.expm1(log_decay)


def decay_of_position(log_decay: Tensor, key_padding_mask: Optional[Tensor]) -> Tensor:
    """Return the factor by which one new position decays the sums over earlier positions.

    Args:
        log_decay: log decay [H] per position of each of the H heads, negative.
        key_padding_mask: mask [B, 1] for B examples, True if the new position is padding (None if there is no
            padding). Padding does not decay the sums.

    Returns:
        The factors [H, 1, 1], or [B, H, 1, 1] if a mask is given.
    """
    decay = log_decay.exp().view(-1, 1, 1)
    if key_padding_mask is None:
        return decay
    return torch.where(key_padding_mask[:, :, None, None], torch.ones_like(decay), decay)


class ChunkDecay(NamedTuple):
    """Decay factors between the c positions of a chunk.

    The decay from position j to a later position t is exp(G_t - G_j), where G is the cumulative log decay.

    n is the number of heads with separate decay factors. It is H for H heads, or B x H if the B examples of
    the batch have different padding.

    Attributes:
        between: decay [n, c, c] from each position j to each position t, indexed by t and j; 0 for j after t.
        from_start: decay [n, c, 1] from the end of the previous chunk to each position.
        to_end: decay [n, c, 1] from each position to the end of the chunk.
        whole: decay [n, 1, 1] from the end of the previous chunk to the end of this chunk.
    """

    between: Tensor
    from_start: Tensor
    to_end: Tensor
    whole: Tensor


def chunk_decay(total: Tensor, span: slice, dtype: torch.dtype) -> ChunkDecay:
    """Compute the decay factors between the positions of one chunk from the cumulative log decay.

    The decay from position j to a later position t is exp(G_t - G_j), where G is the cumulative log decay.

    Args:
        total: cumulative log decay G [n, T, 1] of T positions for n heads, in float64.
        span: positions of the chunk, as a slice of the T positions.
        dtype: dtype of the result.

    Returns:
        The decay factors of the chunk for each of the n heads.
    """
    inside, end = total[:, span], total[:, span.stop - 1 : span.stop]
    start = total[:, span.start - 1 : span.start] if span.start else torch.zeros_like(end)
    logs = inside - inside.transpose(1, 2), inside - start, end - inside, end - start
    between, from_start, to_end, whole = (log.to(dtype).exp_() for log in logs)
    # The exponential from a later position to an earlier position may be infinite; tril_ removes it.
    return ChunkDecay(between.tril_(), from_start, to_end, whole)


def scale(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply each matrix of a batch by a factor, with the factors repeated along the batch.

    Entry i of the result is ``x[i] * factor[i % n]``. For B examples with H heads, N is B x H. If all
    examples have the same factors, n is H.

    Args:
        x: batch [N, R, S] of N matrices with R rows and S columns.
        factor: batch [n, R or 1, S or 1] of n factors, where n divides N.

    Returns:
        The product [N, R, S].
    """
    return (x.unflatten(0, (-1, factor.size(0))) * factor).flatten(0, 1)


def scale_(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply each matrix of a batch by a factor in place, with the factors repeated along the batch.

    Matrix i is multiplied by ``factor[i % n]``. For B examples with H heads, N is B x H. If all examples have
    the same factors, n is H.

    Args:
        x: batch [N, R, S] of N matrices with R rows and S columns, modified in place.
        factor: batch [n, R or 1, S or 1] of n factors, where n divides N.

    Returns:
        The modified tensor ``x``.
    """
    x.unflatten(0, (-1, factor.size(0))).mul_(factor)
    return x


def sum_over_examples(x: Tensor, n: int) -> Tensor:
    """Sum a batch of matrices over the examples, separately for each head.

    Entry i of the result is the sum of ``x[i]``, ``x[i + n]``, ``x[i + 2 * n]`` and so on. If N matrices are
    multiplied by n factors that are repeated along the batch, the gradient of a factor is such a sum.

    Args:
        x: batch [N, R, S] of N matrices with R rows and S columns.
        n: number of matrices of one example, which divides N.

    Returns:
        The sums [n, R, S].
    """
    return x.unflatten(0, (-1, n)).sum(dim=0)
