"""Test that the attentions reject bad arguments."""

import pytest
import torch

from luna_fairseq.errors import InputError
from luna_fairseq.modules import DecoderOptions, LunaAttention, LunaCausalAttention, LunaDecoder


@pytest.mark.parametrize(
    "build, args, message",
    [
        (LunaAttention, (12, 5), "embedding width 12 is not divisible by 5 attention heads"),
        (LunaAttention, (12, 3, 5), "embedding width 12 is not divisible by 5 projected attention heads"),
        (LunaCausalAttention, (12, 5), "embedding width 12 is not divisible by 5 attention heads"),
    ],
)
def test_a_width_that_the_heads_do_not_divide_is_rejected(build, args, message):
    with pytest.raises(InputError, match=message):
        build(*args)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"pack_activation": "relu"}, "unknown pack activation 'relu'; choose one of softplus, elu"),
        ({"backend": "fast"}, "unknown Luna backend 'fast'; choose one of"),
    ],
)
def test_unknown_names_are_rejected(options, message):
    with pytest.raises(InputError, match=message):
        LunaCausalAttention(12, 3, **options)


def test_calls_out_of_order_are_rejected():
    x, packed = torch.randn(7, 4, 12), torch.randn(5, 4, 12)
    attention = LunaCausalAttention(12, 3)
    memory = attention.read(packed)
    _, state = attention(x[:1], memory, keep_state=True)
    with pytest.raises(InputError, match="has no token counts"):
        attention(x[:1], memory, state._replace(steps=None))
    module = LunaAttention(12, 3)
    _, memory = module.pack(packed, x)
    with pytest.raises(InputError, match="got a memory without weights"):
        module.unpack(x, memory, need_weights=True)


def test_a_decoder_needs_the_memory_of_a_source():
    options = DecoderOptions(embed_dim=12, ffn_embed_dim=20, num_layers=2, num_heads=3, has_encoder=False)
    decoder, tokens = LunaDecoder(options, torch.nn.Embedding(9, 12, 1)), torch.full((2, 3), 5)
    with pytest.raises(InputError, match="memory"):
        decoder(tokens)
    _, state = decoder(tokens, decoder.read(), keep_state=True)
    with pytest.raises(InputError, match="2 layers, got 1 layers"):
        decoder(tokens, decoder.read(), state._replace(layers=state.layers[:1]))
