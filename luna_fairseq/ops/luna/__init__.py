"""One of Luna's two nested softmax attentions: pack (P attends to the context) or unpack (X attends to Y_P)."""

from typing import Optional

from torch import Tensor

from luna_fairseq.ops.luna.fused import fused_attention
from luna_fairseq.ops.luna.naive import naive_attention
from luna_fairseq.ops.luna.short import has_few_keys, short_attention


def luna_attention(
    q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Optional[Tensor] = None, dropout: float = 0.0
) -> Tensor:
    """What :func:`naive_attention` defines, in the form that is fastest for these inputs. Same arguments; returns [B, H, T, K]."""
    form = short_attention if has_few_keys(q, k) else fused_attention
    return form(q, k, v, key_padding_mask, dropout)


__all__ = ["fused_attention", "luna_attention", "naive_attention", "short_attention"]
