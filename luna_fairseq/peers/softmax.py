"""Softmax attention (Vaswani et al., 2017), with an optional bias on the logits.

Self-attention supports the distance bias of ALiBi (Press et al., 2022). For queries q_i, keys k_j, values v_j
and head width K, the output is::

    y_i = sum_j softmax_j(q_i . k_j / sqrt(K) - m_h |i - j|) v_j

The slope of head h of H heads is m_h = 2^(-8 h / H) with ALiBi and 0 without. Cross-attention supports the
diagonal prior of anchored Luna, a bias that favors source tokens near the diagonal.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.anchored.places import middles
from luna_fairseq.anchored.strengths import DiagonalPrior
from luna_fairseq.ops.masked_softmax import naive_softmax_weights
from luna_fairseq.ops.softmax import MAX_PENALTY, softmax_attention
from luna_fairseq.peers.attention import (
    CROSS,
    Parts,
    PeerAttention,
    State,
    combine_masks,
    materialize_padding,
)


class SoftmaxAttention(PeerAttention):
    """Softmax attention (Vaswani et al., 2017), computed by torch's fused kernel, with an optional bias.

    The decoding state holds all keys and values. See :class:`PeerAttention` for the constructor arguments.

    Attributes:
        diagonal_positions: query positions for the diagonal prior, set by the decoder. The first tensor is
            the index [B, T] of each of the T target tokens of B examples, counted within its example or
            sentence. The second tensor is the number [B, T] of source tokens before the aligned source
            sentence, or None (default: None, the queries are numbered from 0).
    """

    name = "softmax"

    def build(self, options: Any) -> None:
        """Store the options, and create the parameters of the diagonal prior, if used.

        Overrides :meth:`PeerAttention.build`.

        Args:
            options: namespace with the fields of :class:`luna_fairseq.peers.PeerOptions`; only ``alibi`` and
                ``diagonal_prior`` are used.
        """
        self.alibi = options.alibi
        has_prior = options.diagonal_prior and self.form == CROSS
        self.diagonal = DiagonalPrior(self.num_heads) if has_prior else None
        self.diagonal_positions: Optional[Tuple[Tensor, Optional[Tensor]]] = None

    def alibi_bias(self, queries: Tensor, keys: Tensor) -> Optional[Tensor]:
        """Compute the ALiBi bias -m_h |i - j| for the logits of query position i and key position j.

        The slope of head h of H heads is m_h = 2^(-8 h / H). The bias is clamped to at least -50, where
        attention weights are negligible.

        Args:
            queries: queries [B, H, T, K] of the last T of S positions: batch size B, H heads, and head width
                K.
            keys: keys [B, H, S, K] of all S positions.

        Returns:
            Bias [H, T, S], at most 0 (None if ALiBi is not used).
        """
        if not self.alibi:
            return None
        heads = torch.arange(1, self.num_heads + 1, device=keys.device)
        positions = torch.arange(keys.size(2), device=keys.device)
        distance = (positions[-queries.size(2) :, None] - positions).abs()
        dtype = torch.promote_types(keys.dtype, torch.float32)
        # Computed on the device: copying alibi_slopes would synchronize with the device in each layer.
        slope = torch.exp2(-8 * heads.to(dtype) / self.num_heads)[:, None, None]
        return -(slope * distance).clamp(max=MAX_PENALTY)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> Tensor:
        """Compute softmax self-attention, softmax(q k^T / sqrt(K) + bias) v.

        Overrides :meth:`PeerAttention.attend`. The bias is ALiBi's penalty on the distance, or 0 if ALiBi is
        not used.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            k: keys, with the same shape as ``q``.
            v: values, with the same shape as ``q``.
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output of each head, with the same shape as ``q``.
        """
        attention_mask = combine_masks(padding_mask, self.future_mask(q))
        return softmax_attention(q, k, v, attention_mask, self.dropout, self.alibi_bias(q, k))

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        """Compute the output of :meth:`attend` from materialized attention weights, as a reference for tests.

        Overrides :meth:`PeerAttention.attend_naively`.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            k: keys, with the same shape as ``q``.
            v: values, with the same shape as ``q``.
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output of each head, with the same shape as ``q``.
        """
        attention_mask = combine_masks(padding_mask, self.future_mask(q))
        return naive_softmax_weights(q, k, attention_mask, self.alibi_bias(q, k)) @ v

    def cache_context(self, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> State:
        """Collect the keys and values of the context and, for the diagonal prior, the index of each token.

        Overrides :meth:`PeerAttention.cache_context`.

        Args:
            k: keys [B, H, S, K]: batch size B, H heads, S tokens, and head width K.
            v: values, with the same shape as ``k``.
            padding_mask: mask [B, S], True at padding (default: None, no padding).

        Returns:
            ``k``, ``v``, ``padding`` (only if there is a padding mask) and ``middles`` (only with the
            diagonal prior; the index of each token, not counting padding).
        """
        memory = {"k": k, "v": v, **({} if padding_mask is None else {"padding": padding_mask})}
        if self.diagonal is not None:
            mask = materialize_padding(padding_mask, k)
            memory["middles"] = middles(mask, mask)[1]  # index of each token, not counting padding
        return memory

    def read_context(
        self, query: Tensor, memory: State, need_weights: bool = False
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Attend from the decoder input to the cached keys and values of the context.

        Overrides :meth:`PeerAttention.read_context`. Attention weights are computed separately, and only if
        needed.

        Args:
            query: decoder input [T, B, C]: T positions, batch size B, and model width C.
            memory: cached keys ``k`` and values ``v``, each [B, H, S, K], for S tokens and H heads.
                ``padding`` [B, S] is a mask, True at padding, and may be missing. ``middles`` is the index of
                each token, and only needed for the diagonal prior.
            need_weights: return the attention weights (default: False).

        Returns:
            - output [B, H, T, K] of each head: H heads of width K.
            - attention weights [B, H, T, S] (None if ``need_weights`` is False).
        """
        (q,) = self.project_heads(query, "q")
        k, v, padding_mask = memory["k"], memory["v"], memory.get("padding")
        attention_mask, bias = combine_masks(padding_mask), None
        if self.diagonal is not None:
            place, origin = self.diagonal_positions or (torch.arange(q.size(2), device=q.device)[None], None)
            bias = self.diagonal(place, memory["middles"], padding_mask, origin).bias()
        weights = naive_softmax_weights(q, k, attention_mask, bias) if need_weights else None
        return softmax_attention(q, k, v, attention_mask, self.dropout, bias), weights

    def attend_incrementally(
        self, parts: Parts, padding_mask: Optional[Tensor], state: Optional[State]
    ) -> Tuple[Tensor, State]:
        """Continue causal attention, using the cached keys and values of all previous positions.

        Overrides :meth:`PeerAttention.attend_incrementally`.

        Args:
            parts: queries, keys and values of the new positions, each [B, H, T, K]: batch size B, H heads, T
                new positions, and head width K.
            padding_mask: mask [B, T] of the new positions, True at padding (None if there is no padding).
            state: state returned by the previous call (None at the start). Its entries are the keys ``k`` and
                values ``v`` of all previous positions, and their mask ``padding``.

        Returns:
            - output [B, H, T, K] of each head at the new positions.
            - state after the new positions, with the same entries.
        """
        (q, k, v), padding_mask = parts, materialize_padding(padding_mask, parts[0])
        if state is not None:
            k, v = torch.cat([state["k"], k], dim=2), torch.cat([state["v"], v], dim=2)
            padding_mask = torch.cat([state["padding"], padding_mask], dim=1)
        positions = torch.arange(k.size(2), device=k.device)
        attention_mask = combine_masks(padding_mask, positions > positions[-q.size(2) :, None])
        output = softmax_attention(q, k, v, attention_mask, self.dropout, self.alibi_bias(q, k))
        return output, {"k": k, "v": v, "padding": padding_mask}
