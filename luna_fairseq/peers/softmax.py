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

from luna_fairseq.anchored.diagonal import measure_diagonal
from luna_fairseq.anchored.geometry import TargetPlaces
from luna_fairseq.anchored.places import find_centres
from luna_fairseq.anchored.strengths import DiagonalPrior
from luna_fairseq.ops.attention import MAX_PENALTY, naive_softmax_weights, softmax_attention
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

    Self-attention can have the bias of ALiBi, and cross-attention the diagonal prior, a bias toward source
    tokens near an expected position. For this prior, ``key_padding_mask`` may be a tuple of the padding mask
    and the positions of the queries, which otherwise count from 0.
    """

    name = "softmax"

    def build(self, options: Any) -> None:
        self.alibi = options.alibi
        has_prior = options.diagonal_prior and self.role == CROSS
        self.diagonal = DiagonalPrior(self.num_heads) if has_prior else None

    def alibi_bias(self, queries: Tensor, keys: Tensor) -> Optional[Tensor]:
        """Compute the ALiBi bias [H, T, S] for queries at the last T of S positions, or None without ALiBi.

        The bias is clamped to at least -50, where attention weights are negligible.
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
        attention_mask = combine_masks(padding_mask, self.future_mask(q))
        return softmax_attention(q, k, v, attention_mask, self.dropout, self.alibi_bias(q, k))

    def attend_naively(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        attention_mask = combine_masks(padding_mask, self.future_mask(q))
        return naive_softmax_weights(q, k, attention_mask, self.alibi_bias(q, k)) @ v

    def cache_context(self, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> State:
        memory = {"k": k, "v": v, **({} if padding_mask is None else {"padding": padding_mask})}
        if self.diagonal is not None:
            mask = materialize_padding(padding_mask, k)
            memory["token_place"] = find_centres(mask, mask)[1]
        return memory

    def read_context(
        self, query: Tensor, memory: State, need_weights: bool = False
    ) -> Tuple[Tensor, Optional[Tensor]]:
        (q,) = self.project_heads(query, "q")
        k, v, padding_mask = memory["k"], memory["v"], memory.get("padding")
        attention_mask, bias = combine_masks(padding_mask), None
        if self.diagonal is not None:
            place = memory.get("target_place", torch.arange(q.size(2), device=q.device)[None])
            origin = memory.get("target_origin")
            target = TargetPlaces(place, origin)
            strength, ratio = self.diagonal()
            bias = measure_diagonal(strength, ratio, target, memory["token_place"], padding_mask).bias()
        weights = naive_softmax_weights(q, k, attention_mask, bias) if need_weights else None
        return softmax_attention(q, k, v, attention_mask, self.dropout, bias), weights

    def attend_incrementally(
        self, parts: Parts, padding_mask: Optional[Tensor], state: Optional[State]
    ) -> Tuple[Tensor, State]:
        (q, k, v), padding_mask = parts, materialize_padding(padding_mask, parts[0])
        if state is not None:
            k, v = torch.cat([state["k"], k], dim=2), torch.cat([state["v"], v], dim=2)
            padding_mask = torch.cat([state["padding"], padding_mask], dim=1)
        positions = torch.arange(k.size(2), device=k.device)
        attention_mask = combine_masks(padding_mask, positions > positions[-q.size(2) :, None])
        output = softmax_attention(q, k, v, attention_mask, self.dropout, self.alibi_bias(q, k))
        return output, {"k": k, "v": v, "padding": padding_mask}
