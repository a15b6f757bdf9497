"""Longformer (Beltagy et al., 2020): a sliding window, and a few global tokens that see all and are seen by
all.

``j in [i - w/2, i + w/2]``, or j one of the first g tokens; a global token attends to everything, with
projections of queries, keys and values of its own. (The paper's language model, without global tokens, is
``local`` in causal form.)
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.errors import InputError
from luna_fairseq.ops.blocks import MoreKeys, windowed_attention
from luna_fairseq.ops.masked_softmax import naive_softmax_weights
from luna_fairseq.ops.softmax import softmax_attention
from luna_fairseq.peers.attention import BIDIRECTIONAL, PeerAttention, excluded_keys, given_padding


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
            self.projections = self.projections[:3]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *of_all: Tensor, padding: Optional[Tensor] = None
    ) -> Tensor:
        T, g = q.size(2), min(self.tokens, q.size(2))
        more = None
        if g:
            places = torch.arange(T, device=q.device)[:, None]
            in_window = (places - places[:g].t()).abs() <= self.half
            excluded = in_window | given_padding(padding, q)[:, None, None, :g]
            more = MoreKeys(k[:, :, :g], v[:, :, :g], excluded)
        output = windowed_attention(q, k, v, self.half, self.half, padding, self.dropout, more)
        if not g:
            return output
        q, k, v = of_all
        seeing_all = softmax_attention(q[:, :, :g], k, v, excluded_keys(padding), self.dropout)
        return torch.cat([seeing_all, output[:, :, g:]], dim=2)

    def define(
        self, q: Tensor, k: Tensor, v: Tensor, *of_all: Tensor, padding: Optional[Tensor] = None
    ) -> Tensor:
        places = torch.arange(q.size(2), device=q.device)
        unseen = ((places[:, None] - places).abs() > self.half) & (places >= self.tokens)
        output = naive_softmax_weights(q, k, excluded_keys(padding, unseen)) @ v
        if not of_all:
            return output
        q, k, v = of_all
        seeing_all = naive_softmax_weights(q, k, excluded_keys(padding)) @ v
        return torch.where(places[:, None] < self.tokens, seeing_all, output)
