"""Block-sparse attention: each position attends to keys in its own block and in a few other blocks.

With a fixed block size and a fixed number of keys per block, memory grows linearly with the sequence length.

Shapes: batch size B, H heads, T positions, n blocks of ``size`` positions, m keys per block, head width K.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.attention import MAX_PENALTY, disable_autocast, softmax_attention


def to_blocks(x: Tensor, size: int, value: float = 0) -> Tensor:
    """Split a sequence [B, H, T, K] into blocks [B, H, n, size, K], padding the last block with ``value``."""
    x = F.pad(x, (0, 0, 0, -x.size(2) % size), value=value)
    return x.unflatten(2, (-1, size))


def from_blocks(x: Tensor, length: int) -> Tensor:
    """Concatenate blocks [B, H, n, size, K] and keep the first ``length`` positions, as [B, H, length, K]."""
    return x.flatten(2, 3)[:, :, :length]


def append_neighbours(x: Tensor, before: int, after: int, value: float = 0) -> Tensor:
    """Concatenate each block [B, H, n, size, K] with its ``before`` preceding and ``after`` following blocks.

    The result is [B, H, n, (before + 1 + after) * size, K], with ``value`` in blocks that do not exist.
    """
    n = x.size(2)
    x = F.pad(x, (0, 0, 0, 0, before, after), value=value)
    return torch.cat([x[:, :, i : i + n] for i in range(before + 1 + after)], dim=3)


def block_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float, bias: Optional[Tensor] = None
) -> Tensor:
    """Compute softmax attention from each block of queries [B, H, n, size, K] to its keys [B, H, n, m, K].

    The mask and the bias of the logits broadcast to [B, H, n, size, m]. The mask is True at keys that a query
    must not attend to. The result has the shape of the queries.
    """
    B, _, n = q.shape[:3]

    def join(x: Tensor) -> Tensor:
        # Blocks become examples of a larger batch, so that one mask [B n, 1, size, m] serves all heads.
        return x.expand(B, -1, n, -1, -1).transpose(1, 2).flatten(0, 1)

    q, k, v, mask = (join(x) for x in (q, k, v, mask))
    output = softmax_attention(q, k, v, mask, dropout, None if bias is None else join(bias))
    return output.unflatten(0, (B, n)).transpose(1, 2)


class GlobalKeys(NamedTuple):
    """Keys and values [B, H, m, K] that every position attends to, in addition to the keys in its window.

    The mask broadcasts to [B, 1, T, m]. The mask is True if a query must not attend to a key, for example
    because the key is already in its window.
    """

    k: Tensor
    v: Tensor
    mask: Tensor


def windowed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    before: int,
    after: int,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    global_keys: Optional[GlobalKeys] = None,
) -> Tensor:
    """Compute sliding-window softmax attention: position t attends to positions t - before to t + after.

    q, k, v and the result are [B, H, T, K], and q is unscaled. key_padding_mask [B, T] is True at padding.
    Every position also attends to ``global_keys``, if given. ``dropout`` is the dropout probability of the
    weights.

    Example:
        >>> import torch
        >>> x = torch.randn(2, 8, 100, 64)
        >>> windowed_attention(x, x, x, before=3, after=3).shape
        torch.Size([2, 8, 100, 64])
    """
    T = q.size(2)
    if q.numel() == 0:
        return q.clone()
    size = max(1, min(max(before, after), T))
    left, right = min(1, before, T - size), min(1, after, T - size)
    mask = make_window_mask(q, size, (left, right), (before, after), key_padding_mask)
    k, v = (append_neighbours(to_blocks(x, size), left, right) for x in (k, v))
    if global_keys is not None:
        n = k.size(2)
        k, v = (
            torch.cat([x, y.unsqueeze(2).expand(-1, -1, n, -1, -1)], dim=3)
            for x, y in ((k, global_keys.k), (v, global_keys.v))
        )
        global_mask = to_blocks(global_keys.mask.expand(q.size(0), 1, T, -1), size, True)
        mask = torch.cat([mask.expand(q.size(0), -1, n, -1, -1), global_mask], dim=-1)
    return from_blocks(block_attention(to_blocks(q, size), k, v, mask, dropout), T)


def make_window_mask(
    x: Tensor,
    size: int,
    neighbours: Tuple[int, int],
    window: Tuple[int, int],
    key_padding_mask: Optional[Tensor],
) -> Tensor:
    """Return a mask [B or 1, 1, n, size, m], True at keys outside a sliding window and at padding.

    The m keys of a block of queries come from the block itself and from ``neighbours``, the numbers of blocks
    before and after it. ``window`` holds the numbers of positions before and after a query. Only the length
    and the device of x [B, H, T, K] are used.
    """
    (left, right), (before, after) = neighbours, window
    padding = x.new_zeros(1, 1, x.size(2), 1, dtype=torch.bool)
    if key_padding_mask is not None:
        padding = key_padding_mask[:, None, :, None]
    padding = append_neighbours(to_blocks(padding, size, True), left, right, True).transpose(-2, -1)
    key_positions = torch.arange((left + 1 + right) * size, device=x.device) - left * size
    distance = key_positions - torch.arange(size, device=x.device)[:, None]
    return padding | (distance < -before) | (distance > after)


def partial_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float, bias: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """Compute softmax attention to a subset of the keys, and the log-sum-exp of the logits.

    The queries q [..., T, K] are already scaled. k and v are [..., S, K]. mask and bias broadcast to the
    logits [..., T, S]. The mask is True at keys outside the subset. The output is [..., T, K], and the
    log-sum-exp [..., T, 1], both in float32 or float64. :func:`merge_parts` merges the results of subsets.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with disable_autocast(q.device):
        logits = q.to(dtype) @ k.to(dtype).transpose(-2, -1)
        logits = logits if bias is None else logits + bias
        logits = logits.masked_fill(mask, torch.finfo(dtype).min)
        largest = logits.detach().amax(dim=-1, keepdim=True)
        # On a CPU, an exponential that underflows to 0 takes ten times as long as one that is 1e-22.
        weights = (logits - largest).clamp(min=-MAX_PENALTY).exp().masked_fill(mask, 0.0)
        total = weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(dtype).tiny)
        return F.dropout(weights / total, dropout) @ v.to(dtype), largest + total.log()


def merge_parts(outputs: Tensor, log_sums: Tensor) -> Tensor:
    """Merge :func:`partial_attention` over N disjoint subsets of the keys into attention to all keys.

    Return the average of ``outputs`` [N, ..., T, K], weighted by the softmax of ``log_sums`` [N, ..., T, 1].
    """
    return (outputs * log_sums.softmax(dim=0)).sum(dim=0)
