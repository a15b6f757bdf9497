"""Test that Informer's encoders have the published parameter counts and equal their definition."""

from argparse import Namespace

import pytest
import torch
from tiny_luna import Task, assert_close, build_perturbed, dictionary

from luna_fairseq.errors import InputError
from luna_fairseq.peers.informer import InformationBlock
from luna_fairseq.peers.models import ARCHITECTURES, PeerTransformer

NAMES = ("linformer_encoder", "conv_linformer_encoder", "informer_encoder")
SIZES = {
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 20,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_ffn_embed_dim": 28,
    "decoder_layers": 1,
    "decoder_attention_heads": 4,
    "dropout": 0.0,
    "max_source_positions": 24,
    "information_kernel": 4,
}
PUBLISHED = {"conv_linformer_encoder": 135_368_888, "informer_encoder": 126_613_016}


def model(name, dtype=torch.float64, **options):
    return build_perturbed(
        PeerTransformer, {**ARCHITECTURES["peer_transformer"][name], **SIZES, **options}, Task(), dtype
    )


def count_parameters(name, rows):
    """Count the parameters of an architecture with ``rows`` embedding rows for both languages together."""
    task = Task()
    task.source_dictionary, task.target_dictionary = dictionary(rows - 10), dictionary(10)
    options = {**ARCHITECTURES["peer_transformer"][name], "share_decoder_input_output_embed": True}
    with torch.device("meta"):
        built = PeerTransformer.build_model(Namespace(**options), task)
    return sum(parameter.numel() for parameter in built.parameters())


@pytest.mark.skipif(not hasattr(torch.device, "__enter__"), reason="counting without memory needs torch 2.0")
def test_the_published_parameters():
    counts = {name: count_parameters(name, rows=24_572) for name in NAMES}
    difference = PUBLISHED["conv_linformer_encoder"] - PUBLISHED["informer_encoder"]
    assert counts["conv_linformer_encoder"] - counts["informer_encoder"] == difference == 8_755_872
    for name, published in PUBLISHED.items():
        assert 0 <= published - counts[name] < 512  # less than one row of the embedding
    layers, projections = 6, 8 * 200
    convolutions = 2 * (512 * 512 * 25 + 512)
    assert (
        counts["conv_linformer_encoder"] - counts["linformer_encoder"] == layers * convolutions - projections
    )


def test_both_blocks_of_a_layer_have_dropout():
    layer = model("informer_encoder", encoder_normalize_before=True).encoder.train().layers[0]
    layer.dropout_module.p = 1.0
    x = torch.randn(7, 2, 16, dtype=torch.float64)
    assert layer(x, None).equal(x)


def test_the_information_block_is_its_definition():
    n, C, kernel, T = 6, 12, 3, 5
    torch.manual_seed(0)
    block = InformationBlock(C, n, kernel).double()
    x = torch.randn(T, 1, C, dtype=torch.float64)
    whole = torch.cat([x[:, 0], torch.zeros(n - T, C, dtype=torch.float64)])
    parts = torch.einsum("nqk,oqk->on", whole.view(n, -1, kernel).transpose(0, 1), block.gather_conv.weight)
    parts = parts + block.gather_conv.bias[:, None]
    parts = torch.where(parts > 0, parts, 0.01 * parts)
    pairs = parts.view(n, -1, 2)
    largest = (pairs == pairs.amax(dim=-1, keepdim=True)).double()
    spread = (pairs * largest).view(n, -1)  # the larger element of each pair, 0 in place of the other
    expected = torch.einsum("in,iok->onk", spread, block.spread_conv.weight).reshape(n, C)
    expected = expected + block.spread_conv.bias[:, None]
    assert_close(block(x, None)[:, 0], expected[:T])


@pytest.mark.parametrize(
    "name, options, message",
    [
        (
            "conv_linformer_encoder",
            {"conv_linformer_r": 5},
            "--conv-linformer-r to be even and to divide the maximum length 24",
        ),
        ("conv_linformer_encoder", {"conv_linformer_r": 3}, "--conv-linformer-r to be even and .*, got 3"),
        ("informer_encoder", {"max_source_positions": 25}, "to divide the maximum length 25"),
        (
            "informer_encoder",
            {"information_kernel": 3},
            "twice --information-kernel to divide the width 16",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        model(name, **options)


def test_a_sentence_that_is_too_long_is_refused():
    for name in NAMES:
        with pytest.raises(InputError, match="Expected at most 24 tokens for .*, got 25"):
            model(name).encoder(torch.full((1, 25), 5))
    with pytest.raises(InputError, match="Expected at most 24 tokens for the information block, got 25"):
        model("informer_encoder", attention="softmax").encoder(torch.full((1, 25), 5))
