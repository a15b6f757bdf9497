"""Compare the function f of equation 7 with recorded results of the authors' kernels in plain torch."""

import pytest
import torch
from golden import DTYPES, assert_close, cast, load

from luna_fairseq.ops.causal_luna.naive import causal_outer_mean


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("reference, gradients", [("parallel", "grads"), ("seq", "grads_seq")])
def test_kernels(reference, gradients, precision):
    golden = load("causal_kernels")
    inputs, expected = cast(golden["inputs"], DTYPES[precision]), golden[precision]
    leaves = [inputs[name].clone().requires_grad_() for name in "xyz"]
    output = causal_outer_mean(*leaves, torch.arange(1, leaves[0].size(1) + 1)[:, None])
    assert_close(output, expected[reference], precision, "output")
    actual = torch.autograd.grad((output * inputs["loss_weight"]).sum(), leaves)
    for name, gradient in zip("xyz", actual):
        assert_close(gradient, expected[gradients][name], precision, f"gradient of {name}")
