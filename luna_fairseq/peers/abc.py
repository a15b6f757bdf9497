"""ABC, attention with bounded-memory control (Peng et al., 2022), in its learned form ABC_MLP.

A position writes its key and value to n slots with weights of its own, alpha_j = exp(W x_j) [n]; queries
attend to the slots: ``K~ = sum_j alpha_j k_j^T / sum_j alpha_j``, V~ alike (a mean for every slot), ``y_i =
softmax(K~ q_i / sqrt(K))^T V~``. In causal attention the sums go up to i. W x is kept within -32 and 32, as
exp(32) times a long sequence still fits into float32.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from luna_fairseq.ops.causal_linear import chunk_causal_linear, recurrent_causal_linear
from luna_fairseq.ops.softmax import softmax_attention
from luna_fairseq.peers.attention import CAUSAL, Parts, PeerAttention, State
from luna_fairseq.peers.feature_maps import mask_features

LIMIT = 32.0


class BoundedMemoryAttention(PeerAttention):
    """Constant state: keys and values of n slots, and what was written to each."""

    name = "abc"

    def build(self, options: Any) -> None:
        self.control_proj = nn.Linear(self.embed_dim, self.num_heads * options.abc_slots)
        nn.init.xavier_uniform_(self.control_proj.weight)

    def project(self, x: Tensor) -> Parts:
        return self.heads(x, "q", "k", "v", "control")

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, control: Tensor, padding: Optional[Tensor] = None
    ) -> Tensor:
        written = write(control, padding)
        if self.form != CAUSAL:
            return softmax_attention(q, *slots(written, k, v), None, self.dropout)
        with torch.autocast(q.device.type, enabled=False):
            logits = chunk_causal_linear(q.to(written.dtype), k.to(written.dtype), written)
            weights = self.weigh(logits, written.cumsum(dim=2))
            return chunk_causal_linear(weights, written, v)

    def weigh(self, logits: Tensor, total: Tensor) -> Tensor:
        """Weights of the slots, over what was written to each so far; all [B, H, T, n]."""
        mean = total.clamp(min=torch.finfo(total.dtype).tiny ** 0.5).reciprocal()
        return F.dropout((logits * mean * self.head_dim**-0.5).softmax(dim=-1), self.dropout) * mean

    def go_on(self, parts: Parts, padding: Optional[Tensor], state: Optional[State]) -> Tuple[Tensor, State]:
        q, k, v, control = parts
        state, written = state or {}, write(control, padding)
        with torch.autocast(q.device.type, enabled=False):
            total = written.cumsum(dim=2) + state.get("written", 0.0)
            logits, keys = recurrent_causal_linear(
                q.to(written.dtype), k.to(written.dtype), written, None, state.get("keys")
            )
            output, values = recurrent_causal_linear(
                self.weigh(logits, total), written, v, None, state.get("values")
            )
        return output, {"keys": keys, "values": values, "written": total[:, :, -1:]}

    def digest(self, context: Tensor, padding: Optional[Tensor]) -> State:
        k, v, control = self.heads(context, "k", "v", "control")
        return dict(zip(("k", "v"), slots(write(control, padding), k, v)))

    def read(self, query: Tensor, memory: State, need_weights: bool = False) -> Tuple[Tensor, None]:
        (q,) = self.heads(query, "q")
        return softmax_attention(q, memory["k"], memory["v"], None, self.dropout), None

    def define(
        self, q: Tensor, k: Tensor, v: Tensor, control: Tensor, padding: Optional[Tensor] = None
    ) -> Tensor:
        alpha = write(control, padding)
        outputs = []
        for t in range(q.size(2)):
            seen = slice(t + 1 if self.form == CAUSAL else None)
            share = alpha[:, :, seen] / alpha[:, :, seen].sum(dim=2, keepdim=True).clamp(min=1e-30)
            keys, values = (share.transpose(-2, -1) @ x[:, :, seen] for x in (k, v))
            logits = q[:, :, t : t + 1] @ keys.transpose(-2, -1) * self.head_dim**-0.5
            outputs.append(logits.softmax(dim=-1) @ values)
        return torch.cat(outputs, dim=2)


def write(control: Tensor, padding: Optional[Tensor]) -> Tensor:
    """alpha [B, H, S, n], in float32 or wider; 0 at padding."""
    control = control.to(torch.promote_types(control.dtype, torch.float32))
    return mask_features(control.clamp(-LIMIT, LIMIT).exp(), padding)


def slots(written: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
    """K~ and V~ [B, H, n, K], in the type of ``k``."""
    with torch.autocast(k.device.type, enabled=False):
        total = written.sum(dim=2).clamp(min=torch.finfo(written.dtype).tiny ** 0.5)
        share = (written / total.unsqueeze(2)).transpose(-2, -1)
        return (share @ k.to(share.dtype)).to(k.dtype), (share @ v.to(share.dtype)).to(v.dtype)
