"""Attention through feature maps, also called kernel attention or linear attention.

The weight of key j for query i is phi(q_i) . phi(k_j), divided by the sum over j::

    y_i = phi(q_i) S / (phi(q_i) . z)    with S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j)

In causal attention the sums for query i run over j <= i, and they are the decoding state. Time and memory are
linear in the length. The state has a constant size of M x (K + 1) per head.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.causal_linear import chunk_causal_linear, recurrent_causal_linear
from luna_fairseq.peers.attention import CAUSAL, Parts, PeerAttention, State, materialize_padding


class Keys(NamedTuple):
    """Feature maps of keys.

    B is the batch size, H the number of heads, S the number of keys, and M the number of features.

    Attributes:
        features: phi(k) [B, H, S, M], 0 at padding.
        log_scale: logarithm [B, H, 1, 1] of the factor that all features were divided by (default: None, no
            factor). The factor cancels within one call.
        log_decay: logarithm [B, H, S] of the factor by which each position scales the sums of earlier
            positions (default: None, no decay).
    """

    features: Tensor
    log_scale: Optional[Tensor] = None
    log_decay: Optional[Tensor] = None


class FeatureMapAttention(PeerAttention):
    """Base class of attentions in linear time that map queries and keys to features.

    Linear Transformer, Performer and RFA are subclasses. Attention dropout has no effect, because the weights
    are never computed.

    M is the number of features. The other letters of shapes and the arguments are those of
    :class:`PeerAttention`.
    """

    def map_queries(self, q: Tensor) -> Tensor:
        """Compute the feature maps phi(q) of queries.

        Args:
            q: queries [B, H, T, K].

        Returns:
            Features [B, H, T, M] in float32 or wider.
        """
        raise NotImplementedError

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *extra: Tensor) -> Keys:
        """Compute the feature maps of keys.

        Args:
            k: keys [B, H, S, K].
            padding_mask: mask [B, S], True at padding, or None without padding.
            extra: tensors that :meth:`project` returns after q, k and v.

        Returns:
            Features, scale and decay of the keys.
        """
        raise NotImplementedError

    def divide(self, sums: Tensor, *total: Tensor) -> Tensor:
        """Divide weighted sums of values by the sums of their weights.

        Args:
            sums: weighted sums of the values and, in the last column, of ones [..., K + 1].
            total: optional argument of :meth:`least_divisor`.

        Returns:
            Weighted means [..., K] of the values.
        """
        return sums[..., :-1] / torch.maximum(sums[..., -1:], self.least_divisor(sums, *total))

    def least_divisor(self, sums: Tensor, *total: Tensor) -> Tensor:
        """Return the least divisor of :meth:`divide`, which prevents a division by zero.

        Args:
            sums: argument of :meth:`divide`.
            total: tensors returned by :meth:`weight_totals`; unused by default.

        Returns:
            A scalar tensor, or a tensor that broadcasts to the sums of the weights.
        """
        return sums.new_tensor(torch.finfo(sums.dtype).tiny ** 0.5)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        """Compute self-attention in linear time.

        Args:
            q: queries [B, H, T, K].
            k: keys [B, H, T, K].
            v: values [B, H, T, K].
            extra: further tensors that :meth:`project` returned.
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output heads [B, H, T, K].
        """
        with torch.autocast(q.device.type, enabled=False):
            keys = self.map_keys(k, padding_mask, *extra)
            if self.form == CAUSAL:
                sums = chunk_causal_linear(self.map_queries(q), keys.features, append_ones(v), keys.log_decay)
                return self.divide(sums, *self.weight_totals(keys, padding_mask)).to(v.dtype)
            return self._weighted_mean(q, self._sum_keys(keys, v, padding_mask)).to(v.dtype)

    def weight_totals(
        self, keys: Keys, padding_mask: Optional[Tensor], before: Optional[Tensor] = None
    ) -> Parts:
        """Return the further tensors that :meth:`least_divisor` needs for causal sums.

        By default there are none.

        Args:
            keys: feature maps of the new keys.
            padding_mask: mask [B, T], True at padding, or None without padding.
            before: total in the decoding state (default: None, at the start).

        Returns:
            A tuple of tensors, empty by default.
        """
        return ()

    def attend_incrementally(
        self, parts: Parts, padding_mask: Optional[Tensor], state: Optional[State]
    ) -> Tuple[Tensor, State]:
        """Continue causal attention from the sums in ``state``.

        Stored sums and new features are brought to the same scale, the greater of the two.

        Args:
            parts: projections of the new positions, as returned by :meth:`project`.
            padding_mask: mask [B, T] of the new positions, True at padding, or None without padding.
            state: state after the previous positions, or None at the start.

        Returns:
            - output heads [B, H, T, K] of the new positions.
            - state after the new positions.
        """
        q, k, v, *extra = parts
        state = state or {}
        with torch.autocast(q.device.type, enabled=False):
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
        """Return the sums over the context and the number of its tokens.

        Args:
            k: keys [B, H, S, K].
            v: values [B, H, S, K].
            padding_mask: mask [B, S], True at padding (default: None, no padding).

        Returns:
            Tensors by name, which incremental decoding stores.
        """
        with torch.autocast(k.device.type, enabled=False):
            return self._sum_keys(self.map_keys(k, padding_mask), v, padding_mask)

    def read_context(self, query: Tensor, memory: State, need_weights: bool = False) -> Tuple[Tensor, None]:
        """Attend to the cached sums. No weights are returned.

        Args:
            query: decoder input [T, B, C].
            memory: tensors that :meth:`cache_context` returned.
            need_weights: ignored.

        Returns:
            - output heads [B, H, T, K].
            - None in place of attention weights.
        """
        (q,) = self.project_heads(query, "q")
        with torch.autocast(q.device.type, enabled=False):
            return self._weighted_mean(q, memory), None

    def _sum_keys(self, keys: Keys, v: Tensor, padding_mask: Optional[Tensor]) -> State:
        """Compute the sums over the keys, which all queries share.

        Args:
            keys: feature maps of the keys.
            v: values [B, H, S, K].
            padding_mask: mask [B, S], True at padding, or None without padding.

        Returns:
            ``sums``, the matrix S with z as its last column [B, H, M, K + 1], and ``total``, the number of
            tokens [B, 1, 1, 1].
        """
        sums = keys.features.transpose(-2, -1) @ append_ones(v)
        count = (~materialize_padding(padding_mask, v)).sum(dim=1).to(sums.dtype)[:, None, None, None]
        return {"sums": sums, "total": count}

    def _weighted_mean(self, q: Tensor, memory: State) -> Tensor:
        """Compute the output heads from the sums that :meth:`_sum_keys` returned.

        Args:
            q: queries [B, H, T, K].
            memory: sums over the keys.

        Returns:
            Output heads [B, H, T, K].
        """
        return self.divide(self.map_queries(q) @ memory["sums"], memory["total"])

    def unnormalized_weights(self, features: Tensor, keys: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
        """Compute phi(q_i) . phi(k_j) for all pairs, 0 at masked pairs, for reference implementations.

        Args:
            features: features [B, H, T, M] of queries.
            keys: features [B, H, S, M] of keys.
            padding_mask: mask [B, S] of keys, True at padding, or None without padding.

        Returns:
            Weights [B, H, T, S] before normalization.
        """
        weights = features @ keys.transpose(-2, -1)
        weights = weights.masked_fill(materialize_padding(padding_mask, keys)[:, None, None, :], 0.0)
        return weights.tril() if self.form == CAUSAL else weights


def append_ones(v: Tensor) -> Tensor:
    """Append a column of ones to the values, so that sums of values also hold the sums of the weights.

    B is the batch size, H the number of heads, S the number of keys and K the head width.

    Args:
        v: values [B, H, S, K].

    Returns:
        Values [B, H, S, K + 1] in float32 or wider.
    """
    dtype = torch.promote_types(v.dtype, torch.float32)
    return torch.cat([v.to(dtype), v.new_ones((), dtype=dtype).expand(*v.shape[:-1], 1)], dim=-1)


def weighted_mean(v: Tensor, weights: Tensor) -> Tensor:
    """Compute the weighted mean of values, 0 if all weights are 0.

    Args:
        v: values [B, H, S, K].
        weights: nonnegative weights [B, H, T, S].

    Returns:
        Means [B, H, T, K].
    """
    return weights @ v / weights.sum(dim=-1, keepdim=True).clamp(min=1e-30)


def mask_features(features: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
    """Set features to zero at padding.

    Args:
        features: features [B, H, S, M].
        padding_mask: mask [B, S], True at padding, or None without padding.

    Returns:
        Features [B, H, S, M].
    """
    return features if padding_mask is None else features.masked_fill(padding_mask[:, None, :, None], 0.0)
