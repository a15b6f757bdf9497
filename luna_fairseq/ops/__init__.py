"""Luna's attention as functions on tensors, which need torch alone.

``luna_attention`` is the softmax attention of pack and unpack, and ``causal_luna`` the causal attention of
the decoder. The file README.md in this folder has the formulas and a comparison of the forms.
"""

from luna_fairseq.ops.attention import luna_attention
from luna_fairseq.ops.causal_luna import CausalLunaState, causal_luna

__all__ = ["CausalLunaState", "causal_luna", "luna_attention"]
