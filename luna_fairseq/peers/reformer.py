"""LSH attention of the Reformer (Kitaev et al., 2020): softmax attention within buckets of a hash function.

Queries and keys share one projection; the keys are normalized to length 1. A hash function assigns each
position to a bucket, ``h(x) = argmax([x R; -x R])`` with a random matrix R. A position attends to the nearest
positions in its bucket: ``chunk`` positions on each side, or only on the left in causal attention. It attends
to itself only if there is no other position to attend to.

Several rounds of hashing use different matrices R. One softmax covers the keys of all rounds. A key that
occurs in several rounds counts once (the paper's correction by log N).

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

    The hash functions are resampled at each update. After the positions are sorted by bucket, the keys of a
    query lie in a window around the query. See :class:`PeerAttention` for the constructor arguments.
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
        """Assign the positions to buckets in each round of hashing. Padding has its own bucket.

        Args:
            qk: shared queries and keys [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            padding_mask: mask [B, T], True at padding (None if there is no padding).

        Returns:
            - bucket [B, H, rounds, T] of each position.
            - order [B, H, rounds, T], the positions sorted by bucket.
        """
        rotated = torch.einsum("bhtk,rhkd->bhrtd", qk.detach(), self.rotations.values.to(qk.dtype))
        buckets = torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1)
        buckets = torch.zeros_like(buckets) if self.buckets == 1 else buckets
        if padding_mask is not None:
            buckets = buckets.masked_fill(padding_mask[:, None, None, :], self.buckets)
        return buckets, buckets.argsort(dim=-1, stable=True)

    def visible_mask(self, distance: Tensor) -> Tensor:
        """Return a mask that is True if a key is close to its query, and not later in causal attention.

        Args:
            distance: position of the key minus position of the query, counted within their bucket.

        Returns:
            A mask with the same shape as ``distance``.
        """
        return (distance >= -self.chunk) & (distance <= (0 if self.form == CAUSAL else self.chunk))

    def attend(self, qk: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        """Compute window attention on the sorted positions of each hashing round, and merge the rounds.

        Overrides :meth:`PeerAttention.attend`.

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

        Args:
            qk: shared queries and keys [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            v: values, with the same shape as ``qk``.
            codes: code [B, H, rounds, T] of each position in every round. The difference between two codes is
                the distance between the positions within a bucket; see :meth:`compute_distances`.
            order: positions sorted by bucket in this round [B, H, T].
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
        """Compute the distances from the queries of each block to the keys of the block and its neighbours.

        Args:
            codes: codes [B, H, T] of T positions, for batch size B and H heads. The difference between two
                codes is the distance within a bucket, or exceeds the window if the buckets differ.
            neighbours: number of neighbouring blocks before and after each block.

        Returns:
            Distances [B, H, blocks, chunk, keys] for blocks of ``chunk`` queries. Keys beyond the ends of the
            sequence have distances outside the window.
        """
        nowhere = -self.chunk - 1
        blocks = to_blocks(codes.int().unsqueeze(3), self.chunk, nowhere)
        keys = append_neighbours(blocks, *neighbours, nowhere)
        return keys.transpose(3, 4).contiguous() - blocks

    def attend_naively(self, qk: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        """Compute the output of :meth:`attend` with a full pairwise mask, as a reference for tests.

        Overrides :meth:`PeerAttention.attend_naively`.

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
