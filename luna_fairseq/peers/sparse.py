"""Strided attention of the Sparse Transformer (Child et al., 2019).

With stride l, query i attends to two kinds of keys j: the l positions on each side (in causal attention, only
on the left) and all positions at a distance that is a multiple of l::

    |i - j| <= l  or  (i - j) mod l = 0

A single softmax covers both kinds of keys (the paper's "merged" heads). If l is close to the square root of
the length n, there are about n sqrt(n) weights instead of n^2.
"""

from typing import Any, Optional

import torch
from torch import Tensor

from luna_fairseq.ops.attention import naive_softmax_weights
from luna_fairseq.ops.blocks import (
    append_neighbours,
    from_blocks,
    make_window_mask,
    merge_parts,
    partial_attention,
    to_blocks,
)
from luna_fairseq.peers.attention import BIDIRECTIONAL, CAUSAL, PeerAttention, combine_masks


class SparseAttention(PeerAttention):
    """Strided attention of the Sparse Transformer (Child et al., 2019): a window, and every l-th key."""

    name = "sparse"
    roles = (BIDIRECTIONAL, CAUSAL)

    def build(self, options: Any) -> None:
        self.stride = options.sparse_stride

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        """Compute attention to the local window and to the strided keys separately, and merge the results.

        The sequence is split into blocks of l positions. The window of a query lies in its own and the
        neighbouring blocks. The strided keys have the same index within their blocks as the query. Strided
        keys in the window's blocks are masked, because the window already contains them.
        """
        size, after = self.stride, 0 if self.role == CAUSAL else 1
        attention_mask = make_window_mask(q, size, (1, after), (size, after * size), padding_mask)
        queries, keys, values = (to_blocks(x, size) for x in (q * self.head_dim**-0.5, k, v))
        near_keys, near_values = (append_neighbours(x, 1, after) for x in (keys, values))
        near = partial_attention(queries, near_keys, near_values, attention_mask, self.dropout)
        # Nothing in a block lies outside this window, so only padding is masked.
        attention_mask = make_window_mask(q, size, (0, 0), (size, size), padding_mask)
        attention_mask = attention_mask[..., :1, :].permute(0, 1, 4, 3, 2)
        blocks = torch.arange(keys.size(2), device=q.device)
        distance = blocks - blocks[:, None]
        attention_mask = attention_mask | (distance.abs() <= 1)
        if self.role == CAUSAL:
            attention_mask = attention_mask | (distance > 0)
        queries, keys, values = (x.transpose(2, 3) for x in (queries, keys, values))
        far = partial_attention(queries, keys, values, attention_mask, self.dropout)
        outputs, totals = (torch.stack([x, y.transpose(2, 3)]) for x, y in zip(near, far))
        return from_blocks(merge_parts(outputs, totals), q.size(2)).to(q.dtype)

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        positions = torch.arange(q.size(2), device=q.device)
        distance = positions - positions[:, None]
        attention_mask = (distance.abs() > self.stride) & (distance % self.stride != 0)
        if self.role == CAUSAL:
            attention_mask = attention_mask | (distance > 0)
        return naive_softmax_weights(q, k, combine_masks(padding_mask, attention_mask)) @ v
