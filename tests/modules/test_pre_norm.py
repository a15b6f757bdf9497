"""Test that pre-norm self-attention packs and unpacks the normalised input."""

import torch
from tiny_luna import assert_close, tiny_model

from luna_fairseq.modules import Source


def test_encoder_self_attention_reads_the_normalised_x_alone():
    layer = tiny_model(encoder_normalize_before=True, decoder_normalize_before=True).encoder.layers[0]
    torch.nn.init.normal_(layer.self_attn_layer_norm.weight)
    x, packed = torch.randn(7, 2, 12, dtype=torch.float64), torch.randn(5, 2, 12, dtype=torch.float64)
    normalised, normalised_packed = layer.self_attn_layer_norm(x), layer.packed_layer_norm(packed)
    output, packed_context, _ = layer.self_attn(normalised, normalised_packed, normalised)
    actual, actual_packed, _ = layer(x, packed, Source())
    assert_close(actual, layer.feed_forward(x + output))
    assert_close(actual_packed, packed + packed_context)
