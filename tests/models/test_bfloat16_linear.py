"""Decoding in bfloat16 on a CPU: nearly the same logits in float32, or an error of one line."""

import copy
import pickle
from argparse import Namespace

import pytest
import torch
from tiny_luna import batch, decode, example, tiny_model

from luna_fairseq.errors import InputError
from luna_fairseq.models import bfloat16_linear
from luna_fairseq.models.bfloat16_linear import BFloat16Linear, has_bfloat16_products

needs_bfloat16 = pytest.mark.skipif(not has_bfloat16_products(), reason="needs avx512_bf16 or AMX")


GENERATION = Namespace(beam=5)
LOOK_UP = {"anchored_packed": True, "packed_lookup": 2, "diagonal_prior": True}


def configure(bf16=True, path="checkpoint.pt"):
    return Namespace(common=Namespace(bf16=bf16), common_eval=Namespace(path=path), generation=GENERATION)


@needs_bfloat16
@pytest.mark.parametrize("bias", [None, torch.randn(21)])
def test_only_the_product_is_in_bfloat16(bias):
    weight, x = torch.randn(21, 16), torch.randn(3, 1, 16)
    layer = BFloat16Linear(weight, bias)
    expected = (x.bfloat16() @ weight.bfloat16().t()).float() + (0 if bias is None else bias)
    found = layer(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-2)
    outputs = torch.tensor([2, 5, 19])
    for _ in range(2):
        assert torch.equal(layer.select(outputs)(x), found[..., outputs])
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(x), found)


@needs_bfloat16
@pytest.mark.parametrize(
    "given",
    [{}, {"untie_luna_kv": True}, LOOK_UP],
)
def test_logits_are_nearly_the_same(given):
    model = tiny_model(torch.float32, **given)
    sentences = [batch(side) for side in example((9, 4, 6), (5, 5, 5))]
    expected = decode(model, *sentences)
    model.prepare_for_inference_(configure())
    assert isinstance(model.decoder.output_projection, BFloat16Linear)
    for layer in model.decoder.layers:
        assert layer.self_attn.fused_x_proj.replaces(layer.self_attn.input_projections())
    for steps in (False, True):
        found = decode(model, *sentences, steps)
        assert found.dtype == torch.float32
        assert 0 < (found - expected).abs().max() < 0.03 * expected.abs().max()


@needs_bfloat16
@pytest.mark.parametrize("cfg", [configure(bf16=False), configure(path=None)], ids=["float32", "hub"])
def test_a_checkpoint_that_was_trained_in_bfloat16_is_not_decoded_so(cfg):
    model = tiny_model(torch.float32)
    model.prepare_for_inference_(cfg)
    assert not any(isinstance(module, BFloat16Linear) for module in model.modules())


@pytest.mark.parametrize(
    "dtype, has_products, message",
    [
        (torch.float32, False, "avx512_bf16 or AMX"),
        (torch.float64, True, "float64"),
    ],
)
def test_what_cannot_run_is_refused(dtype, has_products, message, monkeypatch):
    monkeypatch.setattr(bfloat16_linear, "has_bfloat16_products", lambda: has_products)
    with pytest.raises(InputError, match=message):
        tiny_model(dtype).prepare_for_inference_(configure())
