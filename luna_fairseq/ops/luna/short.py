"""Pack and unpack attention on a CPU where the keys are few: unpack attention always, pack attention to a
short sentence.

With anchors also pack attention to a long context: its queries are few, and torch's fused attention has no
gradient for what is added to the logits on a CPU."""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.luna.naive import masked_softmax

# As many as a head is usually wide: the weights are then no more numbers than the queries, or the keys.
FEW = 64


def is_short(q: Tensor, k: Tensor, bias: Optional[Tensor] = None) -> bool:
    """Whether plain products are faster than torch's fused attention, for q [B, H, T, K] and k [B, H, S, K].

    The fused kernel works on blocks of hundreds of keys. With 16 (8 heads of 64, 2 threads, torch 2.13) it
    was 0.4 to 0.8 times as fast as :func:`short_attention` for 1,000 queries in 1 to 32 sentences, forward
    and backward. What is added to the logits and has a gradient it does not take; then it is enough that the
    queries are few.
    """
    few = min(q.size(2), k.size(2)) if bias is not None else k.size(2)
    return q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64) and few <= FEW


def short_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tensor:
    """What :func:`naive_attention` defines, in products that take the heads of a projection as they lie in
    memory.

    Same arguments; returns [B, H, T, K].
    """
    heads = q.shape[:2]
    shape = (*heads, q.size(2), k.size(2))
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scale = q.size(-1) ** -0.5
    if bias is None:
        weights = torch.bmm(q, k.transpose(1, 2) * scale)  # the keys are scaled: they are few
    else:
        weights = torch.baddbmm(
            bias.to(q.dtype).expand(shape).flatten(0, 1), q, k.transpose(1, 2), alpha=scale
        )
    weights = masked_softmax(weights.unflatten(0, heads), key_padding_mask).flatten(0, 1)
    return torch.bmm(F.dropout(weights, dropout), v).unflatten(0, heads)
