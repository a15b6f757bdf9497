"""Longformer (Beltagy et al., 2020): a sliding window, and a few global tokens that see all and are seen by
all.

``j in [i - w/2, i + w/2]``, or j one of the first g tokens; a global token attends to everything, with
projections of queries, keys and values of its own. (The paper's language model, without global tokens, is
``local`` in causal form.)
"""

from dataclasses import dataclass
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from fairseq.dataclass import FairseqDataclass
from luna_fairseq.errors import InputError
from luna_fairseq.models.options import option
from luna_fairseq.modules.heads import split_heads
from luna_fairseq.ops.blocks import MoreKeys, windowed_attention
from luna_fairseq.ops.masked_softmax import naive_softmax_weights
from luna_fairseq.ops.softmax import softmax_attention
from luna_fairseq.peers.attention import BIDIRECTIONAL, Parts, PeerAttention


@dataclass
class LongformerOptions(FairseqDataclass):
    """Options of Longformer."""

    longformer_window: int = option(
        128, "longformer: w, the width of the window, half of it on either side", least=2
    )
    longformer_global_tokens: int = option(
        1, "longformer: g, the first tokens of a sequence, which are global", least=0
    )


class LongformerAttention(PeerAttention):
    """The window by blocks, the global keys beside it."""

    name = "longformer"
    forms = (BIDIRECTIONAL,)
    from_start = True
    projections: Tuple[str, ...] = ("q", "k", "v", "global_q", "global_k", "global_v")

    def build(self, options: Any) -> None:
        if options.longformer_window % 2:
            raise InputError(
                f"--longformer-window is {options.longformer_window}: it must be even, half on either side"
            )
        self.half, self.tokens = options.longformer_window // 2, options.longformer_global_tokens
        if not self.tokens:
            for name in self.projections[3:]:  # a parameter without gradient breaks DDP
                delattr(self, f"{name}_proj")

    def project(self, x: Tensor) -> Parts:
        names = self.projections if self.tokens else self.projections[:3]
        return tuple(split_heads(getattr(self, f"{name}_proj")(x), self.num_heads) for name in names)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *of_all: Tensor, padding: Optional[Tensor] = None
    ) -> Tensor:
        T, g = q.size(2), min(self.tokens, q.size(2))
        more = None
        if g:
            places = torch.arange(T, device=q.device)[:, None]
            excluded = (places - places[:g].t()).abs() <= self.half  # in the window already
            if padding is not None:
                excluded = excluded | padding[:, None, None, :g]
            more = MoreKeys(k[:, :, :g], v[:, :, :g], excluded.expand(q.size(0), 1, T, g))
        output = windowed_attention(q, k, v, self.half, self.half, padding, self.dropout, more)
        if not g:
            return output
        q, k, v = of_all
        everything = None if padding is None else padding[:, None, None, :]
        seeing_all = softmax_attention(q[:, :, :g], k, v, everything, self.dropout)
        return torch.cat([seeing_all, output[:, :, g:]], dim=2)

    def define(
        self, q: Tensor, k: Tensor, v: Tensor, *of_all: Tensor, padding: Optional[Tensor] = None
    ) -> Tensor:
        places = torch.arange(q.size(2), device=q.device)
        excluded = ((places[:, None] - places).abs() > self.half) & (places >= self.tokens)
        everything = torch.zeros_like(excluded)
        if padding is not None:
            excluded, everything = (x | padding[:, None, None, :] for x in (excluded, everything))
        output = naive_softmax_weights(q, k, excluded) @ v
        if not of_all:
            return output
        q, k, v = of_all
        return torch.where(places[:, None] < self.tokens, naive_softmax_weights(q, k, everything) @ v, output)
