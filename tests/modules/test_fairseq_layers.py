"""Test that the attentions use fairseq's dropout and quantisation noise."""

from argparse import Namespace

import pytest
import torch
from tiny_luna import VARIANTS, tiny_model

from fairseq.modules import FairseqDropout
from luna_fairseq.errors import InputError
from luna_fairseq.models.fairseq_layers import fairseq_builders
from luna_fairseq.models.luna import nested_config
from luna_fairseq.modules import LunaAttention, LunaCausalAttention

C, HEADS, L, B, S, T = 12, 3, 5, 4, 7, 6
both = pytest.mark.parametrize("kind", [LunaAttention, LunaCausalAttention])


def module_and_call(kind, options, **noise):
    torch.manual_seed(0)
    builders = fairseq_builders(nested_config(Namespace(**noise)), layer_drop=0.0)
    module = kind(C, HEADS, **options, builders=builders).eval().double()
    query, packed, context = (torch.randn(n, B, C).double() for n in (T, L, S))

    def run():
        if kind is LunaAttention:
            return module(query, packed, context)[0]
        return module(query, module.read(packed))[0]

    return module, run


@both
def test_retained_dropout_is_applied_in_evaluation(kind):
    module, compute = module_and_call(kind, {"dropout": 0.4})

    def run():
        torch.manual_seed(1)
        with torch.no_grad():
            return compute()

    without = run()
    in_training = (module.train(), run())[1]
    assert not torch.equal(in_training, without)
    module.eval()
    retain = module.dropout_module.make_generation_fast_
    retain("", retain_dropout=True, retain_dropout_modules=["Other"])
    assert torch.equal(run(), without)
    retain("", retain_dropout=True, retain_dropout_modules=[kind.__name__])
    assert torch.equal(run(), in_training)


@pytest.mark.parametrize("variant", ["tied", "look-up diagonal decay", "softmax cross"])
def test_retained_dropout_modules_are_selected_by_class_name(variant):
    names = (
        "LunaEncoder LunaEncoderLayer LunaAttention LunaDecoder LunaDecoderLayer LunaCausalAttention".split()
    )
    model = tiny_model(**VARIANTS[variant])
    with pytest.raises(InputError, match=f"name Luna: choose from {', '.join(sorted(names))}, PackedEmb"):
        model.make_generation_fast_(retain_dropout=True, retain_dropout_modules="LunaEncoder,Luna")
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules="LunaEncoderLayer,LunaDecoder")
    dropouts = [part for part in model.modules() if isinstance(part, FairseqDropout)]
    retained = {part.module_name for part in dropouts if part.apply_during_inference}
    assert retained == {"LunaEncoderLayer", "LunaDecoder"}


@both
def test_quantisation_noise_is_applied_to_every_projection(kind):
    module, compute = module_and_call(kind, {}, quant_noise_pq=0.5, quant_noise_pq_block_size=4)
    before = {name: x.clone() for name, x in module.state_dict().items()}
    module.train()
    compute()
    for name, x in module.state_dict().items():
        assert torch.equal(x, before[name]) == name.endswith("bias"), name
