"""Luna as torch modules: the two attentions, the layers, the encoder, the decoder, the packed embedding."""

from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.modules.luna_decoder import LunaDecoder
from luna_fairseq.modules.luna_encoder import LunaEncoder
from luna_fairseq.modules.luna_layer import LunaDecoderLayer, LunaEncoderLayer
from luna_fairseq.modules.packed_embedding import PackedEmbedding

__all__ = [
    "LunaAttention",
    "LunaCausalAttention",
    "LunaDecoder",
    "LunaDecoderLayer",
    "LunaEncoder",
    "LunaEncoderLayer",
    "PackedEmbedding",
]
