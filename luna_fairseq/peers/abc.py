"""Attention with bounded-memory control, ABC (Peng et al., 2022), in its learned form ABC_MLP.

Each head has n memory slots. Token j writes its key and value to the slots with weights alpha_j = exp(W x_j)
[n], and queries attend to the slots instead of the tokens::

    K~ = sum_j alpha_j k_j^T / sum_j alpha_j        (V~ likewise)
    y_i = softmax(K~ q_i / sqrt(K))^T V~

In causal attention the sums for query i run over j <= i. W x is clamped to [-32, 32], because exp(32) times
the length of a long sequence still fits into float32.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.ops.causal_linear import chunk_causal_linear, recurrent_causal_linear
from luna_fairseq.ops.softmax import softmax_attention
from luna_fairseq.peers.attention import CAUSAL, Parts, PeerAttention, State
from luna_fairseq.peers.feature_maps import mask_features

# Largest absolute value of the logits of the write weights.
LIMIT = 32.0


class BoundedMemoryAttention(PeerAttention):
    """Bounded-memory attention (ABC): attention to n slots per head that summarize the keys and values.

    The decoding state has a constant size: the keys and values of the slots, and the sum of the write
    weights. The arguments and the other letters of shapes are those of :class:`PeerAttention`.
    """

    name = "abc"

    def build(self, options: Any) -> None:
        """Create the projection that computes the write weights.

        Args:
            options: namespace with the fields of :class:`luna_fairseq.peers.PeerOptions`.
        """
        self.control_proj = nn.Linear(self.embed_dim, self.num_heads * options.abc_slots)
        nn.init.xavier_uniform_(self.control_proj.weight)

    def project(self, x: Tensor) -> Parts:
        """Project the input to queries, keys, values and logits of the write weights.

        Args:
            x: input [T, B, C] of the layer.

        Returns:
            - queries, keys and values, each [B, H, T, K].
            - logits [B, H, T, n] of the write weights.
        """
        return self.project_heads(x, "q", "k", "v", "control")

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, control: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        """Compute self-attention through the slots.

        Args:
            q: queries [B, H, T, K].
            k: keys [B, H, T, K].
            v: values [B, H, T, K].
            control: logits [B, H, T, n] of the write weights.
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output heads [B, H, T, K].
        """
        alpha = write_weights(control, padding_mask)
        if self.form != CAUSAL:
            return softmax_attention(q, *fill_slots(alpha, k, v), None, self.dropout)
        with torch.autocast(q.device.type, enabled=False):
            logits = chunk_causal_linear(q.to(alpha.dtype), k.to(alpha.dtype), alpha)
            weights = self.slot_weights(logits, alpha.cumsum(dim=2))
            return chunk_causal_linear(weights, alpha, v)

    def slot_weights(self, logits: Tensor, total: Tensor) -> Tensor:
        """Compute the attention weights of the slots, divided by the sum of the write weights.

        Args:
            logits: products [B, H, T, n] of queries and unnormalized slot keys.
            total: sum [B, H, T, n] of the write weights up to each position.

        Returns:
            Weights [B, H, T, n] for the unnormalized slot values.
        """
        mean = total.clamp(min=torch.finfo(total.dtype).tiny ** 0.5).reciprocal()
        return F.dropout((logits * mean * self.head_dim**-0.5).softmax(dim=-1), self.dropout) * mean

    def attend_incrementally(
        self, parts: Parts, padding_mask: Optional[Tensor], state: Optional[State]
    ) -> Tuple[Tensor, State]:
        """Continue causal attention from the slots in ``state``.

        Args:
            parts: projections of the new positions, as returned by :meth:`project`.
            padding_mask: mask [B, T] of the new positions, True at padding, or None without padding.
            state: state after the previous positions, or None at the start.

        Returns:
            - output heads [B, H, T, K] of the new positions.
            - state after the new positions.
        """
        q, k, v, control = parts
        state, alpha = state or {}, write_weights(control, padding_mask)
        with torch.autocast(q.device.type, enabled=False):
            total = alpha.cumsum(dim=2) + state.get("alpha", 0.0)
            logits, keys = recurrent_causal_linear(
                q.to(alpha.dtype), k.to(alpha.dtype), alpha, None, state.get("keys")
            )
            output, values = recurrent_causal_linear(
                self.slot_weights(logits, total), alpha, v, None, state.get("values")
            )
        return output, {"keys": keys, "values": values, "alpha": total[:, :, -1:]}

    def project_context(self, context: Tensor) -> Parts:
        """Project a context to keys, values and logits of the write weights.

        Args:
            context: context [S, B, C] of cross-attention.

        Returns:
            - keys and values, each [B, H, S, K].
            - logits [B, H, S, n] of the write weights.
        """
        return self.project_heads(context, "k", "v", "control")

    def cache_context(
        self, k: Tensor, v: Tensor, control: Tensor, padding_mask: Optional[Tensor] = None
    ) -> State:
        """Compute the keys and values of the slots for cross-attention.

        Args:
            k: keys [B, H, S, K].
            v: values [B, H, S, K].
            control: logits [B, H, S, n] of the write weights.
            padding_mask: mask [B, S], True at padding (default: None, no padding).

        Returns:
            Slot keys ``k`` and slot values ``v`` by name, both [B, H, n, K].
        """
        return dict(zip(("k", "v"), fill_slots(write_weights(control, padding_mask), k, v)))

    def read_context(self, query: Tensor, memory: State, need_weights: bool = False) -> Tuple[Tensor, None]:
        """Attend to the cached slots. No weights over the context are returned.

        Args:
            query: decoder input [T, B, C].
            memory: tensors that :meth:`cache_context` returned.
            need_weights: ignored.

        Returns:
            - output heads [B, H, T, K].
            - None in place of attention weights.
        """
        (q,) = self.project_heads(query, "q")
        return softmax_attention(q, memory["k"], memory["v"], None, self.dropout), None

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, control: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        """Compute the output of :meth:`attend` position by position from the formula, as a reference.

        Args:
            q: queries [B, H, T, K].
            k: keys [B, H, T, K].
            v: values [B, H, T, K].
            control: logits [B, H, T, n] of the write weights.
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output heads [B, H, T, K].
        """
        alpha = write_weights(control, padding_mask)
        outputs = []
        for t in range(q.size(2)):
            seen = slice(t + 1 if self.form == CAUSAL else None)
            share = alpha[:, :, seen] / alpha[:, :, seen].sum(dim=2, keepdim=True).clamp(min=1e-30)
            keys, values = (share.transpose(-2, -1) @ x[:, :, seen] for x in (k, v))
            logits = q[:, :, t : t + 1] @ keys.transpose(-2, -1) * self.head_dim**-0.5
            outputs.append(logits.softmax(dim=-1) @ values)
        return torch.cat(outputs, dim=2)


def write_weights(control: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
    """Compute the write weights alpha from their logits.

    Args:
        control: logits W x [B, H, S, n].
        padding_mask: mask [B, S], True at padding, or None without padding.

    Returns:
        Weights [B, H, S, n] in float32 or wider, 0 at padding.
    """
    control = control.to(torch.promote_types(control.dtype, torch.float32))
    return mask_features(control.clamp(-LIMIT, LIMIT).exp(), padding_mask)


def fill_slots(alpha: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
    """Compute the keys and values of the memory slots.

    B is the batch size, H the number of heads, S the number of tokens, n the number of slots, and K the head
    width.

    Args:
        alpha: write weights [B, H, S, n].
        k: keys [B, H, S, K].
        v: values [B, H, S, K].

    Returns:
        - slot keys [B, H, n, K] in the dtype of ``k``.
        - slot values [B, H, n, K] in the dtype of ``v``.
    """
    with torch.autocast(k.device.type, enabled=False):
        total = alpha.sum(dim=2).clamp(min=torch.finfo(alpha.dtype).tiny ** 0.5)
        share = (alpha / total.unsqueeze(2)).transpose(-2, -1)
        return (share @ k.to(share.dtype)).to(k.dtype), (share @ v.to(share.dtype)).to(v.dtype)
