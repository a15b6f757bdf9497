"""One of Luna's two nested softmax attentions: pack (P attends to the context) or unpack (X attends to
Y_P)."""

from luna_fairseq.ops.luna.anchors import (
    anchor_distances,
    distance_bias,
    further_than_nearest,
    middles,
    naive_distances,
)
from luna_fairseq.ops.luna.choice import luna_attention
from luna_fairseq.ops.luna.diagonal import Diagonal, find_diagonal, naive_diagonal_bias
from luna_fairseq.ops.luna.fused import fused_attention
from luna_fairseq.ops.luna.lookup import lookup_attention, naive_lookup_attention, weights_of_context
from luna_fairseq.ops.luna.naive import naive_attention
from luna_fairseq.ops.luna.parts import Layout, Parts, by_parts, find_layout, token_positions
from luna_fairseq.ops.luna.short import short_attention
from luna_fairseq.ops.luna.whole import Tokens, weights_of_whole, whole_attention
from luna_fairseq.ops.luna.window import (
    Window,
    find_window,
    naive_window_attention,
    weights_of_window,
    window_attention,
)

__all__ = [
    "Diagonal",
    "Layout",
    "Parts",
    "Tokens",
    "Window",
    "anchor_distances",
    "distance_bias",
    "further_than_nearest",
    "by_parts",
    "find_diagonal",
    "find_layout",
    "find_window",
    "fused_attention",
    "lookup_attention",
    "luna_attention",
    "middles",
    "naive_attention",
    "naive_diagonal_bias",
    "naive_distances",
    "naive_lookup_attention",
    "naive_window_attention",
    "short_attention",
    "token_positions",
    "weights_of_context",
    "weights_of_whole",
    "weights_of_window",
    "whole_attention",
    "window_attention",
]
