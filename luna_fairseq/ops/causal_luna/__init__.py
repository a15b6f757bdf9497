"""Five implementations of causal Luna attention (Luna, section 3.3).

The implementations are naive (the definition), chunk (training on a CPU), parallel and triton (training on a
GPU), and recurrent (decoding). ops/README.md has the formulas.
"""

from luna_fairseq.ops.causal_luna.chunk import chunk_causal_luna
from luna_fairseq.ops.causal_luna.forms import BACKENDS, causal_luna
from luna_fairseq.ops.causal_luna.inputs import (
    PACK_ACTIVATIONS,
    CausalLunaState,
    TokenCounts,
    causal_pack_weights,
)
from luna_fairseq.ops.causal_luna.naive import naive_causal_luna
from luna_fairseq.ops.causal_luna.parallel import parallel_causal_luna
from luna_fairseq.ops.causal_luna.recurrent import recurrent_causal_luna
from luna_fairseq.ops.causal_luna.triton import triton_causal_luna, why_not_triton_here

__all__ = ["BACKENDS", "PACK_ACTIVATIONS", "CausalLunaState", "TokenCounts", "causal_luna"]
__all__ += ["chunk_causal_luna", "naive_causal_luna", "causal_pack_weights", "parallel_causal_luna"]
__all__ += ["recurrent_causal_luna", "triton_causal_luna", "why_not_triton_here"]
