"""Luna as torch modules: the two attentions, the layers, the encoder, the decoder, the packed embedding. One
of each.

The attentions and the packed embedding are plain torch; what is built of fairseq's parts is imported when it
is asked for.
"""

from importlib import import_module
from typing import Any

from luna_fairseq.modules.anchors import Anchors, find_anchors
from luna_fairseq.modules.kept_context import KeptContext
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention, LunaCausalState
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.modules.softmax_attention import SoftmaxCrossAttention

_WITH_FAIRSEQ = {
    "FairseqLunaAttention": "fairseq_attention",
    "FairseqLunaCausalAttention": "fairseq_attention",
    "FairseqSoftmaxCrossAttention": "fairseq_attention",
    "LunaDecoder": "luna_decoder",
    "LunaDecoderLayer": "luna_layer",
    "LunaEncoder": "luna_encoder",
    "LunaEncoderLayer": "luna_layer",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_FAIRSEQ:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("luna_fairseq.engine")  # says what to install where there is no fairseq
    return getattr(import_module(f"{__name__}.{_WITH_FAIRSEQ[name]}"), name)


__all__ = [
    "Anchors",
    "KeptContext",
    "LunaAttention",
    "LunaCausalAttention",
    "LunaCausalState",
    "PackedEmbedding",
    "SoftmaxCrossAttention",
    "find_anchors",
    *_WITH_FAIRSEQ,
]
