"""Pack and unpack attention (Luna, equations 3 and 4): softmax attention with a padding mask.

For *pack*, ``q`` comes from P and ``k``, ``v`` from the context; for *unpack*, ``q`` comes from X and ``k``,
``v`` from the packed context.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from luna_fairseq.ops.masked_softmax import masked_softmax, naive_softmax_weights
from luna_fairseq.ops.softmax import softmax_attention

# As many keys as a head is usually wide: the weights are then no more numbers than the queries.
FEW = 64


def naive_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    dropout: float = 0.0,
    bias: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor]:
    """The definition, with its weights.

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
    excluded = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
    weights = naive_softmax_weights(q, k, excluded, bias)
    with torch.autocast(q.device.type, enabled=False):
        output = F.dropout(weights, dropout) @ v.to(weights.dtype)
    return output.to(q.dtype), weights.to(q.dtype)


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
    excluded = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
    if not is_short(q, k, bias):
        return softmax_attention(q, k, v, excluded, dropout, bias)
    # Products that take the heads of a projection as they lie in memory.
    heads, shape = q.shape[:2], (*q.shape[:3], k.size(2))
    scale = q.size(-1) ** -0.5
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    if bias is None:
        logits = torch.bmm(q, k.transpose(1, 2) * scale)  # the keys are scaled: they are few
    else:
        bias = bias.to(q.dtype).expand(shape).flatten(0, 1)
        logits = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale)
    weights = masked_softmax(logits.unflatten(0, heads), excluded).flatten(0, 1)
    return torch.bmm(F.dropout(weights, dropout), v).unflatten(0, heads)


def is_short(q: Tensor, k: Tensor, bias: Optional[Tensor] = None) -> bool:
    """Whether plain products are faster than torch's fused attention, for q [B, H, T, K] and k [B, H, S, K].

    On a CPU the fused kernel works on blocks of hundreds of keys: with 16 (8 heads of 64, 2 threads, torch
    2.13) it was 0.4 to 0.8 times as fast for 1,000 queries in 1 to 32 sentences, forward and backward. It has
    no gradient for a bias there: with one it is enough that the queries are few.
    """
    few = min(q.size(2), k.size(2)) if bias is not None else k.size(2)
    return few <= FEW and q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)


def in_a_graph(of: str = "is_compiling") -> bool:
    """Whether torch.compile, torch.export or torch.jit.trace looks into what runs; ``is_exporting`` (torch
    2.7): one of the last two, whose graphs keep the lengths of their example."""
    looks = getattr(getattr(torch, "compiler", None), of, None)
    return torch.jit.is_tracing() or (looks is not None and looks())
