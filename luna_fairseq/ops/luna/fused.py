"""Pack and unpack attention through torch's fused softmax attention."""

from typing import Optional

from torch import Tensor

from luna_fairseq.ops.softmax import softmax_attention


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tensor:
    """What :func:`naive_attention` defines, without keeping the weights. Same arguments; returns [B, H, T,
    K]."""
    excluded = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
    return softmax_attention(q, k, v, excluded, dropout, bias)
