"""Causal linear attention: naive (the definition), chunkwise (training) and recurrent (decoding).

For query features x, key features y and values z, the output at position t is ``output_t = sum_{j<=t}
decay(j, t) (x_t . y_j) z_j``. The decay from j to t defaults to 1. Linear Transformer, Performer, RFA and ABC
compute this sum once or twice, each with its own features.
"""

from luna_fairseq.ops.causal_linear.chunk import chunk_causal_linear
from luna_fairseq.ops.causal_linear.naive import naive_causal_linear
from luna_fairseq.ops.causal_linear.recurrent import recurrent_causal_linear

__all__ = ["chunk_causal_linear", "naive_causal_linear", "recurrent_causal_linear"]
