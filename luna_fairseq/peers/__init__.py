"""Efficient attentions from other papers, for comparison with Luna. Each attention has its own file."""

import luna_fairseq.models  # noqa: F401  first: it says what is missing, and the models here are built on those

# isort: split
from luna_fairseq.peers.options import PeerOptions
from luna_fairseq.peers.registry import ATTENTIONS, build_attention

__all__ = ["ATTENTIONS", "PeerOptions", "build_attention"]
