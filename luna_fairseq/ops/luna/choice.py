"""Which form of pack and unpack attention is the fastest for given inputs."""

from typing import Optional

from torch import Tensor

from luna_fairseq.ops.luna.fused import fused_attention
from luna_fairseq.ops.luna.short import is_short, short_attention


def luna_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tensor:
    """What :func:`naive_attention` defines, in the form that is fastest for these inputs. Same arguments;
    returns [B, H, T, K]."""
    form = short_attention if is_short(q, k, bias) else fused_attention
    return form(q, k, v, key_padding_mask, dropout, bias)
