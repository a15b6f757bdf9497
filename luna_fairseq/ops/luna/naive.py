"""The definition of pack and unpack attention (Luna, equations 3 and 4): softmax attention with a padding
mask."""

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.softmax import masked_softmax as softmax_without


def naive_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor]:
    """Softmax attention with its weights written out.

    For *pack*, ``q`` comes from P and ``k``, ``v`` from the context; for *unpack*, ``q`` comes from X and
    ``k``, ``v`` from the packed context.

    Args:
        q: queries [B, H, T, K], not yet scaled by K^-0.5
        k: keys [B, H, S, K]
        v: values [B, H, S, K]
        key_padding_mask: [B, S], True at keys that are left out; a sentence whose keys are all left out gets
            zeros
        dropout: probability with which a weight is dropped
        bias: added to the logits [B or 1, H or 1, T, S]

    Returns:
        output [B, H, T, K] and the weights before dropout [B, H, T, S], both in the type of ``q``
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        logits = (q.to(dtype) * q.size(-1) ** -0.5) @ k.to(dtype).transpose(-2, -1)
        if bias is not None:
            logits = logits + bias
        weights = masked_softmax(logits, key_padding_mask)
        output = F.dropout(weights, dropout) @ v.to(dtype)
    return output.to(q.dtype), weights.to(q.dtype)


def masked_softmax(logits: Tensor, key_padding_mask: Optional[Tensor]) -> Tensor:
    """Softmax over the keys that are not left out; zeros where none is left.

    logits: [B, H, T, S]; mask: [B, S], or for every query and head [B, H, T, S].
    """
    if key_padding_mask is not None and key_padding_mask.dim() == 2:
        key_padding_mask = key_padding_mask[:, None, None, :]
    return softmax_without(logits, key_padding_mask)
