"""Attention through feature maps, also called kernel attention or linear attention.

A function phi maps queries q and keys k to M features each. The weight of key j for query i is phi(q_i) .
phi(k_j), divided by the sum over j. For values v_j, the output is::

    y_i = phi(q_i) S / (phi(q_i) . z)    with S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j)

In causal attention, the sums for query i run over j <= i. The sums up to the last token are the decoding
state. Time and memory are linear in the sequence length. S and z are stored together as ``sums``
[B, H, M, K + 1], with z as the last column.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.attention import disable_autocast
from luna_fairseq.ops.causal_linear import chunk_causal_linear, recurrent_causal_linear
from luna_fairseq.peers.attention import CAUSAL, Parts, PeerAttention, State, materialize_padding


class Keys(NamedTuple):
    """Features phi(k) of attention keys k, with their scale and decay.

    Attributes:
        features: features of the keys, [B, H, S, M], 0 at padding.
        log_scale: log of the divisor [B, H, 1, 1] of all features. None if the features were not divided. The
            division avoids overflow, and cancels when the weights are normalized.
        log_decay: log of the decay factors [B, H, S]. None without decay. Factor j multiplies the sums over
            the positions before j.
    """

    features: Tensor
    log_scale: Optional[Tensor] = None
    log_decay: Optional[Tensor] = None


class FeatureMapAttention(PeerAttention):
    """Base class for linear-time attention with a feature map phi in place of the softmax.

    The weight of a key k for a query q is proportional to phi(q) . phi(k). In the methods, ``extra`` are
    additional projected tensors that a subclass needs, such as gate logits. Attention dropout has no effect,
    because the weights are never computed.
    """

    def map_queries(self, q: Tensor) -> Tensor:
        """Compute the M features phi(q) [B, H, T, M] of each query, in float32 or higher precision."""
        raise NotImplementedError

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *extra: Tensor) -> Keys:
        """Compute the features phi(k) of keys k [B, H, S, K], 0 at padding, with their scale and decay."""
        raise NotImplementedError

    def divide(self, sums: Tensor, *total: Tensor) -> Tensor:
        """Divide weighted sums of values by the sum of the weights, the last column of ``sums`` [..., K + 1].

        The divisor is clamped to at least ``least_divisor(sums, *total)``. The result is [..., K].
        """
        return sums[..., :-1] / torch.maximum(sums[..., -1:], self.least_divisor(sums, *total))

    def least_divisor(self, sums: Tensor, *total: Tensor) -> Tensor:
        """Return the lower bound of the divisor in :meth:`divide`, by default a tiny constant.

        A bound may depend on ``total``, the number of keys [B, 1, 1, 1] or, if causal, :meth:`weight_totals`.
        """
        # 5e-31 in float32. The gradient divides by this number, which therefore cannot be much smaller.
        return sums.new_tensor(torch.finfo(sums.dtype).tiny ** 0.8)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        with disable_autocast(q.device):
            keys = self.map_keys(k, padding_mask, *extra)
            if self.role == CAUSAL:
                sums = chunk_causal_linear(self.map_queries(q), keys.features, append_ones(v), keys.log_decay)
                return self.divide(sums, *self.weight_totals(keys, padding_mask)).to(v.dtype)
            return self._weighted_mean(q, self._sum_keys(keys, v, padding_mask)).to(v.dtype)

    def weight_totals(
        self, keys: Keys, padding_mask: Optional[Tensor], before: Optional[Tensor] = None
    ) -> Parts:
        """Return the ``total`` argument of :meth:`least_divisor` as a tuple, which is empty by default.

        ``before`` [B, 1 or H, 1, 1] is the total at the last earlier position, or None at the start.
        """
        return ()

    def attend_incrementally(
        self, parts: Parts, padding_mask: Optional[Tensor], state: Optional[State]
    ) -> Tuple[Tensor, State]:
        """Compute causal attention for T new positions, given the sums over the keys of earlier positions.

        ``parts`` are the queries, keys, values and extra tensors of the new positions. The state holds
        ``sums`` and, if used, the ``log_scale`` of :class:`Keys` and the ``total`` of :meth:`weight_totals`.
        A subclass may divide features by a scale to avoid overflow. The old sums and the new features are
        rescaled to the larger of their scales. Return the output [B, H, T, K] and the new state.
        """
        q, k, v, *extra = parts
        state = state or {}
        with disable_autocast(q.device):
            keys, sums = self.map_keys(k, padding_mask, *extra), state.get("sums")
            saved = {}
            if keys.log_scale is not None:
                saved["log_scale"] = torch.maximum(keys.log_scale, state.get("log_scale", keys.log_scale))
                keys = keys._replace(features=keys.features * (keys.log_scale - saved["log_scale"]).exp())
                if sums is not None:
                    sums = sums * (state["log_scale"] - saved["log_scale"]).exp()
            totals = self.weight_totals(keys, padding_mask, state.get("total"))
            for total in totals:
                saved["total"] = total[..., -1:, :]
            output, saved["sums"] = recurrent_causal_linear(
                self.map_queries(q), keys.features, append_ones(v), keys.log_decay, sums
            )
            return self.divide(output, *totals).to(v.dtype), saved

    def cache_context(self, k: Tensor, v: Tensor, padding_mask: Optional[Tensor] = None) -> State:
        with disable_autocast(k.device):
            return self._sum_keys(self.map_keys(k, padding_mask), v, padding_mask)

    def read_context(self, query: Tensor, memory: State, need_weights: bool = False) -> Tuple[Tensor, None]:
        (q,) = self.project_heads(query, "q")
        with disable_autocast(q.device):
            return self._weighted_mean(q, memory), None

    def _sum_keys(self, keys: Keys, v: Tensor, padding_mask: Optional[Tensor]) -> State:
        """Compute the sums over all keys and the number of keys, as a dictionary.

        ``sums`` [B, H, M, K + 1] holds the products of M features and values and, in the last column, the sum
        of the features. ``total`` [B, 1, 1, 1] is the number of keys without padding.
        """
        sums = keys.features.transpose(-2, -1) @ append_ones(v)
        count = (~materialize_padding(padding_mask, v)).sum(dim=1).to(sums.dtype)[:, None, None, None]
        return {"sums": sums, "total": count}

    def _weighted_mean(self, q: Tensor, memory: State) -> Tensor:
        """Compute the output [B, H, T, K] of kernel attention, given the key sums of :meth:`_sum_keys`."""
        return self.divide(self.map_queries(q) @ memory["sums"], memory["total"])

    def unnormalized_weights(self, features: Tensor, keys: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
        """Compute the weights phi(q_i) . phi(k_j) [B, H, T, S] before normalization, for tests.

        The weights are 0 at padding and, in causal attention, at later keys. ``features`` [B, H, T, M] are
        the query features phi(q), and ``keys`` [B, H, S, M] the key features phi(k).
        """
        weights = features @ keys.transpose(-2, -1)
        weights = weights.masked_fill(materialize_padding(padding_mask, keys)[:, None, None, :], 0.0)
        return weights.tril() if self.role == CAUSAL else weights


def append_ones(v: Tensor) -> Tensor:
    """Append a column of ones to v [..., K], so that a weighted sum of v includes the sum of the weights."""
    dtype = torch.promote_types(v.dtype, torch.float32)
    return torch.cat([v.to(dtype), v.new_ones((), dtype=dtype).expand(*v.shape[:-1], 1)], dim=-1)


def weighted_mean(v: Tensor, weights: Tensor) -> Tensor:
    """Return the means [..., T, K] of v [..., S, K] with weights [..., T, S], or 0 if all weights are 0."""
    return weights @ v / weights.sum(dim=-1, keepdim=True).clamp(min=1e-30)


def mask_features(features: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
    """Set the features [B, H, S, M] of keys to zero at padding, so that padding gets no weight."""
    return features if padding_mask is None else features.masked_fill(padding_mask[:, None, :, None], 0.0)
