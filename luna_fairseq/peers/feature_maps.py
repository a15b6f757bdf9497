"""Attention by feature maps: the weight of j for i is phi(q_i) . phi(k_j), divided by the sum over j.

``y_i = phi(q_i) S / (phi(q_i) . z)`` with ``S = sum_j phi(k_j) v_j^T`` and ``z = sum_j phi(k_j)``; in causal
attention the sums go up to i, in decoding they are the state. Linear in time and memory, and constant in a
state of M x (K + 1) a head.
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from luna_fairseq.ops.causal_linear import chunk_causal_linear, recurrent_causal_linear
from luna_fairseq.peers.attention import CAUSAL, Parts, PeerAttention, State, given_padding


class Keys(NamedTuple):
    """Feature maps of keys.

    Attributes:
        features: [B, H, S, M], 0 at padding
        log_scale: what all of them were divided by, its logarithm [B, H, 1, 1]; None for 1. It cancels within
            one call
        log_decay: what every position leaves of the ones before it, its logarithm [B, H, S]; None for all
    """

    features: Tensor
    log_scale: Optional[Tensor] = None
    log_decay: Optional[Tensor] = None


class FeatureMapAttention(PeerAttention):
    """What Linear Transformer, Performer and RFA share. Attention dropout has no weights to drop here."""

    def map_queries(self, q: Tensor) -> Tensor:
        """phi(q) [B, H, T, M] of q [B, H, T, K], in float32 or wider."""
        raise NotImplementedError

    def map_keys(self, k: Tensor, padding: Optional[Tensor], *more: Tensor) -> Keys:
        """phi(k) of k [B, H, S, K]; ``more`` is what :meth:`project` returns after q, k and v."""
        raise NotImplementedError

    def divide(self, sums: Tensor, *total: Tensor) -> Tensor:
        """The mean of values [.., K], from sums [.., K + 1] of values and of ones; ``total``: see floor."""
        return sums[..., :-1] / torch.maximum(sums[..., -1:], self.floor(sums, *total))

    def floor(self, sums: Tensor, *total: Tensor) -> Tensor:
        """What a sum of weights is at least, so that nothing is divided by 0."""
        return sums.new_tensor(torch.finfo(sums.dtype).tiny ** 0.5)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *more: Tensor, padding: Optional[Tensor] = None
    ) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            keys = self.map_keys(k, padding, *more)
            if self.form == CAUSAL:
                sums = chunk_causal_linear(self.map_queries(q), keys.features, with_ones(v), keys.log_decay)
                return self.divide(sums, *self.totals(keys, padding)).to(v.dtype)
            return self._read(q, self._digest(keys, v, padding)).to(v.dtype)

    def totals(self, keys: Keys, padding: Optional[Tensor], before: Optional[Tensor] = None) -> Parts:
        """What :meth:`floor` needs to know of causal sums; ``before``: of those in the state."""
        return ()

    def go_on(self, parts: Parts, padding: Optional[Tensor], state: Optional[State]) -> Tuple[Tensor, State]:
        q, k, v, *more = parts
        state = state or {}
        with torch.autocast(q.device.type, enabled=False):
            keys, sums = self.map_keys(k, padding, *more), state.get("sums")
            saved = {}
            if keys.log_scale is not None:
                saved["log_scale"] = torch.maximum(keys.log_scale, state.get("log_scale", keys.log_scale))
                keys = keys._replace(features=keys.features * (keys.log_scale - saved["log_scale"]).exp())
                if sums is not None:
                    sums = sums * (state["log_scale"] - saved["log_scale"]).exp()
            totals = self.totals(keys, padding, state.get("total"))
            for total in totals:
                saved["total"] = total[..., -1:, :]
            output, saved["sums"] = recurrent_causal_linear(
                self.map_queries(q), keys.features, with_ones(v), keys.log_decay, sums
            )
            return self.divide(output, *totals).to(v.dtype), saved

    def digest(self, context: Tensor, padding: Optional[Tensor]) -> State:
        k, v = self.heads(context, "k", "v")
        with torch.autocast(k.device.type, enabled=False):
            return self._digest(self.map_keys(k, padding), v, padding)

    def read(self, query: Tensor, memory: State, need_weights: bool = False) -> Tuple[Tensor, None]:
        (q,) = self.heads(query, "q")
        with torch.autocast(q.device.type, enabled=False):
            return self._read(q, memory), None

    def _digest(self, keys: Keys, v: Tensor, padding: Optional[Tensor]) -> State:
        sums = keys.features.transpose(-2, -1) @ with_ones(v)
        count = (~given_padding(padding, v)).sum(dim=1).to(sums.dtype)[:, None, None, None]
        return {"sums": sums, "total": count}

    def _read(self, q: Tensor, memory: State) -> Tensor:
        return self.divide(self.map_queries(q) @ memory["sums"], memory["total"])

    def weigh(self, features: Tensor, keys: Tensor, padding: Optional[Tensor]) -> Tensor:
        """For definitions: phi(q_i) . phi(k_j) [B, H, T, S] of what i may see, else 0; not yet divided."""
        weights = features @ keys.transpose(-2, -1)
        weights = weights.masked_fill(given_padding(padding, keys)[:, None, None, :], 0.0)
        return weights.tril() if self.form == CAUSAL else weights


def with_ones(v: Tensor) -> Tensor:
    """Values [B, H, S, K] with a column of ones behind them, in float32 or wider."""
    dtype = torch.promote_types(v.dtype, torch.float32)
    return torch.cat([v.to(dtype), v.new_ones((), dtype=dtype).expand(*v.shape[:-1], 1)], dim=-1)


def mean_of(v: Tensor, weights: Tensor) -> Tensor:
    """The mean of values [B, H, S, K] by weights [B, H, T, S], none negative; zeros where all are 0."""
    return weights @ v / weights.sum(dim=-1, keepdim=True).clamp(min=1e-30)


def mask_features(features: Tensor, padding: Optional[Tensor]) -> Tensor:
    """Features [B, H, S, M] with zeros at padding [B, S]."""
    return features if padding is None else features.masked_fill(padding[:, None, :, None], 0.0)
