"""Sparse Sinkhorn attention (Tay et al., 2020): attention to the own block and one block chosen by sorting.

The sequence is divided into blocks of b positions. A position in block i attends to its own block and to the
sorted block ``sum_j R_ij block_j``. The matrix R is close to a permutation of the blocks::

    R = Sinkhorn(F(x'))

x' is the mean embedding of each block, and F is a small network with one output per possible block. Sinkhorn
divides the logits by a temperature, applies the exponential function, and normalizes rows and columns in
turn. During training, Gumbel noise is added to the logits.

In causal attention, R_ij is 0 unless block j is earlier than block i. x' is then the mean of all positions up
to the first position of the block. Each column is divided by the running sum of its entries. The paper uses
sums of embeddings for x'. Means are used here because they do not grow with the length.
"""

from typing import Any, Optional

import torch
from torch import Tensor, nn

from luna_fairseq.ops.attention import naive_softmax_weights
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

        Rows and columns of exp(logits) are normalized in turn. The result is 0 where ``allowed`` is False.
        """
        least = torch.finfo(logits.dtype).min / 4
        logits = logits.masked_fill(~allowed, least)
        for _ in range(self.iterations):
            logits = (logits - logits.logsumexp(dim=-1, keepdim=True)).masked_fill(~allowed, least)
            if self.role == CAUSAL:
                total = logits.logcumsumexp(dim=-2)
            else:
                total = logits.logsumexp(dim=-2, keepdim=True)
            logits = (logits - total).masked_fill(~allowed, least)
        return logits.exp().masked_fill(~allowed, 0.0)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        R = self.compute_permutation(x, padding_mask).to(k.dtype)
        queries, keys, values = (to_blocks(mask_features(y, padding_mask), self.size) for y in (q, k, v))
        keys, values = (
            torch.cat([y, (R @ y.flatten(3)).unflatten(3, y.shape[3:])], dim=3) for y in (keys, values)
        )
        output = block_attention(queries, keys, values, self.mask_pairs(q, padding_mask), self.dropout)
        return from_blocks(output, q.size(2))

    def mask_pairs(self, q: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
        """Return a mask [B, 1, blocks, b, 2 b] that is True at keys that a query must not attend to.

        The keys are in the query's own block of b positions, and in the block sorted to its position. Only
        the shape and device of q [B, H, T, K] are used.
        """
        padded = materialize_padding(padding_mask, q)[:, None, :, None]
        own = to_blocks(padded, self.size, True).transpose(-2, -1)
        # A sorted position is padding if this position of every block is padding. Padding is on the right, so
        # it suffices to check the first block.
        other = own[:, :, :1].expand_as(own)
        own, other = (y.expand(-1, -1, -1, self.size, -1) for y in (own, other))
        if self.role == CAUSAL:
            own = own | torch.ones(self.size, self.size, dtype=torch.bool, device=q.device).triu(1)
            blocks = torch.arange(own.size(2), device=q.device)
            other = other | (blocks == 0)[:, None, None]  # no block is earlier than the first
        return torch.cat([own, other], dim=-1)

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        R, outputs = self.compute_permutation(x, padding_mask), []
        k, v = (mask_features(y, padding_mask) for y in (k, v))
        attention_mask = self.mask_pairs(q, padding_mask)
        for i, block in enumerate(q.split(self.size, dim=2)):
            seen = []
            for whole in (k, v):
                blocks = to_blocks(whole, self.size)
                other = torch.einsum("bhj,bhjsk->bhsk", R[:, :, i], blocks)
                seen.append(torch.cat([blocks[:, :, i], other], dim=2))
            block_mask = attention_mask[:, :, i, : block.size(2)]
            outputs.append(naive_softmax_weights(block, seen[0], block_mask) @ seen[1])
        return torch.cat(outputs, dim=2)
