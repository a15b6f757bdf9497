"""Luna as torch modules: the two attentions, the layers, the encoder, the decoder, the packed embedding. One
of each.

The attentions and the packed embedding are plain torch; what is built of fairseq's parts is imported when it
is asked for. Modules are time-first. Attention to a context packs it into P, and a layer of one's own passes
Y_P + P on to the next one, as it does Y_X + X:

>>> import torch
>>> from luna_fairseq.modules import LunaAttention, LunaCausalAttention
>>> T, S, L, B, C = 20, 50, 16, 4, 64  # queries, context, rows of P, sentences, width
>>> attention = LunaAttention(C, num_heads=8)
>>> query, context, packed = torch.randn(T, B, C), torch.randn(S, B, C), torch.randn(L, B, C)
>>> lengths = torch.tensor([50, 31, 8, 44])
>>> left_out = torch.arange(S) >= lengths[:, None]  # [B, S], True: padding, to which nobody attends
>>> output, packed_context, _ = attention(query, packed, context, context_padding_mask=left_out)
>>> output.shape == query.shape, packed_context.shape == packed.shape
(True, True)

In decoding the context is packed once, and every step reads the cache of it:

>>> cache = attention.cache(packed_context)
>>> first, _ = attention.unpack(query[:1], cache)
>>> torch.allclose(first, output[:1], atol=1e-5)
True

Causal attention reads whole sequences, or some positions at a time with a state that does not grow:

>>> causal = LunaCausalAttention(C, num_heads=8)
>>> output = causal(query, packed)
>>> prefix, state = causal.step(query[:10], packed)
>>> eleventh, state = causal.step(query[10:11], state=state)
>>> torch.allclose(eleventh, output[10:11], atol=1e-5)
True
"""

from importlib import import_module
from typing import Any

from luna_fairseq.modules.causal_state import LunaCausalState
from luna_fairseq.modules.decoding_state import CrossAttentionCache
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.modules.packed_embedding import PackedEmbedding
from luna_fairseq.modules.sentences import Sentences
from luna_fairseq.requirements import require_fairseq

_WITH_FAIRSEQ = {
    "LunaDecoder": "luna_decoder",
    "LunaDecoderLayer": "luna_decoder",
    "LunaEncoder": "luna_encoder",
    "LunaEncoderLayer": "luna_layer",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_FAIRSEQ:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_fairseq()
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
