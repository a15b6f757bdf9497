"""One of Luna's two nested softmax attentions: pack (P attends to the context) or unpack (X attends to Y_P)."""

from luna_fairseq.ops.luna.fused import fused_attention
from luna_fairseq.ops.luna.naive import naive_attention

luna_attention = fused_attention

__all__ = ["fused_attention", "luna_attention", "naive_attention"]
