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
from luna_fairseq.models.onednn_linear import OneDnnLinear, use_onednn

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
    with torch.no_grad():
        torch.testing.assert_close(ours(x), linear(x))
        torch.testing.assert_close(ours(x.transpose(0, -2)), linear(x.transpose(0, -2)))
    assert ours.reordered.weight is not None


@needs_onednn
def test_a_changed_weight_is_reordered_again():
    linear, ours = layer()
    x = torch.randn(3, 40)
    with torch.no_grad():
        ours(x)
        linear.weight.mul_(2)
        torch.testing.assert_close(ours(x), linear(x))
        ours.load_state_dict(nn.Linear(40, 21).state_dict())
        torch.testing.assert_close(ours(x), linear(x))


@needs_onednn
def test_other_precisions_and_gradients_do_not_use_the_copy():
    _, ours = layer()
    x = torch.randn(3, 40)
    ours(x).sum().backward()
    assert ours.weight.grad is not None and ours.reordered.weight is None
    with torch.no_grad():
        ours(x)
        ours.double()
        assert ours.reordered.weight is None and ours(x.double()).dtype == torch.float64
        assert ours.reordered.weight is None


@needs_onednn
def test_it_is_copied_and_pickled_without_the_copy():
    _, ours = layer()
    x = torch.randn(3, 40)
    with torch.no_grad():
        expected = ours(x)
        for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            assert other.reordered.weight is None
            torch.testing.assert_close(other(x), expected)


@needs_onednn
def test_a_model_prepared_for_generation_has_such_layers_and_the_same_parameters():
    models = tiny_model(torch.float32).eval(), translation_model(torch.float32).eval()
    tokens, target = (batch(side) for side in example())
    inputs = (target,), (tokens, tokens.ne(1).sum(dim=1), target)
    for model, read in zip(models, inputs):
        with torch.no_grad():
            expected, names = model(*read)[0], list(model.state_dict())
            parameters = len(list(model.parameters()))
            model.make_generation_fast_()
            assert list(model.state_dict()) == names and len(list(model.parameters())) == parameters
            assert not [child for child in model.modules() if type(child) is nn.Linear]
            torch.testing.assert_close(model(*read)[0], expected)


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

    def parts():
        return [getattr(attention, f"{name}_proj")(x) for name in attention.x_projections]

    with torch.no_grad():
        model.make_generation_fast_()
        fused = attention.fused_x_proj
        torch.testing.assert_close(fused(x), torch.cat(parts(), dim=-1))
        attention.unpack_q_proj.bias.add_(1)  # in place
        torch.testing.assert_close(fused(x), torch.cat(parts(), dim=-1))
        other = copy.deepcopy(attention)
        other.unpack_q_proj.weight.zero_()
        assert not torch.equal(other.fused_x_proj(x), fused(x))
        x = x.double()
        torch.testing.assert_close(attention.double().fused_x_proj(x), torch.cat(parts(), dim=-1))
    assert attention.fused_x_proj(x).requires_grad
