"""--torch-compile gives the same numbers, without graph breaks, and leaves no trace in checkpoints."""

import copy
from functools import lru_cache, partial

import pytest
import torch
from tiny_luna import VARIANTS, assert_close, marked, tiny_model
from tiny_masked_lm import tiny_model as tiny_masked_lm
from tiny_models import (
    language_model,
    language_model_loss,
    loss_and_gradients,
    masked_lm_loss,
    translation_loss,
)

from luna_fairseq.errors import InputError
from luna_fairseq.models import fairseq_layers
from luna_fairseq.ops.causal_luna import chunk_causal_luna

NEEDED = (2, 5)
needs_compile = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < NEEDED, reason="needs torch 2.5 or newer"
)


def compile_by(monkeypatch, **options):
    """Compile layers with these options of torch.compile, and return the list of the compiled methods.

    The list is filled while the models run.
    """
    compiled = []

    def compile_method(layer_class, name):
        method = getattr(layer_class, name)
        compiled.append(method.__qualname__)
        return torch.compile(method, **options)

    monkeypatch.setattr(fairseq_layers, "_compiled", lru_cache(compile_method))
    torch._dynamo.reset()
    return compiled


def plain_and_compiled(build=tiny_model, **options):
    """Return two models with the same weights, of which the second is compiled."""
    plain, compiled = build(**options).train(), build(**options, torch_compile=True).train()
    compiled.load_state_dict(plain.state_dict())
    return plain, compiled


def assert_compiled_equals_plain(options, build=tiny_model, loss_of=translation_loss):
    plain, compiled = plain_and_compiled(build, **options)
    loss, gradients = loss_and_gradients(loss_of, plain, seed=3)
    again, again_gradients = loss_and_gradients(loss_of, compiled, seed=3)
    assert_close(again, loss)
    assert again_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert_close(again_gradients[name], gradient)
    return compiled


# What others contain, too.
CONTAINED = ["local parts", "decay untied pre-norm", "tied", "untied pre-norm", "non-contextual", "elu"]
CONTAINED += ["anchored", "look-up", "look-up by parts", "anchored softmax cross diagonal"]
CONTAINED += ["anchored softmax cross pre-norm"]
SLOW = [pytest.param(*each.values, marks=[*each.marks, pytest.mark.slow]) for each in map(marked, CONTAINED)]
# What torch's default compiler is given, without the compiler: it alone needs a minute.
LOWERED = {"backend": "aot_eager_decomp_partition", "fullgraph": True}


@needs_compile
@pytest.mark.parametrize("variant", [marked("look-up by parts diagonal pre-norm"), *SLOW])
def test_whole_layers_are_compiled_and_give_the_same(variant, monkeypatch):
    compiled = compile_by(monkeypatch, **LOWERED)
    model = assert_compiled_equals_plain(VARIANTS[variant])
    assert compiled == ["LunaEncoderLayer.forward", "LunaDecoderLayer.read", "LunaDecoderLayer.forward"]
    assert set(model.state_dict()) == set(tiny_model(**VARIANTS[variant]).state_dict())


@needs_compile
@pytest.mark.parametrize(
    "build, loss, methods",
    [(language_model, language_model_loss, 2), (partial(tiny_masked_lm, heads=()), masked_lm_loss, 1)],
)
def test_language_models_are_compiled_too(build, loss, methods, monkeypatch):
    compiled = compile_by(monkeypatch, **LOWERED)
    assert_compiled_equals_plain({}, build, loss)
    assert len(compiled) == methods


@pytest.mark.slow
@needs_compile
def test_dropout_is_compiled_too(monkeypatch):
    """Compiled layers draw other dropout masks, so the mean losses are compared."""
    compile_by(monkeypatch, **LOWERED)
    models = plain_and_compiled(dropout=0.1, attention_dropout=0.2, activation_dropout=0.1)
    plain, compiled = (
        torch.stack([loss_and_gradients(translation_loss, model, i)[0] for i in range(60)])
        for model in models
    )
    assert plain.std() > 1e-3 and compiled.std() > 1e-3
    assert abs(plain.mean() - compiled.mean()) < 4 * plain.std() * (2 / 60) ** 0.5
    _, gradients = loss_and_gradients(translation_loss, models[1])
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@needs_compile
def test_evaluation_is_not_compiled_and_copies_are_models_of_their_own(monkeypatch):
    compiled = compile_by(monkeypatch, **LOWERED)
    model, plain = tiny_model(torch_compile=True), tiny_model()
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert_close(translation_loss(model), translation_loss(plain))
        assert compiled == []
        other = copy.deepcopy(model)
        for parameter in other.parameters():
            parameter.zero_()
        assert_close(translation_loss(model), translation_loss(plain))
        assert abs(translation_loss(other) - translation_loss(plain)) > 1e-3


@needs_compile
@pytest.mark.slow
def test_inductor(monkeypatch):
    compile_by(monkeypatch)
    assert_compiled_equals_plain({"attention_dropout": 0.0})


def test_what_does_not_go_together(monkeypatch):
    with pytest.raises(InputError, match="--torch-compile and --checkpoint-activations exclude each other"):
        tiny_model(torch_compile=True, checkpoint_activations=True)
    monkeypatch.setattr(torch, "__version__", "2.1.2")
    with pytest.raises(InputError, match="--torch-compile needs torch 2.5 or newer, this is 2.1.2"):
        tiny_model(torch_compile=True)


@needs_compile
def test_causal_attention_is_compiled_for_a_number_of_chunks_not_for_each_length():
    torch._dynamo.reset()
    built, graphs = [], torch._dynamo.utils.counters
    graphs.clear()
    attend = torch.compile(lambda q, a: chunk_causal_luna(q, q, q, a), backend="aot_eager")
    for length in (20, 31, 44, 63, 70, 90):  # a single chunk up to 64 positions, then three of 32
        q, a = torch.randn(4, 8, length, 16), torch.rand(4, 8, length, 8)
        assert_close(attend(q, a), chunk_causal_luna(q, q, q, a), tolerance=1e-5)
        built.append(graphs["stats"]["unique_graphs"])
    assert built == [1, 2, 2, 2, 3, 3]  # the second time torch learns that the length varies
