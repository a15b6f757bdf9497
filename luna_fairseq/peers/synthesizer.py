"""Synthesizer (Tay et al., 2021, "Rethinking Self-Attention"): attention weights without queries and keys.

For values V, the output is ``softmax(B) V``. The logits B have one column per position up to the maximum
length n; a sequence of T tokens uses the first T columns. There are four kinds of logits:

- dense: row i of B is ``W_2 relu(W_1 x_i)`` for input x_i and learned matrices W_1 and W_2.
- random: B is a learned matrix [n, n].
- factorized-dense: row i of B contains all products of an element of ``W_a relu(W_1 x_i)`` and an element of
  ``W_b relu(W_1 x_i)``. Each of these vectors has about sqrt(n) elements.
- factorized-random: ``B = R_1 R_2^T`` with learned matrices [n, k].
"""

import math
from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from luna_fairseq.ops.attention import masked_softmax
from luna_fairseq.peers.attention import BIDIRECTIONAL, CAUSAL, PeerAttention, combine_masks


class SynthesizerAttention(PeerAttention):
    """Synthesizer (Tay et al., 2021): attention weights without query-key products.

    The logits are learned parameters or, for "dense" and "factorized-dense", computed from a hidden layer
    ``W_1 x`` of each input x. Time and memory are quadratic in the sequence length.
    """

    name = "synthesizer"
    roles = (BIDIRECTIONAL, CAUSAL)
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

    def compute_logits(self, T: int, *hidden: Tensor) -> Tensor:
        """Compute the attention logits [B, H, T, T], or [H, T, T] if they do not depend on the input.

        ``hidden``, if used, is the hidden layer [B, H, T, K] computed from the input.
        """
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
        logits = self.compute_logits(T, *hidden)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weights = masked_softmax(logits, combine_masks(padding_mask, self.future_mask(v)))
        return self.dropout_module(weights).to(v.dtype) @ v

    def attend_naively(self, *parts: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        *hidden, v = parts
        logits = self.compute_logits(v.size(2), *hidden)
        return masked_softmax(logits, combine_masks(padding_mask, self.future_mask(v))) @ v
