"""Compare the forms of causal linear attention: outputs, gradients of all inputs, and memory."""

import pytest
import torch
from attention_inputs import assert_equal_up_to, output_and_gradients, relative_rms
from hypothesis import given, settings
from hypothesis import strategies as st

from luna_fairseq.ops.causal_linear import (
    chunk,
    chunk_causal_linear,
    naive_causal_linear,
    recurrent_causal_linear,
)

B, H, M, N = 3, 2, 5, 7


def inputs(length, decay=False, state=False, dtype=torch.float64, seed=0):
    """Return random inputs of causal linear attention for ``length`` positions, in float64 by default.

    These are x, y and z, then optionally log_decay and state.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes = [(B, H, length, M), (B, H, length, M), (B, H, length, N)]
    parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    parts += [-torch.rand(B, H, length, generator=generator, dtype=torch.float64)] if decay else []
    parts += [torch.randn(B, H, M, N, generator=generator, dtype=torch.float64)] if state else []
    return [part.to(dtype) for part in parts]


def call(form, decay, state):
    """Return a function of the tensors of :func:`inputs` that calls a form of causal linear attention."""

    def function(x, y, z, *rest):
        rest = list(rest)
        log_decay = rest.pop(0) if decay else None
        return form(x, y, z, log_decay, rest.pop(0) if state else None)

    return function


@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    length=st.integers(1, 60),
    size=st.integers(1, 17),
    decay=st.booleans(),
    state=st.booleans(),
    seed=st.integers(0, 99),
)
def test_chunk_equals_naive_for_any_chunk_size(length, size, decay, state, seed):
    parts = inputs(length, decay, state, seed=seed)
    expected = output_and_gradients(call(naive_causal_linear, decay, state), parts)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(chunk, "chunk_size", lambda x, width: size)
        actual = output_and_gradients(call(chunk_causal_linear, decay, state), parts)
    for a, b in zip(actual, expected):
        assert_equal_up_to(a, b, 1e-9)


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("length", [127, 129, 300])
def test_chunk_equals_naive_in_float32(length, decay):
    parts = inputs(length, decay, dtype=torch.float32)
    expected = output_and_gradients(call(naive_causal_linear, decay, False), [x.double() for x in parts])
    for a, b in zip(output_and_gradients(call(chunk_causal_linear, decay, False), parts), expected):
        assert a.dtype == torch.float32
        assert relative_rms(a, b) < 3e-6


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("cuts", [(1,) * 9, (4, 5), (1, 7, 1)])
def test_step_by_step_equals_all_at_once(decay, cuts):
    parts = inputs(9, decay)
    outputs, state, start = [], None, 0
    for size in cuts:
        x, y, z, *log_decay = [part[:, :, start : start + size] for part in parts]
        output, state = recurrent_causal_linear(x, y, z, *log_decay or (None,), state=state)
        outputs.append(output)
        start += size
    assert_equal_up_to(torch.cat(outputs, dim=2), call(naive_causal_linear, decay, False)(*parts), 1e-12)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 4e-3), (torch.float16, 5e-4)])
@pytest.mark.parametrize("decay", [False, True])
def test_half_precision_rounds_only_input_and_output(dtype, tolerance, decay):
    parts = inputs(300, decay, dtype=dtype)
    expected = output_and_gradients(call(naive_causal_linear, decay, False), [x.double() for x in parts])
    actual = output_and_gradients(call(chunk_causal_linear, decay, False), parts)
    for a, b in zip(actual, expected):
        assert a.dtype == dtype
        assert relative_rms(a, b) < tolerance


def test_strong_decay_does_not_overflow():
    x, y, z = inputs(200)
    log_decay = torch.full((B, H, 200), -50.0, dtype=torch.float64)
    output, *gradients = output_and_gradients(call(chunk_causal_linear, True, False), [x, y, z, log_decay])
    assert_equal_up_to(output, (x * y).sum(dim=-1, keepdim=True) * z, 1e-12)  # every position is alone
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_only_the_inputs_are_saved_for_the_gradient():
    saved = []
    parts = [x.requires_grad_() for x in inputs(500, decay=True)]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        chunk_causal_linear(*parts)
    assert sum(saved) == sum(part.numel() for part in parts)


def test_autocast_does_not_reach_the_sums():
    parts = inputs(300, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, (stepped, state) = chunk_causal_linear(*parts), recurrent_causal_linear(*parts)
    expected = naive_causal_linear(*[x.double() for x in parts])
    assert relative_rms(output, expected) < 1e-5 and relative_rms(stepped, expected) < 1e-5
    assert state.dtype == torch.float32
