"""The models that have any attention, registered with fairseq by being imported."""

from luna_fairseq.peers.peer_lra import PeerClassifier
from luna_fairseq.peers.peer_roberta import PeerRoberta
from luna_fairseq.peers.peer_transformer import PeerTransformer

__all__ = ["PeerClassifier", "PeerRoberta", "PeerTransformer"]
