"""LSH attention of the Reformer (Kitaev et al., 2020): softmax attention within buckets of a hash function.

Queries and keys share one projection. The logit of query i and key j is ``q_i . k_j / |k_j|``. A hash
function assigns each position to a bucket, ``h(x) = argmax([x R; -x R])`` with a random matrix R. Similar
vectors are likely to share a bucket. A position attends to the nearest positions of its bucket: ``chunk``
positions on each side, or only on the left in causal attention. A position attends to itself only if there
is no other position to attend to.

Several rounds of hashing use different matrices R. One softmax covers the keys of all rounds. A key that is
found in N rounds counts once, because log N is subtracted from its logits.

The paper instead splits the sorted positions into chunks, whose boundaries depend on later positions. The
nearest positions of a bucket do not depend on later positions, so causal attention is exactly causal here.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.ops.attention import masked_softmax
from luna_fairseq.ops.blocks import append_neighbours, from_blocks, merge_parts, partial_attention, to_blocks
from luna_fairseq.peers.attention import BIDIRECTIONAL, CAUSAL, PeerAttention, normalize_vectors
from luna_fairseq.peers.resampling import ResampledNormal

# Bias of the logit between a position and itself.
SELF = -1e5


class ReformerAttention(PeerAttention):
    """LSH attention of the Reformer (Kitaev et al., 2020): softmax attention within buckets of a random hash.

    Positions are sorted by bucket, so that attention to the nearest positions of a bucket becomes a sliding
    window. The hash functions are resampled at each update.
    """

    name = "reformer"
    roles = (BIDIRECTIONAL, CAUSAL)
    projections: Tuple[str, ...] = ("qk", "v")

    def build(self, options: Any) -> None:
        self.buckets, self.chunk = options.reformer_buckets, options.reformer_chunk
        if self.buckets != 1 and self.buckets % 2:
            raise InputError(
                f"Expected --reformer-buckets to be even or 1, got {self.buckets}. Use another number."
            )
        self.rotations = ResampledNormal(
            (options.reformer_hashes, self.num_heads, self.head_dim, max(1, self.buckets // 2)), interval=1
        )

    def assign_buckets(self, qk: Tensor, padding_mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """Assign each position to a bucket in each round of hashing, and sort the positions by bucket.

        Return the buckets and the sorted positions, each [B, H, rounds, T]. Padding has its own bucket.
        """
        rotated = torch.einsum("bhtk,rhkd->bhrtd", qk.detach(), self.rotations.values.to(qk.dtype))
        buckets = torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1)
        buckets = torch.zeros_like(buckets) if self.buckets == 1 else buckets
        if padding_mask is not None:
            buckets = buckets.masked_fill(padding_mask[:, None, None, :], self.buckets)
        return buckets, buckets.argsort(dim=-1, stable=True)

    def visible_mask(self, distance: Tensor) -> Tensor:
        """Return a mask, True at keys at most ``chunk`` positions from the query and, if causal, not later.

        ``distance`` is the key's position minus the query's position, counted within their bucket.
        """
        return (distance >= -self.chunk) & (distance <= (0 if self.role == CAUSAL else self.chunk))

    def attend(self, qk: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        """Compute attention within the buckets of each round of hashing, with one softmax over all rounds."""
        buckets, order = self.assign_buckets(qk, padding_mask)
        slots = order.argsort(dim=-1)
        # Differences of codes are distances within a bucket. Between buckets they exceed the window.
        codes = slots + buckets * (self.chunk + 1)
        parts = [self.attend_sorted(qk, v, codes, order[:, :, r], r) for r in range(order.size(2))]
        outputs, totals = [], []
        for r, (output, total) in enumerate(parts):
            slot = slots[:, :, r, :, None]  # undoes the sorting of this round
            outputs.append(output.gather(2, slot.expand_as(output)))
            totals.append(total.gather(2, slot))
        return merge_parts(torch.stack(outputs), torch.stack(totals)).to(v.dtype)

    def attend_sorted(
        self, qk: Tensor, v: Tensor, codes: Tensor, order: Tensor, r: int
    ) -> Tuple[Tensor, Tensor]:
        """Compute the attention of hashing round r, with positions sorted by bucket and split into blocks.

        A query attends to keys in its own block and in the neighbouring blocks. ``qk`` [B, H, T, K] holds the
        vectors that are both queries and keys, and ``order`` [B, H, T] the positions in sorted order.
        ``codes`` [B, H, rounds, T] number the positions sorted in each round (:meth:`compute_distances`).

        Return the output [B, H, T, K] and the log-sum-exp [B, H, T, 1] of the logits, both in sorted order.
        """
        neighbours = 1, 0 if self.role == CAUSAL else 1
        q, v = (x.gather(2, order.unsqueeze(3).expand(-1, -1, -1, x.size(3))) for x in (qk, v))
        queries, keys, values = (to_blocks(x, self.chunk) for x in (q, normalize_vectors(q), v))
        distances = [self.compute_distances(x.gather(2, order), neighbours) for x in codes.unbind(2)]
        visible = [self.visible_mask(distance) for distance in distances]
        rounds = torch.stack(visible).sum(dim=0, dtype=keys.dtype).clamp(min=1)
        bias = torch.where(distances[r] == 0, SELF, 0.0) - rounds.log()
        keys, values = (append_neighbours(x, *neighbours) for x in (keys, values))
        output, total = partial_attention(queries, keys, values, ~visible[r], self.dropout, bias)
        return from_blocks(output, qk.size(2)), from_blocks(total, qk.size(2))

    def compute_distances(self, codes: Tensor, neighbours: Tuple[int, int]) -> Tensor:
        """Return the codes [B, H, blocks, chunk, m] of the m keys near each query, minus the query's code.

        The codes [B, H, T] number the sorted positions, with gaps between buckets. The keys are in the
        query's block, in ``neighbours[0]`` blocks before it, and in ``neighbours[1]`` blocks after it.
        """
        nowhere = -self.chunk - 1
        blocks = to_blocks(codes.int().unsqueeze(3), self.chunk, nowhere)
        keys = append_neighbours(blocks, *neighbours, nowhere)
        return keys.transpose(3, 4).contiguous() - blocks

    def attend_naively(self, qk: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        buckets, order = self.assign_buckets(qk, padding_mask)
        slots = order.argsort(dim=-1)
        same = buckets.unsqueeze(4) == buckets.unsqueeze(3)
        visible = (same & self.visible_mask(slots.unsqueeze(3) - slots.unsqueeze(4))).any(dim=2)
        logits = qk @ normalize_vectors(qk).transpose(-2, -1)
        logits = logits + SELF * torch.eye(qk.size(2), dtype=qk.dtype, device=qk.device)
        return masked_softmax(logits, ~visible) @ v
