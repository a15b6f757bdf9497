"""Sparse Sinkhorn attention (Tay et al., 2020): attention to the own block and one block chosen by sorting.

The sequence is divided into blocks of b positions. A position in block i attends to its own block and to
the b keys k' and values v' of a sorted block. Sorted key s is a weighted mean of the keys at index s of all
blocks j. The total weight a multiplies the attention weight of the sorted key::

    k'_is = sum_j R_ij k_js / a_is    with a_is = sum_j R_ij    (v'_is likewise)

The sums cover the blocks that have a token at index s, because the last block may be shorter. The matrix R is
close to a permutation of the blocks::

    R = Sinkhorn(F(x'))

x' is the mean embedding of each block, and F is a small network with one output per possible block. Sinkhorn
divides the logits by a temperature, applies the exponential function, and normalizes rows and columns in
turn. During training, Gumbel noise is added to the logits.

In causal attention, R_ij is 0 unless block j is earlier than block i. x' is then the mean of all positions up
to the first position of the block. Each entry is divided by the running sum of its column if the sum exceeds
1. A division by smaller sums would always choose the previous block, which is the first entry of its column.
The paper uses sums of embeddings for x'. Means are used here because they do not grow with the length.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.ops.attention import disable_autocast, naive_softmax_weights
from luna_fairseq.ops.blocks import block_attention, from_blocks, to_blocks
from luna_fairseq.peers.attention import BIDIRECTIONAL, CAUSAL, Parts, PeerAttention, materialize_padding
from luna_fairseq.peers.feature_maps import mask_features


class SinkhornAttention(PeerAttention):
    """Sparse Sinkhorn attention (Tay et al., 2020): each block attends to itself and to one other block.

    A learned, approximate sorting of the blocks, computed from the input x [B, 1, T, C], selects this block.
    """

    name = "sinkhorn"
    roles = (BIDIRECTIONAL, CAUSAL)
    needs_left_alignment = True

    def build(self, options: Any) -> None:
        self.size, self.iterations = options.sinkhorn_block, options.sinkhorn_iterations
        self.temperature = options.sinkhorn_temperature
        self.max_blocks = -(-self.max_positions // self.size)
        self.sort = nn.Sequential(
            nn.Linear(self.embed_dim, self.embed_dim),
            nn.ReLU(),
            nn.Linear(self.embed_dim, self.num_heads * self.max_blocks),
        )

    def project(self, x: Tensor) -> Parts:
        return (*super().project(x), x.transpose(0, 1).unsqueeze(1))

    def summarize_blocks(self, x: Tensor, real: Tensor) -> Tensor:
        """Compute the mean embedding [B, blocks, C] of each block of positions, without padding.

        x is the input [B, 1, T, C]. ``real`` [B, 1, T, 1] is 1 at tokens and 0 at padding. In causal
        attention, the mean of a block covers all positions up to the first position of the block.
        """
        x = torch.cat([x * real, real], dim=-1)
        if self.role == CAUSAL:
            sums = x.cumsum(dim=2)[:, 0, :: self.size]
        else:
            sums = to_blocks(x, self.size).sum(dim=3).squeeze(1)
        return sums[..., :-1] / sums[..., -1:].clamp(min=1)

    def compute_permutation(self, x: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
        """Compute a matrix R [B, H, blocks, blocks] that sorts the blocks and is close to a permutation.

        x is the input [B, 1, T, C]. R is in float32 or float64.
        """
        self.check_length(x.size(2))
        dtype, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))
        real = mask_features(torch.ones_like(x[..., :1]), padding_mask)
        blocks = self.sort(self.summarize_blocks(x, real).to(dtype)).to(x.dtype)
        n = blocks.size(1)
        logits = blocks.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)[..., :n]  # [B, H, blocks, blocks]
        if self.training:
            logits = logits - torch.empty_like(logits).exponential_().clamp(min=1e-9).log()
        has_tokens = to_blocks(real, self.size).amax(dim=3).squeeze(-1).bool()  # [B, 1, blocks]
        allowed = has_tokens.unsqueeze(-1) & has_tokens.unsqueeze(-2)
        if self.role == CAUSAL:
            allowed = allowed & torch.ones(n, n, dtype=torch.bool, device=x.device).tril(-1)
        return self.normalize_rows_and_columns(logits / self.temperature, allowed)

    def normalize_rows_and_columns(self, logits: Tensor, allowed: Tensor) -> Tensor:
        """Apply Sinkhorn normalization to logits [B, H, blocks, blocks], already divided by the temperature.

        Rows and columns of exp(logits) are normalized in turn. The result is 0 where ``allowed`` is False. In
        causal attention, the sum of a row is at most 1.
        """
        least = torch.finfo(logits.dtype).min / 4
        logits = logits.masked_fill(~allowed, least)
        for _ in range(self.iterations):
            logits = (logits - logits.logsumexp(dim=-1, keepdim=True)).masked_fill(~allowed, least)
            if self.role == CAUSAL:
                total = logits.logcumsumexp(dim=-2).clamp(min=0.0)
            else:
                total = logits.logsumexp(dim=-2, keepdim=True)
            logits = (logits - total).masked_fill(~allowed, least)
        return logits.exp().masked_fill(~allowed, 0.0)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        R = self.compute_permutation(x, padding_mask)
        real, own_mask = self.find_tokens(q, padding_mask)
        queries, *parts = (to_blocks(mask_features(y, padding_mask), self.size) for y in (q, k, v))
        with disable_autocast(q.device):
            share = R @ real.to(R.dtype)  # [B, H, blocks, b]
            least = torch.finfo(share.dtype).tiny ** 0.5
            share, is_missing = share.clamp(min=least), (share < least).unsqueeze(-2)
            keys, values = (torch.cat([y, sort_blocks(R, y, share)], dim=3) for y in parts)
            bias = torch.cat([torch.zeros_like(share), share.log()], dim=-1).unsqueeze(-2)
        own_mask = own_mask.expand(q.size(0), self.num_heads, -1, -1, -1)
        mask = torch.cat([own_mask, is_missing.expand_as(own_mask)], dim=-1)
        return from_blocks(block_attention(queries, keys, values, mask, self.dropout, bias), q.size(2))

    def find_tokens(self, q: Tensor, padding_mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """Return the tokens of each block, and the mask of a block's attention to itself.

        The first result [B, 1, blocks, b] is False at padding and beyond the end of the sequence. The mask
        [B, 1, blocks, b, b] is True at keys that a query must not attend to. Only the shape and the device of
        q [B, H, T, K] are used.
        """
        padding = materialize_padding(padding_mask, q)[:, None, :, None]
        padding = to_blocks(padding, self.size, True).squeeze(-1)
        mask = padding.unsqueeze(-2).expand(-1, -1, -1, self.size, -1)
        if self.role == CAUSAL:
            mask = mask | torch.ones(self.size, self.size, dtype=torch.bool, device=q.device).triu(1)
        return ~padding, mask

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        R, outputs = self.compute_permutation(x, padding_mask), []
        real, own_mask = self.find_tokens(q, padding_mask)
        k, v = (to_blocks(mask_features(y, padding_mask), self.size) for y in (k, v))
        for i, block in enumerate(q.split(self.size, dim=2)):
            weights = R[:, :, i, :, None] * real  # [B, H, blocks, b]
            share = weights.sum(dim=2, keepdim=True)
            weights = weights / share.clamp(min=1e-30)
            keys, values = (
                torch.cat([y[:, :, i], torch.einsum("bhjs,bhjsk->bhsk", weights, y)], dim=2) for y in (k, v)
            )
            mask = own_mask[:, :, i, : block.size(2)].expand(*block.shape[:3], -1)
            mask = torch.cat([mask, (share == 0).expand_as(mask)], dim=-1)
            bias = torch.cat([torch.zeros_like(share), share.clamp(min=1e-30).log()], dim=-1)
            outputs.append(naive_softmax_weights(block, keys, mask, bias) @ values)
        return torch.cat(outputs, dim=2)


def sort_blocks(R: Tensor, x: Tensor, share: Tensor) -> Tensor:
    """Compute the sorted blocks ``sum_j R_ij x_j / share_i`` of blocks x [B, H, blocks, b, K].

    The matrix R [B, H, blocks, blocks] and ``share`` [B, H, blocks, b] are in float32 or float64. The result
    has the dtype of x.
    """
    blocks = R @ x.to(R.dtype).flatten(3)
    return (blocks.unflatten(3, x.shape[3:]) / share.unsqueeze(-1)).to(x.dtype)
