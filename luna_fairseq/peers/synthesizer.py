"""Synthesizer (Tay et al., 2021, "Rethinking Self-Attention"): weights that are not made of queries and keys.

``y_i = softmax(B_i) V``, with B_i of the longest length n there may be, of which a sentence takes the first
columns. *Dense*: ``B_i = W_2 relu(W_1 x_i)``. *Random*: B is a learned n x n matrix. *Factorised dense*: B_i
is the product, in pairs, of two rows W_a relu(..) and W_b relu(..) of about sqrt(n); *factorised random*: ``B
= R_1 R_2^T`` of rank k.
"""

import math
from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.ops.masked_softmax import masked_softmax
from luna_fairseq.peers.attention import (
    BIDIRECTIONAL,
    CAUSAL,
    PeerAttention,
    combine_masks,
    materialize_padding,
)
from luna_fairseq.peers.feature_maps import weighted_mean


class SynthesizerAttention(PeerAttention):
    """Quadratic in time and memory, as softmax attention, without products of queries and keys."""

    name = "synthesizer"
    forms = (BIDIRECTIONAL, CAUSAL)
    needs_left_alignment = True
    projections: Tuple[str, ...] = ("hidden", "v")

    def build(self, options: Any) -> None:
        self.kind, n = options.synthesizer_kind, self.max_positions
        root = math.ceil(n**0.5)
        shapes = {
            "dense": [(self.head_dim, n)],
            "random": [(n, n)],
            "factorized-dense": [(self.head_dim, root), (self.head_dim, root)],
            "factorized-random": [(n, options.synthesizer_k), (n, options.synthesizer_k)],
        }[self.kind]
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(self.num_heads, *shape)) for shape in shapes)
        for parameter in self.weights:
            for head in parameter:
                nn.init.xavier_uniform_(head.detach())
        if self.kind.endswith("random"):
            del self.hidden_proj  # a parameter without gradient breaks DDP
            self.projections = ("v",)

    def logits(self, T: int, *hidden: Tensor) -> Tensor:
        """B [.., H, T, T]; ``hidden`` [B, H, T, K] is W_1 x, given for the dense kinds."""
        first, last = self.weights[0], self.weights[-1]
        if self.kind == "random":
            return first[:, :T, :T]
        if self.kind == "factorized-random":
            return first[:, :T] @ last[:, :T].transpose(-2, -1)
        active = hidden[0].relu()
        if self.kind == "dense":
            return active @ first[..., :T]
        pairs = (active @ first).unsqueeze(-1) * (active @ last).unsqueeze(-2)
        return pairs.flatten(-2)[..., :T]

    def attend(self, *parts: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        *hidden, v = parts
        T = v.size(2)
        self.check_length(T)
        logits = self.logits(T, *hidden)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weights = masked_softmax(logits, combine_masks(padding_mask, self.future_mask(v)))
        return self.dropout_module(weights).to(v.dtype) @ v

    def attend_naively(self, *parts: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        *hidden, v = parts
        weights = (
            self.logits(v.size(2), *hidden).exp() * ~materialize_padding(padding_mask, v)[:, None, None, :]
        )
        weights = weights.tril() if self.form == CAUSAL else weights
        return weighted_mean(v, weights)
