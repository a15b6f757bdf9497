"""Luna as torch modules: the two attentions, the layers, the encoder, the decoder, the packed embedding. One
of each.

The attentions and the packed embedding are plain torch; what is built of fairseq's parts is imported when it
is asked for.
"""

from importlib import import_module
from typing import Any

from luna_fairseq.modules.decoding_state import CrossAttentionCache
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention, LunaCausalState
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.modules.sentences import Sentences

_WITH_FAIRSEQ = {
    "LunaDecoder": "luna_decoder",
    "LunaDecoderLayer": "luna_decoder",
    "LunaEncoder": "luna_encoder",
    "LunaEncoderLayer": "luna_layer",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_FAIRSEQ:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module("luna_fairseq.engine")  # says what to install where there is no fairseq
    return getattr(import_module(f"{__name__}.{_WITH_FAIRSEQ[name]}"), name)


__all__ = [
    "CrossAttentionCache",
    "LunaAttention",
    "LunaCausalAttention",
    "LunaCausalState",
    "PackedEmbedding",
    "Sentences",
    *_WITH_FAIRSEQ,
]
