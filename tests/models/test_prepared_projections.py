"""Hooks and replaced projections have an effect in models that are prepared for decoding, in 8 bits too."""

import pytest
import torch
from tiny_luna import batch, decode, example, tiny_model
from torch import nn

from fairseq.dataclass.configs import FairseqConfig
from luna_fairseq.models.onednn_linear import OneDnnLinear
from luna_fairseq.ops.absorbed import has_hooks

PROJECTIONS = [("self_attn", name) for name in ("pack_q", "pack_k", "unpack_q", "unpack_kv", "out")]
PROJECTIONS += [("encoder_attn", name) for name in ("pack_q", "pack_kv", "unpack_q", "unpack_kv", "out")]
every_projection = pytest.mark.parametrize("part, name", PROJECTIONS)
SENTENCE = [batch(side) for side in example((9,), (5,))]
int8_or_not = pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])


class Adapter(nn.Module):
    """Projection with a weight and a bias that computes something else."""

    def __init__(self, projection):
        super().__init__()
        self.projection = projection
        self.weight = getattr(projection, "weight", None)
        self.bias = projection.bias

    def forward(self, x):
        return 1.5 * self.projection(x)


def prepared(int8):
    # The model is wide enough for cached keys and values that absorb projections.
    sizes = {"encoder_embed_dim": 48, "decoder_embed_dim": 48, "projection_length": 2}
    model = tiny_model(torch.float32, int8=int8, **sizes)
    model.prepare_for_inference_(FairseqConfig())
    return model


def projections(model, part, name):
    return [(getattr(layer, part), f"{name}_proj") for layer in model.decoder.layers]


@every_projection
@int8_or_not
@pytest.mark.parametrize("steps", [False, True])
def test_hooks_run(part, name, int8, steps):
    model, outputs = prepared(int8), []
    before = decode(model, *SENTENCE, steps)
    for attention, projection in projections(model, part, name):
        getattr(attention, projection).register_forward_hook(lambda layer, x, y: outputs.append(y) or 3 * y)
    after = decode(model, *SENTENCE, steps)
    is_read_once = name in ("pack_q", "pack_kv", "unpack_kv") and (part, name) != ("self_attn", "unpack_kv")
    assert len(outputs) == 3 * (5 if steps and not is_read_once else 1)
    assert not torch.allclose(after, before, rtol=0, atol=1e-4)


@every_projection
@int8_or_not
def test_replaced_projections_are_used_in_a_step_as_in_a_whole_sequence(part, name, int8):
    model = prepared(int8)
    for attention, projection in projections(model, part, name):
        setattr(attention, projection, Adapter(getattr(attention, projection)))
    whole, steps = decode(model, *SENTENCE, False), decode(model, *SENTENCE, True)
    assert (whole - steps).abs().max() < (0.02 if int8 else 1e-4) * whole.abs().max()


@int8_or_not
def test_layers_with_hooks_are_not_replaced(int8):
    model = tiny_model(torch.float32, int8=int8)
    seen = []
    for layer in model.decoder.layers:
        for projection in (layer.self_attn.unpack_q_proj, layer.fc1):
            projection.register_forward_hook(lambda *call: seen.append(call))
    model.prepare_for_inference_(FairseqConfig())
    decode(model, *SENTENCE, False)
    assert len(seen) == 6


@int8_or_not
def test_layers_with_quantization_noise_are_replaced(int8):
    model = tiny_model(torch.float32, int8=int8, quant_noise_pq=0.1, quant_noise_pq_block_size=4)
    expected = decode(model, *SENTENCE, False)
    model.prepare_for_inference_(FairseqConfig())
    assert not any(map(has_hooks, model.modules()))
    assert int8 == (not any(isinstance(x, (nn.Linear, OneDnnLinear)) for x in model.modules()))
    found = decode(model, *SENTENCE, False)
    assert (found - expected).abs().max() < (0.06 if int8 else 1e-5) * expected.abs().max()
