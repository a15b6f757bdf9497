"""BigBird (Zaheer et al., 2020), ITC: window, global and random attention, all by blocks.

A block sees itself and its two neighbours, the first g blocks, and r random others; the first g blocks see
everything. The random blocks are drawn once for each layer, and a block's do not depend on the other
sentences: they are the r most preferred of those that the sentence has.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.blocks import block_attention, from_blocks, to_blocks
from luna_fairseq.ops.masked_softmax import naive_softmax_weights
from luna_fairseq.ops.softmax import softmax_attention
from luna_fairseq.peers.attention import BIDIRECTIONAL, PeerAttention, excluded_keys, given_padding


class BigBirdAttention(PeerAttention):
    """Keys and values of the blocks that a block sees are laid side by side."""

    name = "bigbird"
    forms = (BIDIRECTIONAL,)
    from_start = True

    def build(self, options: Any) -> None:
        self.size, self.first = options.bigbird_block, options.bigbird_global_blocks
        self.random = options.bigbird_random_blocks
        self.register_buffer("seed", torch.randint(2**31, ()))

    def preferences(self, blocks: int, device: torch.device) -> Tensor:
        """How much each block prefers each other [blocks, blocks], 0 to 1, the same for every length."""
        generator = torch.Generator().manual_seed(int(self.seed))
        longest = max(blocks, -(-self.max_positions // self.size))
        return torch.rand(longest, longest, generator=generator)[:blocks, :blocks].to(device)

    def seen_blocks(self, padding: Tensor) -> Tuple[Tensor, Tensor]:
        """The blocks that each block sees [B, blocks, m], and which of these entries are to be left out."""
        empty = to_blocks(padding[:, None, :, None], self.size, True).all(dim=3).flatten(1)  # [B, blocks]
        B, n = empty.shape
        block = torch.arange(n, device=padding.device)
        near = block[:, None] + torch.arange(-1, 2, device=padding.device)  # [blocks, 3]
        first = block[: self.first].expand(n, -1)
        fixed = torch.cat([near, first], dim=1)
        left_out = torch.cat([(near < self.first) | (near >= n), first < 0], dim=1)
        taken = ((block[:, None] - block).abs() <= 1) | (block < self.first) | empty[:, None, :]
        preferences = self.preferences(n, padding.device).masked_fill(taken, -1.0)
        best, chosen = preferences.topk(min(self.random, n), dim=-1)
        seen = torch.cat([fixed.clamp(0, n - 1).expand(B, -1, -1), chosen], dim=2)
        return seen, torch.cat([left_out.expand(B, -1, -1), best < 0], dim=2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        T, everything, padding = q.size(2), excluded_keys(padding), given_padding(padding, q)
        seen, left_out = self.seen_blocks(padding)
        masked = take_blocks(to_blocks(padding[:, None, :, None], self.size, True), seen).squeeze(-1)
        excluded = masked.unsqueeze(3) | left_out.repeat_interleave(self.size, dim=2)[:, None, :, None, :]
        keys, values = (take_blocks(to_blocks(x, self.size), seen) for x in (k, v))
        output = block_attention(to_blocks(q, self.size), keys, values, excluded, self.dropout)
        output, g = from_blocks(output, T), min(self.first * self.size, T)
        if not g:
            return output
        seeing_all = softmax_attention(q[:, :, :g], k, v, everything, self.dropout)
        return torch.cat([seeing_all, output[:, :, g:]], dim=2)

    def define(self, q: Tensor, k: Tensor, v: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        T, padding = q.size(2), given_padding(padding, q)
        seen, left_out = self.seen_blocks(padding)
        sees = seen.new_zeros(*seen.shape[:2], seen.size(1)).scatter_add_(2, seen, (~left_out).long())
        sees[:, : self.first] = 1
        sees = sees.repeat_interleave(self.size, dim=1).repeat_interleave(self.size, dim=2)[:, :T, :T].bool()
        return naive_softmax_weights(q, k, excluded_keys(padding, ~sees.unsqueeze(1))) @ v


def take_blocks(x: Tensor, chosen: Tensor) -> Tensor:
    """x [B, H, blocks, size, K] at blocks [B, n, m]: [B, H, n, m size, K]."""
    B, H, _, size, K = x.shape
    index = chosen.flatten(1)[:, None, :, None, None].expand(-1, H, -1, size, K)
    return x.gather(2, index).unflatten(2, chosen.shape[1:]).flatten(3, 4)
