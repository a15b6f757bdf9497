"""Second derivatives of operations whose backward pass is written by hand are refused."""

import pytest
import torch
from attention_inputs import causal_inputs

from luna_fairseq.anchored import pairs
from luna_fairseq.modules import LunaCausalAttention
from luna_fairseq.ops.causal_linear import chunk_causal_linear
from luna_fairseq.ops.causal_luna import causal_luna

_, K, _, A = causal_inputs(9)
CHOSEN = pairs.Gathered(torch.tensor([[0, 1], [2, 0]]))
TABLE = torch.rand(3, 4, 5)

# The function of one tensor, the shape of the tensor, and what the message says to use
FUNCTIONS = {
    "causal": (lambda q: causal_luna(q, K, K, A), K.shape, 'Use backend="parallel" or "naive"'),
    "linear": (lambda q: chunk_causal_linear(q, K, K), K.shape, "Use naive_causal_linear"),
    "scores": (lambda q: pairs.scores(CHOSEN, q, TABLE), (2, 5), "Use --packed-lookup 0"),
    "weighted sum": (lambda x: pairs.weighted_sum(CHOSEN, x, TABLE), (2, 8), "Use --packed-lookup 0"),
}


def gradient_penalty(function, x):
    x.requires_grad_()
    torch.autograd.grad(function(x).sum(), x, create_graph=True)


def backward(function, x):
    function(x.requires_grad_()).pow(2).sum().backward(create_graph=True)


def hessian_product(function, x):
    torch.autograd.functional.hvp(lambda x: function(x).pow(2).sum(), x, torch.ones_like(x))


@pytest.mark.parametrize("way", [gradient_penalty, backward, hessian_product])
@pytest.mark.parametrize("function, shape, advice", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_second_derivatives_are_refused(function, shape, advice, way):
    x = torch.rand(shape, dtype=A.dtype if len(shape) == 4 else torch.float32)
    with pytest.raises(NotImplementedError, match=f"has no second derivatives .*{advice}"):
        way(function, x)


@pytest.mark.parametrize("has_decay", [False, True])
@pytest.mark.parametrize("backend", ["parallel", "naive"])
def test_the_advised_backends_have_second_derivatives(backend, has_decay):
    decay = [torch.tensor([-0.3, -0.05], dtype=torch.float64)] if has_decay else []
    inputs = [x.requires_grad_() for x in (*causal_inputs(3, batch=1), *decay)]

    def compute(q, k, v, a, log_decay=None):
        return causal_luna(q, k, v, a, backend=backend, log_decay=log_decay)

    assert torch.autograd.gradgradcheck(compute, inputs, fast_mode=True)


def test_attention_that_keeps_a_state_refuses_them_with_any_backend():
    attention = LunaCausalAttention(8, 2, backend="parallel")
    x = torch.rand(5, 2, 8)
    memory = attention.read(torch.rand(3, 2, 8))
    with pytest.raises(NotImplementedError, match="without a decoding state"):
        gradient_penalty(lambda x: attention(x, memory, keep_state=True)[0], x)
    gradient_penalty(lambda x: attention(x, memory)[0], x)
