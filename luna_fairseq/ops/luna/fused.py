"""Pack and unpack attention through torch's fused softmax attention."""

from typing import Optional

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.luna.naive import naive_attention

# scaled_dot_product_attention came with torch 2.0; until 2.5 it gave NaN for a row whose keys are all left out.
_FUSED = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5)


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tensor:
    """What :func:`naive_attention` defines, without keeping the weights. Same arguments; returns [B, H, T, K]."""
    if not _FUSED:
        return naive_attention(q, k, v, key_padding_mask, dropout, bias)[0]
    included = None if key_padding_mask is None else ~key_padding_mask[:, None, None, :]
    if bias is not None:
        included = bias.to(q.dtype) if included is None else bias.to(q.dtype).masked_fill(~included, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=included, dropout_p=dropout)
