"""Luna attention as functions on tensors. They require torch, but not fairseq.

``softmax_attention`` computes the softmax attention of Luna's pack and unpack steps. ``causal_luna`` computes
the causal attention of the decoder. README.md in this folder has the formulas and compares the
implementations.
"""

from luna_fairseq.ops.attention import softmax_attention
from luna_fairseq.ops.causal_luna import CausalLunaState, causal_luna

__all__ = ["CausalLunaState", "causal_luna", "softmax_attention"]
