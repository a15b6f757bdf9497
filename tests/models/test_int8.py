"""Decoding with weights in 8 bits: nearly the same logits, and one line where it cannot be."""

import pytest
import torch
from tiny_luna import batch, sentences
from tiny_models import language_model as tiny_model

from fairseq import options
from fairseq.dataclass.configs import FairseqConfig
from luna_fairseq.engine.entry_points import _overridden
from luna_fairseq.errors import InputError
from luna_fairseq.models import int8


@pytest.mark.parametrize("bits", [7, 8])
@pytest.mark.parametrize("given", [{}, {"untie_luna_kv": True, "causal_decay": True}])
def test_logits_are_nearly_the_same(given, bits, monkeypatch):
    monkeypatch.setattr(int8, "sums_hold_8_bits", lambda: bits == 8)
    model, tokens = tiny_model(torch.float32, int8=True, **given), batch(sentences((9, 7), 23))
    expected = model(tokens)[0]
    model.prepare_for_inference_(FairseqConfig())
    found = model(tokens)[0]
    assert isinstance(model.decoder.output_projection, int8.Linear8)
    weight, _ = torch.ops.quantized.linear_unpack(model.decoder.output_projection.packed)
    largest = weight.int_repr().int().abs().amax(dim=1)
    assert set(largest.tolist()) <= {2 ** (bits - 1) - 1, 2 ** (bits - 1)}  # a scale for each row
    for layer in model.decoder.layers:  # projections of X in one product give the numbers of each
        assert layer.self_attn.in_one is not None
        layer.self_attn.in_one = None
    torch.testing.assert_close(model(tokens)[0], found, rtol=0, atol=1e-6)
    assert 0 < (found - expected).abs().max() < 0.06 * expected.abs().max()


@pytest.mark.parametrize(
    "dtype, message",
    [
        (torch.float64, "int8 is for float32 models on a CPU, this one is in float64 on cpu"),
        (torch.float32, "no products in 8 bits for this CPU: leave int8 out"),
    ],
)
def test_another_precision_or_a_cpu_without_such_products_is_refused(dtype, message, monkeypatch):
    monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", ["none"])
    with pytest.raises(InputError, match=message):
        int8.quantise(tiny_model(dtype))


@pytest.mark.parametrize("command", ["generation", "interactive_generation", "eval_lm"])
def test_fairseq_commands_take_it(command):
    parser = getattr(options, f"get_{command}_parser")()
    line = ["data", "--path", "p.pt", "--int8", "--model-overrides", "{'fix_projection_length': True}"]
    args = options.parse_args_and_arch(parser, line)
    assert args.cpu and args.model_overrides == "{'fix_projection_length': True, 'int8': True}"


def test_a_model_without_it_is_refused():
    def load(model):
        return _overridden(lambda *args, **kwargs: ([model], None, None), [], {"int8": True})

    load(tiny_model(torch.float32, int8=True))
    with pytest.raises(InputError, match="a Linear, has no weights in 8 bits"):
        load(torch.nn.Linear(1, 1))
