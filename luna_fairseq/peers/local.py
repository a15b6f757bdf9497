"""Local attention: softmax attention within a window around each position, or within blocks.

Window w: i sees j with |i - j| <= w, in causal attention j from i - w to i. Blocks of w: i sees the positions
of its own block (``floor(i / w) = floor(j / w)``), which is the Local of Long Range Arena.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.blocks import block_attention, from_blocks, to_blocks, windowed_attention
from luna_fairseq.ops.masked_softmax import naive_softmax_weights
from luna_fairseq.ops.softmax import softmax_attention
from luna_fairseq.peers.attention import (
    BIDIRECTIONAL,
    CAUSAL,
    Parts,
    PeerAttention,
    State,
    excluded_keys,
    given_padding,
)


class LocalAttention(PeerAttention):
    """The state of decoding is the keys and values of the last positions, as many as the window has."""

    name = "local"
    forms = (BIDIRECTIONAL, CAUSAL)

    def build(self, options: Any) -> None:
        self.window, self.kind = options.local_window, options.local_kind
        self.from_start = self.kind == "blocks"

    def left_out(self, i: Tensor, j: Tensor) -> Tensor:
        """True where place i does not see place j."""
        far = i // self.window != j // self.window if self.kind == "blocks" else (i - j).abs() > self.window
        return far | (j > i) if self.form == CAUSAL else far

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        T, after = q.size(2), 0 if self.form == CAUSAL else self.window
        if self.kind == "window":
            return windowed_attention(q, k, v, self.window, after, padding, self.dropout)
        size = min(self.window, T)
        places = torch.arange(size, device=q.device)
        padded = to_blocks(given_padding(padding, q)[:, None, :, None], size, True).transpose(-2, -1)
        excluded = padded | self.left_out(places[:, None], places)
        q, k, v = (to_blocks(x, size) for x in (q, k, v))
        return from_blocks(block_attention(q, k, v, excluded, self.dropout), T)

    def go_on(self, parts: Parts, padding: Optional[Tensor], state: Optional[State]) -> Tuple[Tensor, State]:
        q, k, v = parts
        real = (~given_padding(padding, q)).long()
        places = real.cumsum(dim=1) - 1
        if state is not None:
            k, v = torch.cat([state["k"], k], dim=2), torch.cat([state["v"], v], dim=2)
            places = torch.cat([state["places"], places + state["count"]], dim=1)
            real = torch.cat([state["real"], real], dim=1)
        excluded = self.left_out(places[:, -q.size(2) :, None], places[:, None, :]) | real[:, None, :].eq(0)
        output = softmax_attention(q, k, v, excluded.unsqueeze(1), self.dropout)
        last = slice(-self.window, None)
        return output, {
            "k": k[:, :, last],
            "v": v[:, :, last],
            "places": places[:, last],
            "real": real[:, last],
            "count": places[:, -1:] + 1,
        }

    def define(self, q: Tensor, k: Tensor, v: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        places = torch.arange(q.size(2), device=q.device)
        excluded = excluded_keys(padding, self.left_out(places[:, None], places))
        return naive_softmax_weights(q, k, excluded) @ v
