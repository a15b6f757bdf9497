"""Decoding with weights in 8 bits: nearly the same logits, and one line where it cannot be."""

import pytest
import torch
from test_properties_luna_lm import tiny_model
from tiny_luna import batch, sentences

from fairseq.dataclass.configs import FairseqConfig
from luna_fairseq.errors import InputError
from luna_fairseq.models.int8 import quantise


@pytest.mark.parametrize("options", [{}, {"untie_luna_kv": True, "causal_decay": True}])
def test_logits_are_nearly_the_same(options):
    model, tokens = tiny_model(torch.float32, int8=True, **options), batch(sentences((9, 7), 23))
    expected = model(tokens)[0]
    model.prepare_for_inference_(FairseqConfig())
    found = model(tokens)[0]
    assert "quantized" in type(model.decoder.output_projection).__module__
    assert 0 < (found - expected).abs().max() < 0.1 * expected.abs().max()


def test_another_precision_is_refused():
    with pytest.raises(
        InputError, match="int8 is for float32 models on a CPU, this one is in float64 on cpu"
    ):
        quantise(tiny_model(torch.float64))
