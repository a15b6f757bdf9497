"""The models that Luna's are compared with, registered with fairseq by being imported."""

from luna_fairseq.peers.peer_lra import PeerClassifier
from luna_fairseq.peers.peer_roberta import PeerRoberta
from luna_fairseq.peers.peer_transformer import PeerTransformer
from luna_fairseq.peers.rnn_attention import RnnAttentionModel

__all__ = ["PeerClassifier", "PeerRoberta", "PeerTransformer", "RnnAttentionModel"]
