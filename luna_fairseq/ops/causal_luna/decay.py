"""What decay adds to the sums over time: a position n real positions back counts ``exp(log_decay n)``."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from luna_fairseq.ops.causal_luna.inputs import count_positions


def cumulative_log_decay(log_decay: Tensor, q: Tensor, key_padding_mask: Optional[Tensor]) -> Tensor:
    """G_t = ``log_decay t`` at the t-th real position: ``exp(G_t - G_j)`` is left of j at t.

    Args:
        log_decay: [H]
        q: [B, H, T, K], for its length and device
        key_padding_mask: [B, T]; nothing decays at padding

    Returns:
        [1 or B, H, T, 1], float64: only differences count, of large numbers in long sequences
    """
    return log_decay.double()[None, :, None, None] * count_positions(q, key_padding_mask)


def decayed_counts(log_decay: Tensor, steps: Tensor) -> Tensor:
    """``sum_{n<t} exp(log_decay n)``, which is t where nothing decays.

    Args:
        log_decay: [H], below 0
        steps: t [1 or B, 1, T, 1]

    Returns:
        [1 or B, H, T, 1]
    """
    log_decay = log_decay[None, :, None, None]
    return torch.expm1(log_decay * steps) / torch.expm1(log_decay)


class ChunkDecay(NamedTuple):
    """How much is left from position to position of a chunk; n is H, or B x H where there is padding.

    Attributes:
        inside: from every position to every later one [n, c, c], 0 elsewhere
        from_start: from before the chunk to every position [n, c, 1]
        to_end: from every position to the chunk's end [n, c, 1]
        whole: from before the chunk to its end [n, 1, 1]
    """

    inside: Tensor
    from_start: Tensor
    to_end: Tensor
    whole: Tensor


def decay_of_chunk(total: Tensor, span: slice, dtype: torch.dtype) -> ChunkDecay:
    """
    Args:
        total: what :func:`cumulative_log_decay` gave of all positions [n, T, 1]
        span: the chunk's positions
        dtype: that sums are in
    """
    own, end = total[:, span], total[:, span.stop - 1 : span.stop]
    before = total[:, span.start - 1 : span.start] if span.start else torch.zeros_like(end)
    logs = own - own.transpose(1, 2), own - before, end - own, end - before
    inside, *others = (log.to(dtype).exp_() for log in logs)
    return ChunkDecay(inside.tril_(), *others)  # from a later position back it may be infinite


def scaled(x: Tensor, factor: Tensor) -> Tensor:
    """x [N, *, *] times a factor [n, *, *] that is the same for all of N / n sentences."""
    return (x.unflatten(0, (-1, factor.size(0))) * factor).flatten(0, 1)


def scale_(x: Tensor, factor: Tensor) -> Tensor:
    """As :func:`scaled`, in place."""
    x.unflatten(0, (-1, factor.size(0))).mul_(factor)
    return x


def sum_over_sentences(x: Tensor, n: int) -> Tensor:
    """The gradient of such a factor [n, *, *], from x [N, *, *]."""
    return x.unflatten(0, (-1, n)).sum(dim=0)
