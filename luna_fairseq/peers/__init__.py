"""What Luna is compared with: efficient attentions of other papers, all in one skeleton. One file for each
attention."""

from luna_fairseq.peers.registry import ATTENTIONS, PeerOptions, build_attention

__all__ = ["ATTENTIONS", "PeerOptions", "build_attention"]
