"""Causal linear attention in three forms: naive (the definition), chunk (training) and recurrent (decoding).

The operation is ``output_t = sum_{j<=t} decay(j, t) (x_t . y_j) z_j``. Linear Transformer, Performer, RFA and
ABC apply it once or twice, each with its own feature maps. See ops/README.md.
"""

from luna_fairseq.ops.causal_linear.chunk import chunk_causal_linear
from luna_fairseq.ops.causal_linear.naive import naive_causal_linear
from luna_fairseq.ops.causal_linear.recurrent import recurrent_causal_linear

__all__ = ["chunk_causal_linear", "naive_causal_linear", "recurrent_causal_linear"]
