"""Dropout on a CPU: probabilities, scale, gradients, seeds and shapes."""

import pytest
import torch
from torch.nn import functional as F

from luna_fairseq.modules.builders import Dropout
from luna_fairseq.ops.dropout import dropout


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.999])
def test_probability_and_mean(probability):
    count = 400_000
    y = dropout(torch.ones(count, dtype=torch.float64), probability)
    deviation = (probability * (1 - probability) / count) ** 0.5
    assert (y == 0).double().mean().item() == pytest.approx(probability, abs=5 * deviation)
    assert y.unique().tolist() == [0, pytest.approx(1 / (1 - probability), rel=0.01)]
    assert y.mean().item() == pytest.approx(1, abs=5 * deviation / (1 - probability))


def test_four_elements_of_a_random_number_are_independent():
    dropped = (dropout(torch.ones(100_000, 4), 0.3) == 0).double()
    assert (dropped.mean(dim=0) - 0.3).abs().max() < 0.01
    assert (torch.corrcoef(dropped.t()) - torch.eye(4)).abs().max() < 0.02


def test_gradient_is_the_mask_and_depends_on_the_seed_alone():
    x = torch.randn(7, 5, 3).transpose(0, 1).requires_grad_()
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        y = dropout(x, 0.4)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(y, x * gradient) and y.shape == x.shape
        results.append(gradient)
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5,), (2, 3)])
def test_shapes(shape):
    assert dropout(torch.ones(shape), 0.5).shape == shape


@pytest.mark.parametrize("probability", [0.0, 1e-9, 1.0])
def test_probabilities_without_a_choice(probability):
    x = torch.randn(100)
    assert torch.equal(dropout(x, probability), F.dropout(x, probability))


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_half_precision(dtype, tolerance):
    y = dropout(torch.ones(100_000, dtype=dtype), 0.3)
    assert y.dtype == dtype and (y == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert y.max().item() == pytest.approx(1 / 0.7, rel=tolerance)


def test_module_drops_in_training_only():
    module, x = Dropout(0.5), torch.ones(1000)
    assert 300 < (module(x) == 0).sum() < 700
    assert torch.equal(module.eval()(x), x)
