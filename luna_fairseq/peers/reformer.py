"""LSH attention of the Reformer (Kitaev et al., 2020): softmax attention within buckets of a hash function.

Queries and keys share one projection. The logit of query i and key j is ``q_i . k_j / |k_j|``. A hash
function assigns each position to a bucket, ``h(x) = argmax([x R; -x R])`` with a random matrix R. Similar
vectors are likely to share a bucket. A position attends to the nearest positions of its bucket: ``chunk``
positions on each side, or only on the left in causal attention. It attends to itself only if there is no
other position to attend to.

Several rounds of hashing use different matrices R. One softmax covers the keys of all rounds. A key that is
found in N rounds counts once, because log N is subtracted from its logits.

The paper instead splits the sorted positions into chunks, whose boundaries depend on later positions. The
nearest positions of a bucket do not depend on later positions, so causal attention is exactly causal here.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.errors import InputError
from luna_fairseq.ops.blocks import append_neighbours, from_blocks, merge_parts, partial_attention, to_blocks
from luna_fairseq.ops.masked_softmax import masked_softmax
from luna_fairseq.peers.attention import BIDIRECTIONAL, CAUSAL, PeerAttention
from luna_fairseq.peers.resampling import ResampledNormal

# Bias of the logit between a position and itself.
SELF = -1e5


class ReformerAttention(PeerAttention):
    """LSH attention of the Reformer (Kitaev et al., 2020): softmax attention within buckets of a random hash.

    A hash function assigns similar queries and keys to the same bucket. Each position attends to the nearest
    positions of its bucket. To find them, the positions are sorted by bucket, which turns this pattern into a
    sliding window. The hash functions are resampled at each update. See :class:`PeerAttention` for the
    constructor arguments.
    """

    name = "reformer"
    forms = (BIDIRECTIONAL, CAUSAL)
    projections: Tuple[str, ...] = ("qk", "v")

    def build(self, options: Any) -> None:
        """Store the options, and draw the random matrices of the hash functions.

        Overrides :meth:`PeerAttention.build`.

        Args:
            options: namespace with the fields of :class:`luna_fairseq.peers.PeerOptions`; only
                ``reformer_buckets``, ``reformer_chunk`` and ``reformer_hashes`` are used.

        Raises:
            InputError: The number of buckets is odd and not 1.
        """
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

        In a round with the random matrix R, the bucket of a vector x is argmax([x R; -x R]). Padding has its
        own bucket.

        Args:
            qk: shared queries and keys [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            padding_mask: mask [B, T], True at padding (None if there is no padding).

        Returns:
            - bucket [B, H, rounds, T] of each position, an integer.
            - order [B, H, rounds, T]: the positions sorted by bucket, and in order within a bucket.
        """
        rotated = torch.einsum("bhtk,rhkd->bhrtd", qk.detach(), self.rotations.values.to(qk.dtype))
        buckets = torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1)
        buckets = torch.zeros_like(buckets) if self.buckets == 1 else buckets
        if padding_mask is not None:
            buckets = buckets.masked_fill(padding_mask[:, None, None, :], self.buckets)
        return buckets, buckets.argsort(dim=-1, stable=True)

    def visible_mask(self, distance: Tensor) -> Tensor:
        """Return a mask of the keys within the attention window of each query.

        The window covers ``chunk`` positions of the query's bucket on each side, or only on the left in
        causal attention. The distance between two positions of a bucket is the number of positions of this
        bucket from one to the other.

        Args:
            distance: signed distance from each query to each key, negative if the key is earlier. Any shape.

        Returns:
            Boolean mask with the same shape as ``distance``, True at keys that the query may attend to.
        """
        return (distance >= -self.chunk) & (distance <= (0 if self.form == CAUSAL else self.chunk))

    def attend(self, qk: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        """Compute LSH attention, softmax attention to the nearest positions of the same bucket.

        Overrides :meth:`PeerAttention.attend`. There are several rounds of hashing. Each round sorts the
        positions by bucket and computes attention within a sliding window. The results of the rounds are then
        combined into a single softmax.

        Args:
            qk: shared queries and keys [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            v: values, with the same shape as ``qk``.
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output of each head, with the same shape as ``qk``.
        """
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
        """Compute the attention of one round of hashing, on positions sorted by bucket.

        The sorted positions are split into blocks of ``chunk`` positions. The keys of a query lie in its own
        block and in the neighbouring blocks.

        Every position has an integer code in each round: its rank in the sorted order, plus its bucket times
        ``chunk + 1``. Two positions may attend to each other if their codes differ by at most ``chunk``.
        Positions of different buckets have codes that differ by more.

        Args:
            qk: shared queries and keys [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            v: values, with the same shape as ``qk``.
            codes: code [B, H, rounds, T] of each position in every round. The codes of the other rounds show
                how many rounds find the same key.
            order: positions [B, H, T] sorted by bucket in this round.
            r: index of the round.

        Returns:
            - output [B, H, T, K], in the sorted order.
            - log-sum-exp [B, H, T, 1] of the logits, in the sorted order.
        """
        neighbours = 1, 0 if self.form == CAUSAL else 1
        q, v = (x.gather(2, order.unsqueeze(3).expand(-1, -1, -1, x.size(3))) for x in (qk, v))
        queries, keys, values = (to_blocks(x, self.chunk) for x in (q, F.normalize(q, dim=-1), v))
        distances = [self.compute_distances(x.gather(2, order), neighbours) for x in codes.unbind(2)]
        visible = [self.visible_mask(distance) for distance in distances]
        rounds = torch.stack(visible).sum(dim=0, dtype=keys.dtype).clamp(min=1)
        bias = torch.where(distances[r] == 0, SELF, 0.0) - rounds.log()
        keys, values = (append_neighbours(x, *neighbours) for x in (keys, values))
        output, total = partial_attention(queries, keys, values, ~visible[r], self.dropout, bias)
        return from_blocks(output, qk.size(2)), from_blocks(total, qk.size(2))

    def compute_distances(self, codes: Tensor, neighbours: Tuple[int, int]) -> Tensor:
        """Compute ``code of the key - code of the query`` for the queries of each block and their keys.

        The keys of a block are those of the block itself and of its neighbours. The code of a position is its
        rank among the positions sorted by bucket, plus its bucket times ``chunk + 1``. Within a bucket, the
        difference of two codes is the distance between the positions. If the buckets differ, the difference
        exceeds ``chunk``, so the key lies outside the attention window.

        Args:
            codes: code [B, H, T] of each position: batch size B, H heads, and T positions in sorted order.
            neighbours: number of neighbouring blocks before and after each block.

        Returns:
            Signed distances [B, H, blocks, chunk, m] from the ``chunk`` queries of each block to its m keys.
            Keys beyond either end of the sequence lie outside the window.
        """
        nowhere = -self.chunk - 1
        blocks = to_blocks(codes.int().unsqueeze(3), self.chunk, nowhere)
        keys = append_neighbours(blocks, *neighbours, nowhere)
        return keys.transpose(3, 4).contiguous() - blocks

    def attend_naively(self, qk: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        """Compute the output of :meth:`attend` with a full pairwise mask, as a reference for tests.

        Overrides :meth:`PeerAttention.attend_naively`. A query attends to a key if they share a bucket in any
        round and the key lies within the attention window.

        Args:
            qk: shared queries and keys [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            v: values, with the same shape as ``qk``.
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output of each head, with the same shape as ``qk``.
        """
        buckets, order = self.assign_buckets(qk, padding_mask)
        slots = order.argsort(dim=-1)
        same = buckets.unsqueeze(4) == buckets.unsqueeze(3)
        visible = (same & self.visible_mask(slots.unsqueeze(3) - slots.unsqueeze(4))).any(dim=2)
        logits = qk @ F.normalize(qk, dim=-1).transpose(-2, -1)
        logits = logits + SELF * torch.eye(qk.size(2), dtype=qk.dtype, device=qk.device)
        return masked_softmax(logits, ~visible) @ v
