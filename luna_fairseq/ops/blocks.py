"""Sequences cut into blocks, so that what a position attends to is found in its own block and a few others.

A block of b positions with m keys has b x m weights: memory grows with the length, not with its square.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.softmax import MAX_PENALTY, softmax_attention


def to_blocks(x: Tensor, size: int, value: float = 0) -> Tensor:
    """[B, H, T, K] -> [B, H, blocks, size, K], the last block filled up with ``value``."""
    x = F.pad(x, (0, 0, 0, -x.size(2) % size), value=value)
    return x.unflatten(2, (-1, size))


def from_blocks(x: Tensor, length: int) -> Tensor:
    """[B, H, blocks, size, K] -> [B, H, length, K]."""
    return x.flatten(2, 3)[:, :, :length]


def with_neighbours(x: Tensor, before: int, after: int, value: float = 0) -> Tensor:
    """Each block together with some on either side of it.

    Args:
        x: [B, H, blocks, size, K]
        before, after: numbers of blocks
        value: what stands beyond the first and the last block

    Returns:
        [B, H, blocks, (before + 1 + after) size, K]
    """
    n = x.size(2)
    x = F.pad(x, (0, 0, 0, 0, before, after), value=value)
    return torch.cat([x[:, :, i : i + n] for i in range(before + 1 + after)], dim=3)


def block_attention(q: Tensor, k: Tensor, v: Tensor, excluded: Tensor, dropout: float = 0.0) -> Tensor:
    """Softmax attention of every block to keys of its own.

    Args:
        q: [B, H, blocks, size, K]
        k, v: [B, H, blocks, m, K]
        excluded: broadcast to [B, H, blocks, size, m], True at keys that are left out
        dropout: probability with which a weight is dropped

    Returns:
        [B, H, blocks, size, K]
    """
    B, _, n = q.shape[:3]
    excluded = excluded.expand(B, -1, n, -1, -1)
    # A block is a row of the batch here: the mask of [B n, 1, size, m] then serves all heads.
    q, k, v, excluded = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v, excluded))
    return softmax_attention(q, k, v, excluded, dropout).unflatten(0, (B, n)).transpose(1, 2)


class MoreKeys(NamedTuple):
    """Keys for every position besides those of its window.

    Attributes:
        k, v: [B, H, m, K]
        excluded: broadcast to [B, 1, T, m]
    """

    k: Tensor
    v: Tensor
    excluded: Tensor


def windowed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    before: int,
    after: int,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    more: Optional[MoreKeys] = None,
) -> Tensor:
    """Softmax attention of position t to the positions from t - before to t + after.

    Args:
        q, k, v: [B, H, T, K]
        before, after: width of the window on either side
        key_padding_mask: [B, T], True at keys that are left out
        dropout: probability with which a weight is dropped
        more: keys besides those of the window

    Returns:
        [B, H, T, K]
    """
    T = q.size(2)
    size = max(1, min(max(before, after), T))
    left, right = min(1, before, T - size), min(1, after, T - size)
    excluded = outside_window(q, size, (left, right), (before, after), key_padding_mask)
    k, v = (with_neighbours(to_blocks(x, size), left, right) for x in (k, v))
    if more is not None:
        n = k.size(2)
        k, v = (
            torch.cat([x, y.unsqueeze(2).expand(-1, -1, n, -1, -1)], dim=3)
            for x, y in ((k, more.k), (v, more.v))
        )
        apart = more.excluded.expand(q.size(0), 1, T, -1)
        excluded = torch.cat(
            [excluded.expand(q.size(0), -1, n, -1, -1), to_blocks(apart, size, True)], dim=-1
        )
    return from_blocks(block_attention(to_blocks(q, size), k, v, excluded, dropout), T)


def outside_window(
    x: Tensor,
    size: int,
    neighbours: Tuple[int, int],
    window: Tuple[int, int],
    key_padding_mask: Optional[Tensor] = None,
) -> Tensor:
    """True where a position of a block does not see one of the block or its neighbours: too far, or padding.

    Args:
        x: [B, H, T, K], for its length and device
        size: of a block
        neighbours: blocks before and after it
        window: positions that are seen before and after one
        key_padding_mask: [B, T]

    Returns:
        [1 or B, 1, blocks, size, m]
    """
    (left, right), (before, after) = neighbours, window
    padding = x.new_zeros(1, 1, x.size(2), 1, dtype=torch.bool)
    if key_padding_mask is not None:
        padding = key_padding_mask[:, None, :, None]
    padding = with_neighbours(to_blocks(padding, size, True), left, right, True).transpose(-2, -1)
    places = torch.arange((left + 1 + right) * size, device=x.device) - left * size
    distance = places - torch.arange(size, device=x.device)[:, None]
    return padding | (distance < -before) | (distance > after)


def partial_attention(
    q: Tensor, k: Tensor, v: Tensor, excluded: Tensor, dropout: float = 0.0, bias: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """Softmax attention to some of the keys, and what :func:`merge_parts` needs to know of it.

    Args:
        q: [.., T, K], scaled already
        k, v: [.., S, K]
        excluded: broadcast to [.., T, S], True at keys that are left out
        dropout: probability with which a weight is dropped
        bias: added to the logits, broadcast to [.., T, S]

    Returns:
        output [.., T, K], and the logarithm of the sum of exp(logit) [.., T, 1], both in float32 or wider
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        logits = q.to(dtype) @ k.to(dtype).transpose(-2, -1)
        logits = logits if bias is None else logits + bias
        logits = logits.masked_fill(excluded, torch.finfo(dtype).min)
        largest = logits.detach().amax(dim=-1, keepdim=True)
        # A CPU is ten times slower at an exponential that is 0 than at one that is 1e-22.
        each = (logits - largest).clamp(min=-MAX_PENALTY).exp().masked_fill(excluded, 0.0)
        total = each.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(dtype).tiny)
        return F.dropout(each / total, dropout) @ v.to(dtype), largest + total.log()


def merge_parts(outputs: Tensor, totals: Tensor) -> Tensor:
    """Softmax attention to all keys, from that to disjoint parts of them: [parts, .., T, K], [parts, .., T,
    1] -> [.., T, K]."""
    return (outputs * totals.softmax(dim=0)).sum(dim=0)
