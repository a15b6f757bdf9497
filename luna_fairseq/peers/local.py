"""Local attention: softmax attention within a sliding window or within blocks.

With a window w, query i attends to keys j with |i - j| <= w or, in causal attention, with i - w <= j <= i.
With blocks of w tokens, a query attends to the keys of its own block. Block attention is the
"Local Attention" of Long Range Arena.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.attention import naive_softmax_weights, softmax_attention
from luna_fairseq.ops.blocks import block_attention, from_blocks, to_blocks, windowed_attention
from luna_fairseq.peers.attention import (
    BIDIRECTIONAL,
    CAUSAL,
    Parts,
    PeerAttention,
    State,
    combine_masks,
    materialize_padding,
)


class LocalAttention(PeerAttention):
    """Local attention: softmax attention within a sliding window or within fixed blocks.

    If ``options.local_kind`` is "window", queries attend to keys at most w = ``options.local_window``
    positions away. If it is "blocks", they attend to the keys of their own block of w positions.
    """

    name = "local"
    roles = (BIDIRECTIONAL, CAUSAL)

    def build(self, options: Any) -> None:
        self.window, self.kind = options.local_window, options.local_kind
        self.needs_left_alignment = self.kind == "blocks"

    def mask_pairs(self, i: Tensor, j: Tensor) -> Tensor:
        """Return a mask, True at keys that a query must not attend to: distant and, if causal, later keys.

        The shapes of the query positions i and key positions j must broadcast, such as [T, 1] and [S].
        """
        far = i // self.window != j // self.window if self.kind == "blocks" else (i - j).abs() > self.window
        return far | (j > i) if self.role == CAUSAL else far

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        T, after = q.size(2), 0 if self.role == CAUSAL else self.window
        if self.kind == "window":
            return windowed_attention(q, k, v, self.window, after, padding_mask, self.dropout)
        size = min(self.window, T)
        positions = torch.arange(size, device=q.device)
        padded = materialize_padding(padding_mask, q)[:, None, :, None]
        padded_keys = to_blocks(padded, size, True).transpose(-2, -1)
        attention_mask = padded_keys | self.mask_pairs(positions[:, None], positions)
        q, k, v = (to_blocks(x, size) for x in (q, k, v))
        return from_blocks(block_attention(q, k, v, attention_mask, self.dropout), T)

    def attend_incrementally(
        self, parts: Parts, padding_mask: Optional[Tensor], state: Optional[State]
    ) -> Tuple[Tensor, State]:
        """Compute causal attention for T new positions, given the state after all earlier positions.

        For the last w positions (the window or block size), the state holds keys ``k`` and values ``v``
        [B, H, w, K], token positions ``positions`` [B, w], and a mask ``real`` [B, w], 0 at padding.
        ``count`` [B, 1] is the number of tokens so far. Return the output [B, H, T, K] and the new state.
        """
        q, k, v = parts
        real = (~materialize_padding(padding_mask, q)).long()
        positions = real.cumsum(dim=1) - 1
        if state is not None:
            k, v = torch.cat([state["k"], k], dim=2), torch.cat([state["v"], v], dim=2)
            positions = torch.cat([state["positions"], positions + state["count"]], dim=1)
            real = torch.cat([state["real"], real], dim=1)
        attention_mask = self.mask_pairs(positions[:, -q.size(2) :, None], positions[:, None, :])
        attention_mask = attention_mask | real[:, None, :].eq(0)
        output = softmax_attention(q, k, v, attention_mask.unsqueeze(1), self.dropout)
        last = slice(-self.window, None)
        return output, {
            "k": k[:, :, last],
            "v": v[:, :, last],
            "positions": positions[:, last],
            "real": real[:, last],
            "count": positions[:, -1:] + 1,
        }

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        positions = torch.arange(q.size(2), device=q.device)
        attention_mask = combine_masks(padding_mask, self.mask_pairs(positions[:, None], positions))
        return naive_softmax_weights(q, k, attention_mask) @ v
