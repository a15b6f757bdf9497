"""BigBird (Zaheer et al., 2020), variant ITC: window, global and random attention between blocks.

The sequence is divided into blocks of consecutive positions. Each block attends to itself, its two
neighbours, the first g blocks (global blocks), and r random blocks. The global blocks attend to all
positions.

Each layer has a fixed random score for each pair of blocks. A block attends to the r blocks with the highest
scores in the same sentence. The choice therefore does not depend on the other sentences of the batch.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.attention import naive_softmax_weights, softmax_attention
from luna_fairseq.ops.blocks import block_attention, from_blocks, to_blocks
from luna_fairseq.peers.attention import BIDIRECTIONAL, PeerAttention, combine_masks, materialize_padding


class BigBirdAttention(PeerAttention):
    """BigBird (Zaheer et al., 2020): block-sparse attention with window, global and random blocks."""

    name = "bigbird"
    roles = (BIDIRECTIONAL,)
    needs_left_alignment = True

    def build(self, options: Any) -> None:
        self.size, self.first = options.bigbird_block, options.bigbird_global_blocks
        self.random = options.bigbird_random_blocks
        self.register_buffer("seed", torch.randint(2**31, ()))

    def block_preferences(self, blocks: int, device: torch.device) -> Tensor:
        """Return fixed random scores [blocks, blocks] of all (query block, key block) pairs, 0 or larger.

        A query block attends to the key blocks with the highest scores. The score of a pair depends only on
        the seed and the indices of the two blocks. The scores of a query block differ from each other.
        """
        block = torch.arange(blocks, device=device)
        return hash_integers(hash_integers(hash_integers(self.seed) + block)[:, None] + block)

    def choose_blocks(self, padding_mask: Tensor) -> Tuple[Tensor, Tensor]:
        """Choose the m key blocks that each query block attends to: window, global and random blocks.

        Return the key block indices [B, blocks, m], and a mask of the same shape, True at entries to ignore:
        blocks beyond the ends of the sequence, random blocks of padding only, and repeated blocks.
        """
        padding_blocks = to_blocks(padding_mask[:, None, :, None], self.size, True)
        empty = padding_blocks.all(dim=3).flatten(1)  # [B, blocks]
        B, n = empty.shape
        block = torch.arange(n, device=padding_mask.device)
        near = block[:, None] + torch.arange(-1, 2, device=padding_mask.device)  # [blocks, 3]
        first = block[: self.first].expand(n, -1)
        fixed = torch.cat([near, first], dim=1)
        unused = torch.cat([(near < self.first) | (near >= n), first < 0], dim=1)
        taken = ((block[:, None] - block).abs() <= 1) | (block < self.first) | empty[:, None, :]
        preferences = self.block_preferences(n, padding_mask.device).masked_fill(taken, -1)
        best, chosen = preferences.topk(min(self.random, n), dim=-1)
        seen = torch.cat([fixed.clamp(0, n - 1).expand(B, -1, -1), chosen], dim=2)
        return seen, torch.cat([unused.expand(B, -1, -1), best < 0], dim=2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        T = q.size(2)
        key_mask = combine_masks(padding_mask)
        padding_mask = materialize_padding(padding_mask, q)
        seen, unused = self.choose_blocks(padding_mask)
        masked = gather_blocks(to_blocks(padding_mask[:, None, :, None], self.size, True), seen).squeeze(-1)
        attention_mask = masked.unsqueeze(3) | unused.repeat_interleave(self.size, dim=2)[:, None, :, None, :]
        keys, values = (gather_blocks(to_blocks(x, self.size), seen) for x in (k, v))
        output = block_attention(to_blocks(q, self.size), keys, values, attention_mask, self.dropout)
        output = from_blocks(output, T)
        g = min(self.first * self.size, T)  # number of global tokens
        if not g:
            return output
        global_output = softmax_attention(q[:, :, :g], k, v, key_mask, self.dropout)
        return torch.cat([global_output, output[:, :, g:]], dim=2)

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        T, padding_mask = q.size(2), materialize_padding(padding_mask, q)
        seen, unused = self.choose_blocks(padding_mask)
        sees = seen.new_zeros(*seen.shape[:2], seen.size(1)).scatter_add_(2, seen, (~unused).long())
        sees[:, : self.first] = 1
        sees = sees.repeat_interleave(self.size, dim=1).repeat_interleave(self.size, dim=2)[:, :T, :T].bool()
        return naive_softmax_weights(q, k, combine_masks(padding_mask, ~sees.unsqueeze(1))) @ v


def hash_integers(x: Tensor) -> Tensor:
    """Map the low 32 bits of integers one-to-one to pseudo-random integers from 0 to 2^32 - 1."""
    x = x & 0xFFFFFFFF
    for _ in range(2):
        x = ((x >> 16) ^ x) * 0x45D9F3B & 0xFFFFFFFF
    return (x >> 16) ^ x


def gather_blocks(x: Tensor, chosen: Tensor) -> Tensor:
    """Gather the m key blocks of each query block from all n key blocks x [B, H, n, size, K].

    ``chosen`` [B, n, m] holds the indices of the key blocks. The result is [B, H, n, m * size, K].
    """
    B, H, _, size, K = x.shape
    index = chosen.flatten(1)[:, None, :, None, None].expand(-1, H, -1, size, K)
    return x.gather(2, index).unflatten(2, chosen.shape[1:]).flatten(3, 4)
