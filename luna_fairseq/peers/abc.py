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

from luna_fairseq.ops.causal_linear import chunk_causal_linear, recurrent_causal_linear
from luna_fairseq.ops.softmax import softmax_attention
from luna_fairseq.peers.attention import CAUSAL, Parts, PeerAttention, State
from luna_fairseq.peers.feature_maps import mask_features

# Largest absolute value of the logits of the write weights.
LIMIT = 32.0


class BoundedMemoryAttention(PeerAttention):
    """Bounded-memory attention, ABC (Peng et al., 2022): attention to n memory slots in place of the tokens.

    The key and value of a slot are weighted means of the keys and values of all tokens. The learned weights
    are called write weights. The decoding state has a constant size: the keys and values of the slots, and
    the sum of the write weights. See :class:`PeerAttention` for the constructor arguments.
    """

    name = "abc"

    def build(self, options: Any) -> None:
        """Create the projection of the input to the logits of the write weights.

        Overrides :meth:`PeerAttention.build`.

        Args:
            options: namespace with the fields of :class:`luna_fairseq.peers.PeerOptions`; only ``abc_slots``
                is used.
        """
        self.control_proj = nn.Linear(self.embed_dim, self.num_heads * options.abc_slots)
        nn.init.xavier_uniform_(self.control_proj.weight)

    def project(self, x: Tensor) -> Parts:
        """Project the input to queries, keys, values and logits of the write weights.

        Overrides :meth:`PeerAttention.project`.

        Args:
            x: input [T, B, C]: T positions, batch size B, and model width C.

        Returns:
            - queries, keys and values, each [B, H, T, K]: H heads of width K.
            - logits [B, H, T, n] of the write weights of each token for the n slots.
        """
        return self.project_heads(x, "q", "k", "v", "control")

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, control: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        """Compute self-attention through n memory slots.

        Overrides :meth:`PeerAttention.attend`. The key and value of a slot are weighted means of the token
        keys and values, with the write weights exp(control). Queries attend to the slots with a softmax. In
        causal attention, the means for query i run over the tokens j <= i.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            k: keys, with the same shape as ``q``.
            v: values, with the same shape as ``q``.
            control: logits [B, H, T, n] of the write weights of each token for the n slots.
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output of each head, with the same shape as ``q``.
        """
        alpha = write_weights(control, padding_mask)
        if self.form != CAUSAL:
            return softmax_attention(q, *fill_slots(alpha, k, v), None, self.dropout)
        with torch.autocast(q.device.type, enabled=False):
            logits = chunk_causal_linear(q.to(alpha.dtype), k.to(alpha.dtype), alpha)
            weights = self.slot_weights(logits, alpha.cumsum(dim=2))
            return chunk_causal_linear(weights, alpha, v)

    def slot_weights(self, logits: Tensor, total: Tensor) -> Tensor:
        """Compute ``dropout(softmax(logits / (total sqrt(K)))) / total``, the weights of summed slot values.

        The key and value of a slot are weighted means over the tokens. Causal attention keeps weighted sums
        instead, and divides the logits and the attention weights by ``total``, the sum of the write weights.

        Args:
            logits: products [B, H, T, n] of queries and summed slot keys: batch size B, H heads, T positions,
                and n slots.
            total: sums [B, H, T, n] of the write weights up to each position.

        Returns:
            Weights [B, H, T, n] for the summed slot values.
        """
        mean = total.clamp(min=torch.finfo(total.dtype).tiny ** 0.5).reciprocal()
        return F.dropout((logits * mean * self.head_dim**-0.5).softmax(dim=-1), self.dropout) * mean

    def attend_incrementally(
        self, parts: Parts, padding_mask: Optional[Tensor], state: Optional[State]
    ) -> Tuple[Tensor, State]:
        """Continue causal attention, using the cached sums of the memory slots.

        Overrides :meth:`PeerAttention.attend_incrementally`.

        Args:
            parts: queries, keys and values of the new positions, each [B, H, T, K], and the logits
                [B, H, T, n] of the write weights. Batch size B, H heads, T new positions, head width K, and n
                slots.
            padding_mask: mask [B, T] of the new positions, True at padding (None if there is no padding).
            state: state returned by the previous call (None at the start). Its entries are the summed slot
                ``keys`` [B, H, K, n], the summed slot ``values`` [B, H, n, K], and the sum ``alpha``
                [B, H, 1, n] of the write weights.

        Returns:
            - output [B, H, T, K] of each head at the new positions.
            - state after the new positions, with the same entries.
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

        Overrides :meth:`PeerAttention.project_context`.

        Args:
            context: context [S, B, C]: S tokens, batch size B, and model width C.

        Returns:
            - keys and values, each [B, H, S, K]: H heads of width K.
            - logits [B, H, S, n] of the write weights of each token for the n slots.
        """
        return self.project_heads(context, "k", "v", "control")

    def cache_context(
        self, k: Tensor, v: Tensor, control: Tensor, padding_mask: Optional[Tensor] = None
    ) -> State:
        """Compute the keys and values of the memory slots for cross-attention.

        Overrides :meth:`PeerAttention.cache_context`.

        Args:
            k: keys [B, H, S, K]: batch size B, H heads, S tokens, and head width K.
            v: values, with the same shape as ``k``.
            control: logits [B, H, S, n] of the write weights of the tokens for the n slots.
            padding_mask: mask [B, S], True at padding (default: None, no padding).

        Returns:
            ``k`` and ``v``, the keys and values [B, H, n, K] of the slots.
        """
        return dict(zip(("k", "v"), fill_slots(write_weights(control, padding_mask), k, v)))

    def read_context(self, query: Tensor, memory: State, need_weights: bool = False) -> Tuple[Tensor, None]:
        """Attend from the decoder input to the cached memory slots.

        Overrides :meth:`PeerAttention.read_context`. Attention weights over the context are not available.

        Args:
            query: decoder input [T, B, C]: T positions, batch size B, and model width C.
            memory: slot keys ``k`` and slot values ``v``, each [B, H, n, K], for n slots.
            need_weights: ignored (default: False).

        Returns:
            - output [B, H, T, K] of each head: H heads of width K.
            - None in place of attention weights.
        """
        (q,) = self.project_heads(query, "q")
        return softmax_attention(q, memory["k"], memory["v"], None, self.dropout), None

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, control: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        """Compute the output of :meth:`attend` position by position, as a reference for tests.

        Overrides :meth:`PeerAttention.attend_naively`.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            k: keys, with the same shape as ``q``.
            v: values, with the same shape as ``q``.
            control: logits [B, H, T, n] of the write weights of the tokens for the n slots.
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output of each head, with the same shape as ``q``.
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
    """Compute the write weights exp(control), with which tokens contribute to the memory slots.

    Args:
        control: logits [B, H, S, n]: batch size B, H heads, S tokens, and n slots. They are clamped to
            [-32, 32].
        padding_mask: mask [B, S], True at padding (None if there is no padding).

    Returns:
        Weights [B, H, S, n] in float32 or higher precision, 0 at padding.
    """
    control = control.to(torch.promote_types(control.dtype, torch.float32))
    return mask_features(control.clamp(-LIMIT, LIMIT).exp(), padding_mask)


def fill_slots(alpha: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
    """Compute the keys and values of the memory slots, as weighted means over the tokens.

    Args:
        alpha: write weights [B, H, S, n]: batch size B, H heads, S tokens, and n slots.
        k: keys [B, H, S, K] of head width K.
        v: values, with the same shape as ``k``.

    Returns:
        - slot keys [B, H, n, K] in the dtype of ``k``.
        - slot values [B, H, n, K] in the dtype of ``v``.
    """
    with torch.autocast(k.device.type, enabled=False):
        total = alpha.sum(dim=2).clamp(min=torch.finfo(alpha.dtype).tiny ** 0.5)
        share = (alpha / total.unsqueeze(2)).transpose(-2, -1)
        return (share @ k.to(share.dtype)).to(k.dtype), (share @ v.to(share.dtype)).to(v.dtype)
