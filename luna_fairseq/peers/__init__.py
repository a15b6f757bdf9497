"""Efficient attention mechanisms from other papers, as baselines for Luna ("peers").

Each attention mechanism has its own module, and :mod:`luna_fairseq.peers.registry` maps names to classes.
"""

import luna_fairseq.models  # noqa: F401  must come first: checks requirements and patches fairseq

# isort: split
from luna_fairseq.peers.options import PeerOptions
from luna_fairseq.peers.registry import ATTENTIONS, build_attention

__all__ = ["ATTENTIONS", "PeerOptions", "build_attention"]
