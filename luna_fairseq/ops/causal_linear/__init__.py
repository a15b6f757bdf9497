"""Causal linear attention in three forms: naive (the definition), chunk (training), recurrent (decoding).

``output_t = sum_{j<=t} decay(j, t) (x_t . y_j) z_j``: what Linear Transformer, Performer, RFA and ABC do once
or twice, each with feature maps of its own. See ops/README.md.
"""

from luna_fairseq.ops.causal_linear.chunk import chunk_causal_linear
from luna_fairseq.ops.causal_linear.naive import naive_causal_linear
from luna_fairseq.ops.causal_linear.recurrent import recurrent_causal_linear

__all__ = ["chunk_causal_linear", "naive_causal_linear", "recurrent_causal_linear"]
