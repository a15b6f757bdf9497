"""Attention through feature maps, also called kernel attention or linear attention.

A function phi maps queries q and keys k to M features each. The weight of key j for query i is
phi(q_i) . phi(k_j), divided by the sum over j. For values v_j, the output is::

    y_i = phi(q_i) S / (phi(q_i) . z)    with S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j)

In causal attention the sums for query i run over j <= i, and they are the decoding state. Time and memory are
linear in the sequence length. For heads of width K, the state has a constant size of M x (K + 1) per head.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.causal_linear import chunk_causal_linear, recurrent_causal_linear
from luna_fairseq.peers.attention import CAUSAL, Parts, PeerAttention, State, materialize_padding


class Keys(NamedTuple):
    """Features of the keys, with their scale and decay.

    The weight of a key is the dot product of its features with those of the query.

    Shapes: batch size B, H heads, S keys, and M features.

    Attributes:
        features: features phi(k) [B, H, S, M] of the keys, 0 at padding.
        log_scale: log of the number [B, H, 1, 1] by which all features were divided to avoid overflow. The
            number cancels when the weights are normalized (default: None, not divided).
        log_decay: log of the factor [B, H, S] by which each position decays the sums over earlier positions
            (default: None, no decay).
    """

    features: Tensor
    log_scale: Optional[Tensor] = None
    log_decay: Optional[Tensor] = None


class FeatureMapAttention(PeerAttention):
    """Base class of linear-time attentions, which replace the softmax with a feature map phi.

    The weight of key k for query q is phi(q) . phi(k), divided by the sum over all keys. Linear Transformer,
    Performer and RFA are subclasses. They implement :meth:`map_queries` and :meth:`map_keys`. Attention
    dropout has no effect, because the weights are never computed. See :class:`PeerAttention` for the
    constructor arguments.
    """

    def map_queries(self, q: Tensor) -> Tensor:
        """Compute the features phi(q) of queries. Subclasses must implement this method.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.

        Returns:
            Features [B, H, T, M] in float32 or higher precision, where M is the number of features.
        """
        raise NotImplementedError

    def map_keys(self, k: Tensor, padding_mask: Optional[Tensor], *extra: Tensor) -> Keys:
        """Compute the features phi(k) of keys. Subclasses must implement this method.

        Args:
            k: keys [B, H, S, K]: batch size B, H heads, S positions, and head width K.
            padding_mask: mask [B, S], True at padding (None if there is no padding).
            extra: other tensors of the projected input, such as gate logits [B, H, S, 1] in RFA. Empty by
                default.

        Returns:
            Features of the keys, with their scale and decay.
        """
        raise NotImplementedError

    def divide(self, sums: Tensor, *total: Tensor) -> Tensor:
        """Divide weighted sums of values by the sums of their weights, to obtain weighted means.

        The divisor is clamped from below by :meth:`least_divisor`, to avoid a division by zero.

        Args:
            sums: weighted sums [..., K + 1] of values of width K. The last column is the sum of the weights.
            total: tensors [..., 1] from which the smallest divisor is computed. Empty for attentions with a
                constant smallest divisor.

        Returns:
            Weighted means [..., K] of the values.
        """
        return sums[..., :-1] / torch.maximum(sums[..., -1:], self.least_divisor(sums, *total))

    def least_divisor(self, sums: Tensor, *total: Tensor) -> Tensor:
        """Return the smallest divisor of a weighted mean, to avoid a division by zero.

        By default, it is the square root of the smallest normal number of the dtype.

        Args:
            sums: weighted sums [..., K + 1] to divide, used for their dtype and device.
            total: one tensor [..., 1]: the number of keys, or in causal attention, the tensor from
                :meth:`weight_totals`. Ignored by default.

        Returns:
            A scalar tensor, or a tensor that broadcasts to [..., 1].
        """
        return sums.new_tensor(torch.finfo(sums.dtype).tiny ** 0.5)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, padding_mask: Optional[Tensor] = None
    ) -> Tensor:
        """Compute self-attention in linear time from the features of queries and keys.

        Overrides :meth:`PeerAttention.attend`. With the feature map phi, the output for query q_i is the mean
        of the values v_j, weighted by phi(q_i) . phi(k_j). In causal attention, the mean runs over j <= i.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            k: keys, with the same shape as ``q``.
            v: values, with the same shape as ``q``.
            extra: other tensors of the projected input, such as gate logits [B, H, T, 1] in RFA. Empty by
                default.
            padding_mask: mask [B, T], True at padding (default: None, no padding).

        Returns:
            Output of each head, with the same shape as ``q``.
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
        """Return the arguments of :meth:`least_divisor` in causal attention.

        By default, there are none. RFA overrides this method and returns the total weight of all keys at each
        position, if all query-key products were equal to 1.

        Args:
            keys: features of the T new keys.
            padding_mask: mask [B, T], True at padding, for batch size B (None if there is no padding).
            before: total [B, 1 or H, 1, 1] at the last earlier position, for H heads (default: None, no
                earlier positions).

        Returns:
            A tuple of tensors, empty by default.
        """
        return ()

    def attend_incrementally(
        self, parts: Parts, padding_mask: Optional[Tensor], state: Optional[State]
    ) -> Tuple[Tensor, State]:
        """Continue causal attention, using the cached sums over the previous keys.

        Overrides :meth:`PeerAttention.attend_incrementally`. If the features have a scale, the cached sums
        and the new features are converted to the larger of their two scales.

        Args:
            parts: queries, keys and values of the new positions, each [B, H, T, K], and any other tensors of
                the projected input. Batch size B, H heads, T new positions, and head width K.
            padding_mask: mask [B, T] of the new positions, True at padding (None if there is no padding).
            state: state returned by the previous call (None at the start). ``sums`` [B, H, M, K + 1] is the
                sum of the outer products of M features and values, with the sum of the features as the last
                column. ``log_scale`` and ``total`` are stored only by some attentions.

        Returns:
            - output [B, H, T, K] of each head at the new positions.
            - state after the new positions, with the same entries.
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
        """Compute the sums over the context that cross-attention needs, once for all decoding steps.

        Overrides :meth:`PeerAttention.cache_context`.

        Args:
            k: keys [B, H, S, K]: batch size B, H heads, S tokens, and head width K.
            v: values, with the same shape as ``k``.
            padding_mask: mask [B, S], True at padding (default: None, no padding).

        Returns:
            - ``sums``: sum [B, H, M, K + 1] of the outer products of M key features and values. The last
              column is the sum of the features.
            - ``total``: number of tokens [B, 1, 1, 1], excluding padding.
        """
        with torch.autocast(k.device.type, enabled=False):
            return self._sum_keys(self.map_keys(k, padding_mask), v, padding_mask)

    def read_context(self, query: Tensor, memory: State, need_weights: bool = False) -> Tuple[Tensor, None]:
        """Attend from the decoder input to the cached sums over the context.

        Overrides :meth:`PeerAttention.read_context`. Attention weights are not available.

        Args:
            query: decoder input [T, B, C]: T positions, batch size B, and model width C.
            memory: ``sums`` [B, H, M, K + 1], the sum of the outer products of M key features and values, and
                ``total`` [B, 1, 1, 1], the number of tokens of the context.
            need_weights: ignored (default: False).

        Returns:
            - output [B, H, T, K] of each head: H heads of width K.
            - None in place of attention weights.
        """
        (q,) = self.project_heads(query, "q")
        with torch.autocast(q.device.type, enabled=False):
            return self._weighted_mean(q, memory), None

    def _sum_keys(self, keys: Keys, v: Tensor, padding_mask: Optional[Tensor]) -> State:
        """Compute the sums over all keys that bidirectional and cross-attention share across queries.

        Args:
            keys: features of the keys, M per key.
            v: values [B, H, S, K]: batch size B, H heads, S keys, and head width K.
            padding_mask: mask [B, S], True at padding (None if there is no padding).

        Returns:
            - ``sums``: sum [B, H, M, K + 1] of the outer products of features and values. The last column is
              the sum of the features.
            - ``total``: number of tokens [B, 1, 1, 1], excluding padding.
        """
        sums = keys.features.transpose(-2, -1) @ append_ones(v)
        count = (~materialize_padding(padding_mask, v)).sum(dim=1).to(sums.dtype)[:, None, None, None]
        return {"sums": sums, "total": count}

    def _weighted_mean(self, q: Tensor, memory: State) -> Tensor:
        """Compute the attention output for all queries from the sums over the keys.

        The output is the weighted mean ``phi(q) S / (phi(q) . z)``. S is the sum of the outer products of key
        features and values, and z is the sum of the key features.

        Args:
            q: queries [B, H, T, K]: batch size B, H heads, T positions, and head width K.
            memory: ``sums`` [B, H, M, K + 1], which holds S with z as its last column, for M features, and
                ``total`` [B, 1, 1, 1], the number of keys.

        Returns:
            Output of each head, with the same shape as ``q``.
        """
        return self.divide(self.map_queries(q) @ memory["sums"], memory["total"])

    def unnormalized_weights(self, features: Tensor, keys: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
        """Compute phi(q_i) . phi(k_j) for all query-key pairs, with masked pairs set to 0.

        The reference implementations in tests use this matrix. In causal attention, later keys are masked.

        Args:
            features: features [B, H, T, M] of T queries: batch size B, H heads, and M features.
            keys: features [B, H, S, M] of S keys.
            padding_mask: mask [B, S] of keys, True at padding (None if there is no padding).

        Returns:
            Weights [B, H, T, S] before normalization.
        """
        weights = features @ keys.transpose(-2, -1)
        weights = weights.masked_fill(materialize_padding(padding_mask, keys)[:, None, None, :], 0.0)
        return weights.tril() if self.form == CAUSAL else weights


def append_ones(v: Tensor) -> Tensor:
    """Append a column of ones to the values, so that a weighted sum also yields the sum of the weights.

    Args:
        v: values [B, H, S, K]: batch size B, H heads, S keys, and head width K.

    Returns:
        Values [B, H, S, K + 1] in float32 or higher precision.
    """
    dtype = torch.promote_types(v.dtype, torch.float32)
    return torch.cat([v.to(dtype), v.new_ones((), dtype=dtype).expand(*v.shape[:-1], 1)], dim=-1)


def weighted_mean(v: Tensor, weights: Tensor) -> Tensor:
    """Compute, for each query, the weighted mean of the values (0 if all its weights are 0).

    Args:
        v: values [B, H, S, K]: batch size B, H heads, S keys, and head width K.
        weights: nonnegative weights [B, H, T, S] for T queries. They need not sum to 1.

    Returns:
        Means [B, H, T, K].
    """
    return weights @ v / weights.sum(dim=-1, keepdim=True).clamp(min=1e-30)


def mask_features(features: Tensor, padding_mask: Optional[Tensor]) -> Tensor:
    """Set features to zero at padding.

    Args:
        features: features [B, H, S, M]: batch size B, H heads, S positions, and M features.
        padding_mask: mask [B, S], True at padding (None if there is no padding).

    Returns:
        Masked features [B, H, S, M].
    """
    return features if padding_mask is None else features.masked_fill(padding_mask[:, None, :, None], 0.0)
