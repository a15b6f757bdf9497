"""Block-sparse attention: each position attends to keys in its own block and in a few other blocks.

With a fixed block size and a fixed number of keys per block, memory grows linearly with the sequence length.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.softmax import MAX_PENALTY, softmax_attention


def to_blocks(x: Tensor, size: int, value: float = 0) -> Tensor:
    """Split a sequence into blocks of equal size, padding the last block.

    Args:
        x: sequence [B, H, T, K]: batch size B, H heads, T positions, and width K.
        size: number of positions in a block.
        value: padding value (default: 0).

    Returns:
        The blocks [B, H, blocks, size, K].

    Example:
        >>> import torch
        >>> to_blocks(torch.randn(2, 8, 100, 64), size=16).shape
        torch.Size([2, 8, 7, 16, 64])
    """
    x = F.pad(x, (0, 0, 0, -x.size(2) % size), value=value)
    return x.unflatten(2, (-1, size))


def from_blocks(x: Tensor, length: int) -> Tensor:
    """Concatenate blocks into a sequence, and remove the padding of the last block.

    This is the inverse of :func:`to_blocks`.

    Args:
        x: blocks [B, H, blocks, size, K]: batch size B, H heads, ``size`` positions in a block, and width K.
        length: sequence length, excluding padding.

    Returns:
        The sequence [B, H, length, K].
    """
    return x.flatten(2, 3)[:, :, :length]


def append_neighbours(x: Tensor, before: int, after: int, value: float = 0) -> Tensor:
    """Concatenate each block with the blocks before and after it.

    For example, with one neighbour on each side, block i becomes blocks i - 1, i and i + 1.

    Args:
        x: blocks [B, H, blocks, size, K]: batch size B, H heads, ``size`` positions in a block, and width K.
        before: number of neighbours before each block.
        after: number of neighbours after each block.
        value: padding value for neighbours beyond either end of the sequence (default: 0).

    Returns:
        The longer blocks [B, H, blocks, (before + 1 + after) * size, K].
    """
    n = x.size(2)
    x = F.pad(x, (0, 0, 0, 0, before, after), value=value)
    return torch.cat([x[:, :, i : i + n] for i in range(before + 1 + after)], dim=3)


def block_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float = 0.0) -> Tensor:
    """Compute softmax attention from each block of queries to its own set of keys.

    Args:
        q: queries [B, H, blocks, size, K], not yet scaled by K^-0.5: batch size B, H heads, ``size``
            positions in a block, and head width K.
        k: keys [B, H, blocks, m, K]: m keys per block of queries.
        v: values, with the same shape as ``k``.
        mask: mask that broadcasts to [B, H, blocks, size, m], True at masked keys.
        dropout: dropout probability of the attention weights (default: 0).

    Returns:
        The output, with the same shape as ``q``.
    """
    B, _, n = q.shape[:3]
    mask = mask.expand(B, -1, n, -1, -1)
    # Blocks become examples of a larger batch, so that one mask [B n, 1, size, m] serves all heads.
    q, k, v, mask = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v, mask))
    return softmax_attention(q, k, v, mask, dropout).unflatten(0, (B, n)).transpose(1, 2)


class GlobalKeys(NamedTuple):
    """Keys and values that every position attends to, in addition to those in its window.

    Attributes:
        k: keys [B, H, m, K]: batch size B, H heads, m global keys, and head width K.
        v: values, with the same shape as ``k``.
        mask: mask that broadcasts to [B, 1, T, m] for T queries. True if the query must not attend to the
            key, for example because its window already contains the key.
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

    Args:
        q: queries [B, H, T, K], not yet scaled by K^-0.5: batch size B, H heads, T positions, and head width
            K.
        k: keys, with the same shape as ``q``.
        v: values, with the same shape as ``q``.
        before: number of positions in the window before t.
        after: number of positions in the window after t.
        key_padding_mask: mask [B, T], True at padding (default: None, no padding).
        dropout: dropout probability of the attention weights (default: 0).
        global_keys: m additional keys and values [B, H, m, K] that all positions attend to, with their mask
            (default: None, no additional keys).

    Returns:
        The output, with the same shape as ``q``.

    Example:
        >>> import torch
        >>> x = torch.randn(2, 8, 100, 64)
        >>> windowed_attention(x, x, x, before=3, after=3).shape
        torch.Size([2, 8, 100, 64])
    """
    T = q.size(2)
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
    key_padding_mask: Optional[Tensor] = None,
) -> Tensor:
    """Return the mask of sliding-window attention in blocks.

    A query at position t may attend to the positions t - before to t + after. The sequence is split into
    blocks. The keys for a block of queries come from this block and its neighbours, in order. The mask is
    True at keys outside the window and at padding.

    Args:
        x: sequence [B, H, T, K] of T positions for a batch of B examples, used for T and the device.
        size: number of positions in a block.
        neighbours: number of neighbouring blocks before and after each block.
        window: numbers of positions ``(before, after)`` in the window.
        key_padding_mask: mask [B, T], True at padding (default: None, no padding).

    Returns:
        The mask [1 or B, 1, blocks, size, m], with m = size * (1 + number of neighbours) keys per block.
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
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float = 0.0, bias: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """Compute softmax attention to a subset of the keys, and also return the log-sum-exp of the logits.

    :func:`merge_parts` combines the results for several subsets into attention to all keys.

    Args:
        q: queries [.., T, K], already scaled by K^-0.5: T queries of width K.
        k: keys [.., S, K]: the S keys of the subset.
        v: values, with the same shape as ``k``.
        mask: mask that broadcasts to [.., T, S], True at masked keys.
        dropout: dropout probability of the attention weights (default: 0).
        bias: bias term added to the logits, broadcastable to [.., T, S] (default: None, no bias).

    Returns:
        - output [.., T, K], normalized over this subset.
        - log-sum-exp [.., T, 1] of the logits.

        Both are in float32 (float64 for float64 inputs).
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        logits = q.to(dtype) @ k.to(dtype).transpose(-2, -1)
        logits = logits if bias is None else logits + bias
        logits = logits.masked_fill(mask, torch.finfo(dtype).min)
        largest = logits.detach().amax(dim=-1, keepdim=True)
        # On a CPU, an exponential that underflows to 0 takes ten times as long as one that is 1e-22.
        weights = (logits - largest).clamp(min=-MAX_PENALTY).exp().masked_fill(mask, 0.0)
        total = weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(dtype).tiny)
        return F.dropout(weights / total, dropout) @ v.to(dtype), largest + total.log()


def merge_parts(outputs: Tensor, log_sums: Tensor) -> Tensor:
    """Combine softmax attention to disjoint subsets of the keys into softmax attention to all keys.

    The outputs of the subsets are averaged, weighted by exp(log-sum-exp) of their logits.

    Args:
        outputs: attention outputs [parts, .., T, K] of the subsets: T queries of width K.
        log_sums: log-sum-exp [parts, .., T, 1] of the logits of each subset.

    Returns:
        The output [.., T, K].
    """
    return (outputs * log_sums.softmax(dim=0)).sum(dim=0)
