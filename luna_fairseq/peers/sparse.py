"""The strided Sparse Transformer (Child et al., 2019).

With stride l, i sees the l positions on either side of it (in causal attention those before it), and of all
others those whose distance is a multiple of l: ``|i - j| <= l or (i - j) mod l = 0``, in one softmax (the
paper's "merged" heads). With l near sqrt(n) that is n sqrt(n) weights instead of n^2.
"""

from typing import Any, Optional

import torch
from torch import Tensor

from luna_fairseq.ops.blocks import (
    from_blocks,
    merge_parts,
    outside_window,
    partial_attention,
    to_blocks,
    with_neighbours,
)
from luna_fairseq.ops.masked_softmax import naive_softmax_weights
from luna_fairseq.peers.attention import BIDIRECTIONAL, CAUSAL, PeerAttention, combine_masks


class SparseAttention(PeerAttention):
    """Blocks of l positions: the window is in three of them, strided positions are columns of all."""

    name = "sparse"
    forms = (BIDIRECTIONAL, CAUSAL)

    def build(self, options: Any) -> None:
        self.stride = options.sparse_stride

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        size, after = self.stride, 0 if self.form == CAUSAL else 1
        attention_mask = outside_window(q, size, (1, after), (size, after * size), padding_mask)
        queries, keys, values = (to_blocks(x, size) for x in (q * self.head_dim**-0.5, k, v))
        near_keys, near_values = (with_neighbours(x, 1, after) for x in (keys, values))
        near = partial_attention(queries, near_keys, near_values, attention_mask, self.dropout)
        attention_mask = outside_window(q, size, (0, 0), (size, size), padding_mask)[..., :1, :].permute(
            0, 1, 4, 3, 2
        )
        blocks = torch.arange(keys.size(2), device=q.device)
        distance = blocks - blocks[:, None]
        attention_mask = attention_mask | (distance.abs() <= 1)
        if self.form == CAUSAL:
            attention_mask = attention_mask | (distance > 0)
        queries, keys, values = (x.transpose(2, 3) for x in (queries, keys, values))
        far = partial_attention(queries, keys, values, attention_mask, self.dropout)
        outputs, totals = (torch.stack([x, y.transpose(2, 3)]) for x, y in zip(near, far))
        return from_blocks(merge_parts(outputs, totals), q.size(2)).to(q.dtype)

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        places = torch.arange(q.size(2), device=q.device)
        distance = places - places[:, None]
        attention_mask = (distance.abs() > self.stride) & (distance % self.stride != 0)
        if self.form == CAUSAL:
            attention_mask = attention_mask | (distance > 0)
        return naive_softmax_weights(q, k, combine_masks(padding_mask, attention_mask)) @ v
