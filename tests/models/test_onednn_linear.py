"""Linear layers with reordered weights give the same numbers, and never use an outdated weight."""

import copy
import pickle

import pytest
import torch
from tiny_luna import batch, example
from tiny_luna import tiny_model as translation_model
from tiny_models import language_model as tiny_model
from torch import nn

from luna_fairseq.models import onednn_linear
from luna_fairseq.models.onednn_linear import LINEAR_FORMS, FusedOneDnnLinear, OneDnnLinear, use_onednn

needs_onednn = pytest.mark.skipif(not onednn_linear.has_onednn(), reason="needs torch 2.1 with oneDNN")


def layer(bias=True):
    linear = nn.Linear(40, 21, bias=bias)
    return linear, OneDnnLinear(linear)


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3, 1), (9, 7)])
def test_outputs_are_the_same(bias, shape):
    linear, ours = layer(bias)
    x = torch.randn(*shape, 40)
    assert ours.copied is not None
    with torch.no_grad():
        for form in ("plain", "onednn"):
            with LINEAR_FORMS.force(form) as taken:
                torch.testing.assert_close(ours(x), linear(x))
            assert taken == [form]
        torch.testing.assert_close(ours(x.transpose(0, -2)), linear(x.transpose(0, -2)))


def replace_weight(linear, ours):
    ours.weight = nn.Parameter(linear.weight * 2)
    linear.weight.mul_(2)


CHANGES = {
    "in place": lambda linear, ours: linear.weight.mul_(2),
    "replaced": replace_weight,
    "loaded": lambda linear, ours: ours.load_state_dict(nn.Linear(40, 21).state_dict()),
    "trained": lambda linear, ours: (ours.train(), linear.weight.data.mul_(2)),
    "moved": lambda linear, ours: (ours.to(torch.float64).to(torch.float32), linear.weight.data.mul_(2)),
    "copied again": lambda linear, ours: (linear.weight.data.mul_(2), ours.copy_weights()),
}


@needs_onednn
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_no_outdated_copy_is_used(change):
    linear, ours = layer()
    x = torch.randn(3, 40)
    with torch.no_grad():
        before = ours(x)
        change(linear, ours)
        after = ours(x)
        torch.testing.assert_close(after, linear(x))
        assert not torch.allclose(after, before)


@needs_onednn
def test_a_functional_call_uses_its_own_weights():
    linear, ours = layer()
    x = torch.randn(3, 40)
    with torch.no_grad():
        for factor in (1, 2, 3):  # each weight may have the address of the one before
            weights = {"weight": linear.weight * factor}
            found = torch.func.functional_call(ours, weights, x)
            torch.testing.assert_close(found, torch.func.functional_call(linear, weights, x))


@needs_onednn
def test_a_forward_pass_makes_no_copy(monkeypatch):
    model, tokens = tiny_model(torch.float32).eval(), batch(example()[1])
    copies = []
    create = onednn_linear.WeightCopy.create
    monkeypatch.setattr(
        onednn_linear.WeightCopy, "create", lambda layers: copies.append(layers) or create(layers)
    )
    with torch.no_grad():
        model(tokens)
        assert not copies
        model.make_generation_fast_()
        prepared = len(copies)
        assert prepared
        for _ in range(2):
            model(tokens)
        model.decoder.layers[0].fc1.weight.mul_(2)
        model(tokens)
        assert len(copies) == prepared


@needs_onednn
def test_preparing_again_copies_weights_that_were_changed_by_hand():
    model, tokens = tiny_model(torch.float32).eval(), batch(example()[1])
    with torch.no_grad():
        model.make_generation_fast_()
        before = model(tokens)[0]
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
        expected = copy.deepcopy(model)(tokens)[0]  # without copies
        model.make_generation_fast_()
        torch.testing.assert_close(model(tokens)[0], expected)
        assert not torch.allclose(expected, before)


@needs_onednn
def test_other_precisions_and_gradients_do_not_use_the_copy(monkeypatch):
    _, ours = layer()
    x = torch.randn(3, 40)
    monkeypatch.setattr(ours.copied, "multiply", None)
    ours(x).sum().backward()
    assert ours.weight.grad is not None
    with torch.no_grad():
        ours.double()
        assert ours.copied is None and ours(x.double()).dtype == torch.float64
        ours.copy_weights()
        assert ours.copied is None


@needs_onednn
def test_it_is_copied_and_pickled_without_the_copy():
    _, ours = layer()
    x = torch.randn(3, 40)
    with torch.no_grad():
        expected = ours(x)
        for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert other.copied is None and ours.copied is not None
            torch.testing.assert_close(other(x), expected)


@needs_onednn
def test_a_model_prepared_for_generation_has_copies_and_the_same_parameters():
    models = tiny_model(torch.float32).eval(), translation_model(torch.float32).eval()
    tokens, target = (batch(side) for side in example())
    inputs = (target,), (tokens, tokens.ne(1).sum(dim=1), target)
    for model, read in zip(models, inputs):
        with torch.no_grad():
            expected, names = model(*read)[0], list(model.state_dict())
            parameters = len(list(model.parameters()))
            model.make_generation_fast_()
            assert list(model.state_dict()) == names and len(list(model.parameters())) == parameters
            fused = [part for part in model.modules() if isinstance(part, FusedOneDnnLinear)]
            unchanged = {part for part in model.modules() if type(part) is nn.Linear}
            assert unchanged == {layer for part in fused for layer in part.layers} != set()
            torch.testing.assert_close(model(*read)[0], expected)


def test_a_layer_without_outputs_has_no_copy():
    ours = OneDnnLinear(nn.Linear(3, 0))
    assert ours.copied is None and ours(torch.ones(2, 3)).shape == (2, 0)


def test_nothing_is_replaced_without_onednn(monkeypatch):
    monkeypatch.setattr(onednn_linear, "has_onednn", lambda: False)
    model = nn.Sequential(nn.Linear(2, 2))
    use_onednn(model)
    assert type(model[0]) is nn.Linear


@needs_onednn
@pytest.mark.parametrize("options", [{}, {"untie_luna_kv": True}])
def test_projections_of_causal_attention_are_one_product(options):
    model = tiny_model(torch.float32, **options).eval()
    attention = model.decoder.layers[0].self_attn
    x = torch.randn(2, 3, 12)

    def parts(attention):
        return torch.cat([layer(x) for layer in attention.input_projections()], dim=-1)

    with torch.no_grad():
        model.make_generation_fast_()
        fused = attention.fused_x_proj
        torch.testing.assert_close(fused(x), parts(attention))
        attention.unpack_q_proj.bias.add_(1)  # in place
        torch.testing.assert_close(fused(x), parts(attention))
        other = copy.deepcopy(attention)
        other.unpack_q_proj.weight.zero_()
        assert other.fused_x_proj.layers == tuple(other.input_projections())
        torch.testing.assert_close(other.fused_x_proj(x), parts(other))
        assert fused.replaces(attention.input_projections())
        x = x.double()
        torch.testing.assert_close(attention.double().fused_x_proj(x), parts(attention))
        assert not fused.replaces(attention.input_projections())  # joining the outputs would only cost time
    assert attention.fused_x_proj(x).requires_grad


def test_nothing_is_replaced_outside_a_cpu():
    model = tiny_model().to("meta")
    model.make_generation_fast_()
    assert not any(isinstance(part, (OneDnnLinear, FusedOneDnnLinear)) for part in model.modules())
