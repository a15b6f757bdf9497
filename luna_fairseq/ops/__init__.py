"""Luna's attentions as functions on tensors. They know torch alone; see README.md beside this file."""

from luna_fairseq.ops.attention import luna_attention
from luna_fairseq.ops.causal_luna import CausalLunaState, causal_luna

__all__ = ["CausalLunaState", "causal_luna", "luna_attention"]
