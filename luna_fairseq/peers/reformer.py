"""Reformer's LSH attention (Kitaev et al., 2020), with one projection for queries and keys.

A position sees those that one of several hashes puts into the same bucket, ``h(x) = argmax([x R; -x R])``
with a random R; of a bucket the ``chunk`` positions nearest to it, in order of place (in causal attention
those before it). Keys are queries of length 1, and a position sees itself only where it sees nothing else.
One softmax over all that some hash shows: a weight that several show counts once, as the paper corrects by
log N.

The paper cuts the sorted positions into chunks, whose borders depend on what comes later; nearest positions
of the same bucket do not, and make causal attention exactly causal.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.errors import InputError
from luna_fairseq.ops.blocks import from_blocks, merge_parts, partial_attention, to_blocks, with_neighbours
from luna_fairseq.ops.masked_softmax import masked_softmax
from luna_fairseq.peers.attention import BIDIRECTIONAL, CAUSAL, PeerAttention
from luna_fairseq.peers.resampling import ResampledNormal

SELF = -1e5  # the logit of a position to itself


class ReformerAttention(PeerAttention):
    """Sorted by bucket and place, what a position sees is a window. Every update draws hashes anew."""

    name = "reformer"
    forms = (BIDIRECTIONAL, CAUSAL)
    projections: Tuple[str, ...] = ("qk", "v")

    def build(self, options: Any) -> None:
        self.buckets, self.chunk = options.reformer_buckets, options.reformer_chunk
        if self.buckets != 1 and self.buckets % 2:
            raise InputError(f"--reformer-buckets is {self.buckets}: it must be even, or 1")
        self.rotations = ResampledNormal(
            (options.reformer_hashes, self.num_heads, self.head_dim, max(1, self.buckets // 2)), interval=1
        )

    def hash(self, qk: Tensor, padding_mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """Buckets [B, H, rounds, T], padding in one of its own, and the order that sorts by them."""
        rotated = torch.einsum("bhtk,rhkd->bhrtd", qk.detach(), self.rotations.values.to(qk.dtype))
        buckets = torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1)
        buckets = torch.zeros_like(buckets) if self.buckets == 1 else buckets
        if padding_mask is not None:
            buckets = buckets.masked_fill(padding_mask[:, None, None, :], self.buckets)
        return buckets, buckets.argsort(dim=-1, stable=True)

    def is_visible(self, distance: Tensor) -> Tensor:
        """Whether a position sees another at a distance within a bucket."""
        return (distance >= -self.chunk) & (distance <= (0 if self.form == CAUSAL else self.chunk))

    def attend(self, qk: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        buckets, order = self.hash(qk, padding_mask)
        slots = order.argsort(dim=-1)
        # Those of a bucket are as far apart as their slots in the order, others further than any sees.
        codes = slots + buckets * (self.chunk + 1)
        parts = [self.attend_sorted(qk, v, codes, order[:, :, r], r) for r in range(order.size(2))]
        outputs, totals = (
            torch.stack([x.gather(2, slots[:, :, r, :, None].expand_as(x)) for r, x in enumerate(by_round)])
            for by_round in zip(*parts)
        )
        return merge_parts(outputs, totals).to(v.dtype)

    def attend_sorted(
        self, qk: Tensor, v: Tensor, codes: Tensor, order: Tensor, r: int
    ) -> Tuple[Tensor, Tensor]:
        """What round ``r`` shows, in its order [B, H, T]: output [B, H, T, K], and total [B, H, T, 1]."""
        neighbours = 1, 0 if self.form == CAUSAL else 1
        q, v = (x.gather(2, order.unsqueeze(3).expand(-1, -1, -1, x.size(3))) for x in (qk, v))
        queries, keys, values = (to_blocks(x, self.chunk) for x in (q, F.normalize(q, dim=-1), v))
        distances = [self.distances(x.gather(2, order), neighbours) for x in codes.unbind(2)]
        visible = [self.is_visible(distance) for distance in distances]
        rounds = torch.stack(visible).sum(dim=0, dtype=keys.dtype).clamp(min=1)
        bias = torch.where(distances[r] == 0, SELF, 0.0) - rounds.log()
        keys, values = (with_neighbours(x, *neighbours) for x in (keys, values))
        output, total = partial_attention(queries, keys, values, ~visible[r], self.dropout, bias)
        return from_blocks(output, qk.size(2)), from_blocks(total, qk.size(2))

    def distances(self, codes: Tensor, neighbours: Tuple[int, int]) -> Tensor:
        """From the positions of a block to those of it and its neighbours [B, H, blocks, chunk, keys], of
        codes [B, H, T]; too far where there is none."""
        nowhere = -self.chunk - 1
        blocks = to_blocks(codes.int().unsqueeze(3), self.chunk, nowhere)
        keys = with_neighbours(blocks, *neighbours, nowhere)
        return keys.transpose(3, 4).contiguous() - blocks

    def attend_naively(self, qk: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        buckets, order = self.hash(qk, padding_mask)
        slots = order.argsort(dim=-1)
        same = buckets.unsqueeze(4) == buckets.unsqueeze(3)
        visible = (same & self.is_visible(slots.unsqueeze(3) - slots.unsqueeze(4))).any(dim=2)
        logits = qk @ F.normalize(qk, dim=-1).transpose(-2, -1)
        logits = logits + SELF * torch.eye(qk.size(2), dtype=qk.dtype, device=qk.device)
        return masked_softmax(logits, ~visible) @ v
