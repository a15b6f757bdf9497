"""Equation 7 alone against the authors' functional kernels."""

import pytest
import torch
from golden import DTYPES, assert_close, cast, load

from luna_fairseq.ops.causal_luna import chunk
from luna_fairseq.ops.causal_luna.chunk import causal_outer_sum
from luna_fairseq.ops.causal_luna.naive import causal_outer_mean


def outer_mean(x, y, z, steps):
    return causal_outer_mean(x, y, z, steps)


def outer_sum(x, y, z, steps):
    """causal_outer_sum wants heads and does not divide."""
    return (causal_outer_sum(x[:, None], y[:, None], z[:, None]) / steps).squeeze(1)


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("reference, gradients", [("parallel", "grads"), ("seq", "grads_seq")])
@pytest.mark.parametrize("form, single", [(outer_mean, None), (outer_sum, 128), (outer_sum, 2)])
def test_kernels(form, single, reference, gradients, precision, monkeypatch):
    golden = load("causal_kernels")
    if single is not None:
        monkeypatch.setattr(chunk, "SINGLE_CHUNK", single)
        monkeypatch.setattr(chunk, "CHUNK_SIZE", 4)
    inputs, expected = cast(golden["inputs"], DTYPES[precision]), golden[precision]
    leaves = [inputs[name].clone().requires_grad_() for name in "xyz"]
    steps = torch.arange(1, leaves[0].size(1) + 1)[:, None]
    output = form(*leaves, steps)
    assert_close(output, expected[reference], precision, "output")
    actual = torch.autograd.grad((output * inputs["loss_weight"]).sum(), leaves)
    for name, gradient in zip("xyz", actual):
        assert_close(gradient, expected[gradients][name], precision, f"gradient of {name}")


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("single", [128, 2])
def test_kernel_goes_on_from_a_state(precision, single, monkeypatch):
    golden = load("causal_kernels")
    monkeypatch.setattr(chunk, "SINGLE_CHUNK", single)
    monkeypatch.setattr(chunk, "CHUNK_SIZE", 4)
    inputs, expected = cast(golden["inputs"], DTYPES[precision]), golden[precision]
    x, y, z = (inputs[name][:, None] for name in "xyz")
    state = y[:, :, :4].transpose(-2, -1) @ z[:, :, :4]
    output = causal_outer_sum(x[:, :, 4:], y[:, :, 4:], z[:, :, 4:], state) / torch.arange(5, 10)[:, None]
    assert_close(output.squeeze(1), expected["incremental"][:, 4:], precision, "output")
