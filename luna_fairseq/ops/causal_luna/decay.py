"""Exponential decay of earlier positions in causal Luna attention.

A key d positions before the query is weighted by ``exp(log_decay * d)``. Padding does not count as a
position.

Shapes: B examples, H heads, T positions, c positions in a chunk. ``log_decay`` [H] has one value per head. n
is H, or B * H if the examples have different padding.
"""

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import Function

from luna_fairseq.ops.causal_luna.inputs import count_positions


def cumulative_log_decay(log_decay: Tensor, q: Tensor, key_padding_mask: Optional[Tensor]) -> Tensor:
    """Return ``log_decay * t`` [B or 1, H, T, 1] in float64, where t counts the tokens up to each position.

    ``log_decay`` is [H] and ``key_padding_mask`` [B, T]. Only the length and the device of q are used.
    """
    return log_decay.double()[None, :, None, None] * count_positions(q, key_padding_mask)


def decayed_counts(log_decay: Tensor, steps: Tensor) -> Tensor:
    """Return the sum of the decay factors at each position t, ``sum_{d < t} exp(log_decay * d)``.

    ``log_decay`` is [H], and ``steps`` [B or 1, 1, T, 1] holds t. The result is [B or 1, H, T, 1].
    """
    log_decay = log_decay.view(-1, 1, 1)
    return torch.expm1(log_decay * steps) / torch.expm1(log_decay)


def inverse_decayed_counts(log_decay: Tensor, steps: Tensor) -> Tensor:
    """Return the reciprocals [B or 1, H, T, 1] of :func:`decayed_counts`."""
    log_decay = log_decay.view(-1, 1, 1)
    return torch.expm1(log_decay) / torch.expm1(log_decay * steps)


def decay_totals(log_decay: Tensor, count: Tensor, steps: Tensor) -> Tuple[Tensor, Tensor]:
    """Return ``1 / decayed_counts(log_decay, steps)`` and the cumulative log decay, both [B or 1, H, T, 1].

    ``count`` [B or 1, 1, T, 1] is the number of positions up to each position. ``steps`` also includes the
    positions of earlier calls, and is at least 1. The cumulative log decay is in float64.
    """
    return _DecayTotals.apply(log_decay, count, steps)


class _DecayTotals(Function):
    """Autograd function of :func:`decay_totals` that halves the operator calls of the usual backward pass."""

    @staticmethod
    def forward(ctx: Any, log_decay: Tensor, count: Tensor, steps: Tensor) -> Tuple[Tensor, Tensor]:
        inverse = inverse_decayed_counts(log_decay, steps)
        # Only inputs and outputs are saved, and therefore autograd can derive the backward pass, too.
        ctx.save_for_backward(log_decay, inverse, count, steps)
        return inverse, log_decay.double().view(-1, 1, 1) * count

    @staticmethod
    def backward(ctx: Any, grad_inverse: Tensor, grad_total: Tensor) -> Tuple[Tensor, None, None]:
        log_decay, inverse, count, steps = ctx.saved_tensors
        rise = torch.expm1(log_decay).view(-1, 1, 1)
        # The derivative of log(expm1(g) / expm1(g t)) is (1 - t / c) / expm1(g) + 1 - t, with c the count.
        slope = (1 - steps * inverse) / rise + (1 - steps)
        grad = (grad_inverse * inverse * slope).sum(dim=(0, 2, 3))
        return grad + (grad_total * count).sum(dim=(0, 2, 3)).to(grad.dtype), None, None


def decay_of_position(log_decay: Tensor, key_padding_mask: Optional[Tensor]) -> Tensor:
    """Return the factor by which a new position decays the sums over earlier positions. It is 1 at padding.

    The shape is [H, 1, 1], or [B, H, 1, 1] if there is a mask [B, 1].
    """
    decay = log_decay.exp().view(-1, 1, 1)
    if key_padding_mask is None:
        return decay
    return torch.where(key_padding_mask[:, :, None, None], torch.ones_like(decay), decay)


class ChunkDecay(NamedTuple):
    """Decay factors between the positions of a chunk: exp(G_t - G_j), where G is the cumulative log decay.

    Shapes: c positions in the chunk, n heads, or batch size times heads if the examples have different
    padding. All except ``between`` are None if the chunk is the whole sequence.

    Attributes:
        between: decay factors from position j to position t, [n, c, c], indexed by t and j; 0 for j > t.
        from_start: decay factors from the end of the previous chunk to each position, [n, c, 1].
        to_end: decay factors from each position to the end of the chunk, [n, c, 1].
        whole: decay factors from the end of the previous chunk to the end of this chunk, [n, 1, 1].
    """

    between: Tensor
    from_start: Any = None
    to_end: Any = None
    whole: Any = None


def chunk_decay(total: Tensor, span: slice, dtype: torch.dtype, is_only: bool = False) -> ChunkDecay:
    """Compute the decay factors of one chunk, given the cumulative log decay ``total`` [n, T, 1].

    ``span`` selects the chunk's positions, and ``dtype`` is the dtype of the factors. ``is_only`` is True if
    the chunk is the whole sequence, and no state of earlier positions has to decay.
    """
    inside = total if is_only else total[:, span]
    # The exponential from a later position to an earlier position may be infinite; tril_ removes it.
    between = (inside - inside.transpose(1, 2)).to(dtype).exp_().tril_()
    if is_only:
        return ChunkDecay(between)
    end = total[:, span.stop - 1 : span.stop]
    start = total[:, span.start - 1 : span.start] if span.start else torch.zeros_like(end)
    logs = inside - start, end - inside, end - start
    return ChunkDecay(between, *(log.to(dtype).exp_() for log in logs))


def scale(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply N matrices x [N, R, S] by n factors [n, 1, 1] or [n, R, 1]: ``x[i] * factor[i % n]``."""
    if x.size(0) == factor.size(0):
        return x * factor
    return (x.unflatten(0, (-1, factor.size(0))) * factor).flatten(0, 1)


def scale_(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply matrices x [N, R, S] in place by factors [n, R or 1, S or 1]: ``x[i] *= factor[i % n]``."""
    if x.size(0) == factor.size(0):
        return x.mul_(factor)
    x.unflatten(0, (-1, factor.size(0))).mul_(factor)
    return x


def sum_over_examples(x: Tensor, n: int) -> Tensor:
    """Sum matrices [N, R, S] over examples. Entry i of the result [n, R, S] is ``x[i] + x[i + n] + ...``."""
    return x.unflatten(0, (-1, n)).sum(dim=0)
