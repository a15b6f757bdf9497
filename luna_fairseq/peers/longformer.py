"""Longformer (Beltagy et al., 2020): a sliding window combined with global tokens.

Query i attends to the keys j with |i - j| <= w/2, where w is the window width. It also attends to the first g
tokens, the global tokens. A global token attends to all tokens, with separate query, key and value
projections. The paper's language model has no global tokens; use causal ``local`` attention for such a model.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import naive_softmax_weights, softmax_attention
from luna_fairseq.ops.blocks import GlobalKeys, windowed_attention
from luna_fairseq.peers.attention import BIDIRECTIONAL, PeerAttention, combine_masks, materialize_padding


class LongformerAttention(PeerAttention):
    """Longformer (Beltagy et al., 2020): sliding-window attention, and global attention of the first tokens.

    In the methods, ``global_parts`` are the queries, keys and values [B, H, T, K] of global attention, which
    have separate projections. Without global tokens, ``global_parts`` is empty.
    """

    name = "longformer"
    roles = (BIDIRECTIONAL,)
    needs_left_alignment = True
    projections: Tuple[str, ...] = ("q", "k", "v", "global_q", "global_k", "global_v")

    def build(self, options: Any) -> None:
        if options.longformer_window % 2:
            raise InputError(
                f"Expected --longformer-window to be even, got {options.longformer_window}. Use another "
                "number."
            )
        self.half, self.tokens = options.longformer_window // 2, options.longformer_global_tokens
        if not self.tokens:
            for name in self.projections[3:]:  # a parameter without gradient breaks DDP
                delattr(self, f"{name}_proj")
            self.projections = self.projections[:3]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *global_parts: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        T, g = q.size(2), min(self.tokens, q.size(2))
        global_keys = None
        if g:
            positions = torch.arange(T, device=q.device)[:, None]
            in_window = (positions - positions[:g].t()).abs() <= self.half
            attention_mask = in_window | materialize_padding(padding_mask, q)[:, None, None, :g]
            global_keys = GlobalKeys(k[:, :, :g], v[:, :, :g], attention_mask)
        output = windowed_attention(q, k, v, self.half, self.half, padding_mask, self.dropout, global_keys)
        if not g:
            return output
        q, k, v = global_parts
        global_output = softmax_attention(q[:, :, :g], k, v, combine_masks(padding_mask), self.dropout)
        return torch.cat([global_output, output[:, :, g:]], dim=2)

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, *global_parts: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        positions = torch.arange(q.size(2), device=q.device)
        unseen = ((positions[:, None] - positions).abs() > self.half) & (positions >= self.tokens)
        output = naive_softmax_weights(q, k, combine_masks(padding_mask, unseen)) @ v
        if not global_parts:
            return output
        q, k, v = global_parts
        global_output = naive_softmax_weights(q, k, combine_masks(padding_mask)) @ v
        return torch.where(positions[:, None] < self.tokens, global_output, output)
