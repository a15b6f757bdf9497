"""Luna as plain torch modules: attention modules, layers, encoder, decoder and decoder state.

These modules need only torch. README.md in this folder shows a layer and a decoding step. Tensors have the
shape [T, B, C]: T tokens, batch size B, width C.

Luna attention has two steps. First a packed sequence P of fixed length attends to the context (pack). Then
the queries attend to the packed context (unpack). A layer adds the result of each step to its input: the sum
for the queries goes through the layer, and the sum for P is the next layer's P.

Example:
    >>> import torch
    >>> from luna_fairseq.modules import DecoderOptions, EncoderOptions, LunaAttention, LunaCausalAttention
    >>> from luna_fairseq.modules import LunaDecoder, LunaEncoder, Source
    >>> T, S, L, B, C = 20, 50, 16, 4, 64  # lengths of queries, context and P; batch size; width
    >>> attention = LunaAttention(C, num_heads=8)
    >>> query, context, packed = torch.randn(T, B, C), torch.randn(S, B, C), torch.randn(L, B, C)
    >>> lengths = torch.tensor([50, 31, 8, 44])
    >>> padding_mask = torch.arange(S) >= lengths[:, None]  # [B, S], True at padding
    >>> output, packed_context, _ = attention(query, packed, context, context_padding_mask=padding_mask)
    >>> output.shape == query.shape, packed_context.shape == packed.shape
    (True, True)

    In decoding, the context is packed once, and every step uses the cached keys and values:

    >>> packed_context, memory = attention.pack(packed, context, Source(padding_mask))
    >>> first, _ = attention.unpack(query[:1], memory)
    >>> torch.allclose(first, output[:1], atol=1e-5)
    True

    Causal attention computes whole sequences, or a few positions at a time with a constant-size state:

    >>> causal = LunaCausalAttention(C, num_heads=8)
    >>> memory = causal.read(packed)
    >>> output, _ = causal(query, memory)
    >>> prefix, state = causal(query[:10], memory, keep_state=True)
    >>> eleventh, state = causal(query[10:11], memory, state)
    >>> torch.allclose(eleventh, output[10:11], atol=1e-5)
    True

    An encoder and a decoder are trained on whole sentences and decode step by step:

    >>> sizes = {"embed_dim": C, "ffn_embed_dim": 128, "num_layers": 2, "num_heads": 8}
    >>> embed = torch.nn.Embedding(100, C, padding_idx=1)
    >>> encoder = LunaEncoder(EncoderOptions(**sizes), embed)
    >>> decoder = LunaDecoder(DecoderOptions(**sizes), embed)
    >>> source, target = torch.randint(2, 100, (B, S)), torch.randint(2, 100, (B, T))
    >>> memory = decoder.read(encoder(source))
    >>> whole, _ = decoder(target, memory)  # whole.x: [B, T, C]
    >>> first, state = decoder(target[:, :1], memory, keep_state=True)
    >>> second, state = decoder(target[:, 1:2], memory, state)
    >>> torch.allclose(second.x, whole.x[:, 1:2], atol=1e-5)
    True
"""

from luna_fairseq.modules.batch import Geometry, Source, Target
from luna_fairseq.modules.embedding import PackedEmbedding
from luna_fairseq.modules.luna_attention import LunaAttention
from luna_fairseq.modules.luna_causal_attention import LunaCausalAttention
from luna_fairseq.modules.luna_decoder import DecoderAttentions, DecoderOutput, LunaDecoder
from luna_fairseq.modules.luna_encoder import EncoderAttentions, EncoderOutput, LunaEncoder
from luna_fairseq.modules.luna_layer import LanguageModelLayer, LunaDecoderLayer, LunaEncoderLayer
from luna_fairseq.modules.memory import (
    CausalMemory,
    DecoderMemory,
    DecoderState,
    LayerMemory,
    LunaCausalState,
    PackedMemory,
)
from luna_fairseq.modules.options import DecoderOptions, EncoderOptions

__all__ = [
    "CausalMemory",
    "DecoderAttentions",
    "DecoderMemory",
    "DecoderOptions",
    "DecoderOutput",
    "DecoderState",
    "EncoderAttentions",
    "EncoderOptions",
    "EncoderOutput",
    "Geometry",
    "LanguageModelLayer",
    "LayerMemory",
    "LunaAttention",
    "LunaCausalAttention",
    "LunaCausalState",
    "LunaDecoder",
    "LunaDecoderLayer",
    "LunaEncoder",
    "LunaEncoderLayer",
    "PackedEmbedding",
    "PackedMemory",
    "Source",
    "Target",
]
