"""Reformer's LSH attention (Kitaev et al., 2020), with one projection for queries and keys.

A position sees those that one of several hashes puts into the same bucket, ``h(x) = argmax([x R; -x R])``
with a random R; of a bucket the ``chunk`` positions nearest to it, in order of place (in causal attention
those before it). Keys are queries of length 1, and a position sees itself only where it sees nothing else.
One softmax over all that some hash shows: a weight that several show counts once, as the paper corrects by
log N.

The paper cuts the sorted positions into chunks, whose borders depend on what comes later; nearest positions
of the same bucket do not, and make causal attention exactly causal.
"""

from dataclasses import dataclass
from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq.dataclass import FairseqDataclass
from luna_fairseq.errors import InputError
from luna_fairseq.models.options import option
from luna_fairseq.ops.blocks import from_blocks, to_blocks, with_neighbours
from luna_fairseq.ops.softmax import masked_softmax, merge_parts, partial_attention
from luna_fairseq.peers.attention import BIDIRECTIONAL, CAUSAL, PeerAttention
from luna_fairseq.peers.drawing import Drawing

SELF = -1e5  # the logit of a position to itself


@dataclass
class ReformerOptions(FairseqDataclass):
    """Options of Reformer."""

    reformer_hashes: int = option(2, "reformer: rounds of hashing")
    reformer_buckets: int = option(32, "reformer: buckets of a round, an even number, or 1 for all positions")
    reformer_chunk: int = option(64, "reformer: positions of the same bucket that are seen on either side")


class ReformerAttention(PeerAttention):
    """Sorted by bucket and place, what a position sees is near to it: a window. Hashes are drawn anew at
    every update."""

    name = "reformer"
    forms = (BIDIRECTIONAL, CAUSAL)
    projections: Tuple[str, ...] = ("qk", "v")

    def build(self, options: Any) -> None:
        self.buckets, self.chunk = options.reformer_buckets, options.reformer_chunk
        if self.buckets != 1 and self.buckets % 2:
            raise InputError(f"--reformer-buckets is {self.buckets}: it must be even, or 1")
        if min(self.buckets, self.chunk, options.reformer_hashes) < 1:
            raise InputError("--reformer-hashes, --reformer-buckets and --reformer-chunk must be 1 or more")
        self.rotations = Drawing(
            (options.reformer_hashes, self.num_heads, self.head_dim, max(1, self.buckets // 2)), interval=1
        )

    def hash(self, qk: Tensor, padding: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """Buckets [B, H, rounds, T], padding in one of its own, and the order that sorts positions by
        them."""
        rotated = torch.einsum("bhtk,rhkd->bhrtd", qk.detach(), self.rotations.values.to(qk.dtype))
        buckets = torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1)
        buckets = torch.zeros_like(buckets) if self.buckets == 1 else buckets
        if padding is not None:
            buckets = buckets.masked_fill(padding[:, None, None, :], self.buckets)
        return buckets, buckets.argsort(dim=-1, stable=True)

    def shown(self, i: Tensor, j: Tensor) -> Tensor:
        """Which rounds show position j to i, from their buckets and slots [.., 2 rounds]: [.., rounds]."""
        (bucket_i, slot_i), (bucket_j, slot_j) = i.chunk(2, dim=-1), j.chunk(2, dim=-1)
        distance = slot_j - slot_i
        near = (distance >= -self.chunk) & (distance <= (0 if self.form == CAUSAL else self.chunk))
        return near & (bucket_i == bucket_j)

    def attend(self, qk: Tensor, v: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        buckets, order = self.hash(qk, padding)
        slots = order.argsort(dim=-1)
        about = torch.cat([buckets, slots], dim=2).transpose(2, 3)  # of every position [B, H, T, 2 rounds]
        parts = [self.attend_sorted(qk, v, about, order[:, :, r, :, None], r) for r in range(order.size(2))]
        moved = [
            [x.gather(2, slots[:, :, r, :, None].expand_as(x)) for x in part] for r, part in enumerate(parts)
        ]
        outputs, totals = (torch.stack(x) for x in zip(*moved))
        return merge_parts(outputs, totals).to(v.dtype)

    def attend_sorted(
        self, qk: Tensor, v: Tensor, about: Tensor, order: Tensor, r: int
    ) -> Tuple[Tensor, Tensor]:
        """What round ``r`` shows, in its order [B, H, T, 1]: output [B, H, T, K], and total [B, H, T, 1]."""
        after = 0 if self.form == CAUSAL else 1
        q, v, about = (x.gather(2, order.expand(-1, -1, -1, x.size(3))) for x in (qk, v, about))
        queries, keys, values = (to_blocks(x, self.chunk) for x in (q, F.normalize(q, dim=-1), v))
        about_keys = with_neighbours(to_blocks(about, self.chunk, -2), 1, after, -2)
        about_queries = to_blocks(about, self.chunk, -1)
        shown = self.shown(about_queries.unsqueeze(4), about_keys.unsqueeze(3))
        rounds = shown.size(-1)
        itself = about_queries[..., rounds, None] == about_keys[..., None, :, rounds]
        bias = torch.where(itself, SELF, 0.0) - shown.sum(dim=-1).clamp(min=1).log()
        output, total = partial_attention(
            queries,
            with_neighbours(keys, 1, after),
            with_neighbours(values, 1, after),
            ~shown[..., r],
            self.dropout,
            bias,
        )
        return from_blocks(output, qk.size(2)), from_blocks(total, qk.size(2))

    def define(self, qk: Tensor, v: Tensor, padding: Optional[Tensor] = None) -> Tensor:
        buckets, order = self.hash(qk, padding)
        about = torch.cat([buckets, order.argsort(dim=-1)], dim=2).transpose(2, 3)
        shown = self.shown(about.unsqueeze(3), about.unsqueeze(2)).any(dim=-1)
        logits = qk @ F.normalize(qk, dim=-1).transpose(-2, -1)
        logits = logits + SELF * torch.eye(qk.size(2), dtype=qk.dtype, device=qk.device)
        return masked_softmax(logits, ~shown) @ v
