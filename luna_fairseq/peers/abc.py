"""Attention with bounded-memory control, ABC (Peng et al., 2022), in its learned variant ABC_MLP.

Each head has n memory slots. Token j writes its key k_j and value v_j to the slots with n positive weights
alpha_j = exp(W x_j), where W is a learned matrix. Queries q_i attend to the slots instead of the tokens::

    K~ = sum_j alpha_j k_j^T / sum_j alpha_j        (V~ likewise)
    y_i = softmax(K~ q_i / sqrt(K))^T V~

In causal attention the sums for query i run over j <= i. W x is clamped to [-32, 32], because exp(32) times
the length of a long sequence still fits into float32.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.ops.attention import disable_autocast, softmax_attention
from luna_fairseq.ops.causal_linear import chunk_causal_linear, recurrent_causal_linear
from luna_fairseq.peers.attention import CAUSAL, Parts, PeerAttention, State
from luna_fairseq.peers.feature_maps import mask_features

# Largest absolute value of the logits of the write weights.
LIMIT = 32.0


class BoundedMemoryAttention(PeerAttention):
    """Bounded-memory attention, ABC (Peng et al., 2022): queries attend to n memory slots, not to the tokens.

    A slot holds a weighted mean of the keys and a weighted mean of the values. The weight of a token is
    exp(``control``), where ``control`` [B, H, T, n] is a learned projection of the input.
    """

    name = "abc"

    def build(self, options: Any) -> None:
        self.control_proj = nn.Linear(self.embed_dim, self.num_heads * options.abc_slots)
        nn.init.xavier_uniform_(self.control_proj.weight)

    def project(self, x: Tensor) -> Parts:
        return self.project_heads(x, "q", "k", "v", "control")

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, control: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        alpha = write_weights(control, padding_mask)
        if self.role != CAUSAL:
            return softmax_attention(q, *fill_slots(alpha, k, v), None, self.dropout)
        with disable_autocast(q.device):
            logits = chunk_causal_linear(q.to(alpha.dtype), k.to(alpha.dtype), alpha)
            weights = self.slot_weights(logits, alpha.cumsum(dim=2))
            return chunk_causal_linear(weights, alpha, v)

    def slot_weights(self, logits: Tensor, total: Tensor) -> Tensor:
        """Return softmax(logits / total / sqrt(K)) / total, the weights [B, H, T, n] of n slots' value sums.

        ``logits`` [B, H, T, n] are the dot products of the queries with the key sums of the slots. ``total``
        [B, H, T, n] is the sum of a slot's token weights, by which its sums of keys and values are divided.
        """
        # The total is 0 before the first token. With this minimum, 1 / total^2 in the gradient is finite.
        mean = total.clamp(min=torch.finfo(total.dtype).tiny ** 0.5).reciprocal()
        return F.dropout((logits * mean * self.head_dim**-0.5).softmax(dim=-1), self.dropout) * mean

    def attend_incrementally(
        self, parts: Parts, padding_mask: Optional[Tensor], state: Optional[State]
    ) -> Tuple[Tensor, State]:
        """Compute causal attention for T new positions, given the memory slots after all earlier positions.

        ``parts`` are the queries, keys, values and ``control`` of the new positions. The state holds the
        weighted sums ``keys`` and ``values`` of n slots, and ``alpha`` [B, H, 1, n], the sum of the token
        weights in each slot. Return the output [B, H, T, K] and the new state.
        """
        q, k, v, control = parts
        state, alpha = state or {}, write_weights(control, padding_mask)
        with disable_autocast(q.device):
            total = alpha.cumsum(dim=2) + state.get("alpha", 0.0)
            logits, keys = recurrent_causal_linear(
                q.to(alpha.dtype), k.to(alpha.dtype), alpha, None, state.get("keys")
            )
            output, values = recurrent_causal_linear(
                self.slot_weights(logits, total), alpha, v, None, state.get("values")
            )
        return output, {"keys": keys, "values": values, "alpha": total[:, :, -1:]}

    def project_context(self, context: Tensor) -> Parts:
        return self.project_heads(context, "k", "v", "control")

    def cache_context(
        self, k: Tensor, v: Tensor, control: Tensor, padding_mask: Optional[Tensor] = None
    ) -> State:
        return dict(zip(("k", "v"), fill_slots(write_weights(control, padding_mask), k, v)))

    def read_context(self, query: Tensor, memory: State, need_weights: bool = False) -> Tuple[Tensor, None]:
        (q,) = self.project_heads(query, "q")
        return softmax_attention(q, memory["k"], memory["v"], None, self.dropout), None

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, control: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        alpha = write_weights(control, padding_mask)
        outputs = []
        for t in range(q.size(2)):
            seen = slice(t + 1 if self.role == CAUSAL else None)
            share = alpha[:, :, seen] / alpha[:, :, seen].sum(dim=2, keepdim=True).clamp(min=1e-30)
            keys, values = (share.transpose(-2, -1) @ x[:, :, seen] for x in (k, v))
            logits = q[:, :, t : t + 1] @ keys.transpose(-2, -1) * self.head_dim**-0.5
            outputs.append(logits.softmax(dim=-1) @ values)
        return torch.cat(outputs, dim=2)


def write_weights(control: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
    """Compute the weights [B, H, T, n] of T tokens in n memory slots: exp(control), 0 at padding.

    ``control`` is clamped to [-32, 32]. The weights have float32 or higher precision.
    """
    control = control.to(torch.promote_types(control.dtype, torch.float32))
    return mask_features(control.clamp(-LIMIT, LIMIT).exp(), padding_mask)


def fill_slots(alpha: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
    """Return the mean keys and mean values [B, H, n, K] of n memory slots, weighted by alpha [B, H, T, n]."""
    with disable_autocast(k.device):
        # The total is 0 if all positions are padding (see slot_weights).
        total = alpha.sum(dim=2).clamp(min=torch.finfo(alpha.dtype).tiny ** 0.5)
        share = (alpha / total.unsqueeze(2)).transpose(-2, -1)
        return (share @ k.to(share.dtype)).to(k.dtype), (share @ v.to(share.dtype)).to(v.dtype)
