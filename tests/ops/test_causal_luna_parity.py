"""Compare the forms of causal Luna attention: outputs and gradients of all inputs."""

import pytest
import torch
from attention_inputs import (
    B,
    assert_equal_up_to,
    causal_inputs,
    masks,
    output_and_gradients,
    relative_rms,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from luna_fairseq.ops.causal_luna import (
    causal_luna,
    causal_pack_weights,
    chunk,
    chunk_causal_luna,
    naive_causal_luna,
    recurrent_causal_luna,
)

NAMES = ("output", "gradient of q", "gradient of k", "gradient of v", "gradient of the pack weights")
# On both sides of one chunk (32), of what counts as a single chunk (64), and of a whole number of chunks.
LENGTHS = (1, 2, 31, 63, 64, 65, 127, 128, 129, 191, 192, 193, 300)


def naive(**options):
    return lambda *inputs: naive_causal_luna(*inputs, **options)[0]


def chunked(**options):
    return lambda *inputs: chunk_causal_luna(*inputs, **options)


def small_chunks(monkeypatch, single, size):
    monkeypatch.setattr(chunk, "chunk_size", lambda q, L: q.size(1) if q.size(1) <= single else size)


@pytest.mark.parametrize("kind", ["none", "packed", "left", "right", "both"])
@pytest.mark.parametrize("length", LENGTHS)
def test_chunk_equals_naive_in_float64(length, kind):
    options, inputs = masks(kind, length), causal_inputs(length)
    expected = output_and_gradients(naive(**options), inputs)
    actual = output_and_gradients(chunked(**options), inputs)
    for name, a, b in zip(NAMES, actual, expected):
        assert_equal_up_to(a, b, 1e-9, name)
        assert b.abs().max() > 0 or length == 1, name  # a comparison of zeros would say nothing


@pytest.mark.parametrize("kind", ["none", "both"])
@pytest.mark.parametrize("length", LENGTHS)
def test_chunk_equals_naive_in_float32(length, kind):
    options, inputs = masks(kind, length), causal_inputs(length, torch.float32)
    expected = output_and_gradients(naive(**options), [x.double() for x in inputs])
    for form in (naive, chunked):
        actual = output_and_gradients(form(**options), inputs)
        for name, a, b in zip(NAMES, actual, expected):
            assert a.dtype == torch.float32
            # One position: the gradient of q is the rounding of a sum that is exactly nothing.
            assert relative_rms(a, b) < 2e-6 or b.abs().max() < 1e-12, (form.__name__, name)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    length=st.integers(1, 60),
    size=st.integers(1, 17),
    single=st.integers(0, 20),
    kind=st.sampled_from(["none", "packed", "left", "right", "both"]),
    seed=st.integers(0, 99),
)
def test_any_chunk_size_gives_the_same(length, size, single, kind, seed):
    options, inputs = masks(kind, length), causal_inputs(length, seed=seed)
    expected = output_and_gradients(naive(**options), inputs)
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_chunks(monkeypatch, single, size)
        actual = output_and_gradients(chunked(**options), inputs)
    for name, a, b in zip(NAMES, actual, expected):
        assert_equal_up_to(a, b, 1e-9, name)


@settings(deadline=None, derandomize=True, max_examples=15)
@given(
    length=st.integers(1, 40),
    size=st.integers(1, 17),
    kind=st.sampled_from(["none", "both"]),
    dropout=st.booleans(),
)
def test_tied_keys_and_values_share_one_gradient(length, size, kind, dropout):
    options = {**masks(kind, length), "dropout": 0.4 if dropout else 0.0}
    q, k, _, pack_weights = causal_inputs(length)
    torch.manual_seed(1)
    expected = output_and_gradients(
        lambda q, k, a: naive_causal_luna(q, k, k, a, **options)[0], [q, k, pack_weights]
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_chunks(monkeypatch, 3, size)
        torch.manual_seed(1)
        actual = output_and_gradients(
            lambda q, k, a: chunk_causal_luna(q, k, k, a, **options), [q, k, pack_weights]
        )
    for a, b in zip(actual, expected):
        assert_equal_up_to(a, b, 1e-9)


@pytest.mark.parametrize("tied", [False, True])
def test_gradient_goes_through_the_state(tied, monkeypatch):
    """A sequence that is computed in two calls has the same gradients as in one call.

    This includes the gradients at the positions of the first call.
    """
    small_chunks(monkeypatch, 4, 3)
    inputs = causal_inputs(17)

    def one_call(q, k, v, a):
        return chunk_causal_luna(q, k, k, a) + 0 * v if tied else chunk_causal_luna(q, k, v, a)

    def two_calls(q, k, v, a):
        parts = [[x[:, :, :6] for x in (q, k, v, a)], [x[:, :, 6:] for x in (q, k, v, a)]]
        outputs, state = [], None
        for q, k, v, a in parts:
            output, state = recurrent_causal_luna(q, k, k if tied else v, a, state)
            outputs.append(output + 0 * v)
        return torch.cat(outputs, dim=2)

    for a, b in zip(output_and_gradients(two_calls, inputs), output_and_gradients(one_call, inputs)):
        assert_equal_up_to(a, b, 1e-9)


@pytest.mark.parametrize("length", [20, 150])
def test_layout_in_memory_does_not_matter(length):
    """Heads are usually views of a tensor [T, B, C]. Results must not depend on this memory layout."""
    inputs = causal_inputs(length)
    views = [x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for x in inputs]
    for a, b in zip(
        output_and_gradients(chunk_causal_luna, views), output_and_gradients(chunk_causal_luna, inputs)
    ):
        assert_equal_up_to(a, b, 1e-12)


@pytest.mark.parametrize("form", [naive, chunked])
@pytest.mark.parametrize("kind", ["none", "both"])
@pytest.mark.parametrize("single", [10, 2])  # all in one chunk, or in three with a state between them
def test_gradients_are_those_of_finite_differences(form, kind, single, monkeypatch):
    small_chunks(monkeypatch, single, 3)
    inputs = [x.requires_grad_() for x in causal_inputs(7)]
    assert torch.autograd.gradcheck(form(**masks(kind, 7)), inputs, fast_mode=True)


@pytest.mark.parametrize("form", [naive, chunked])
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 4e-3), (torch.float16, 4e-4)])
@pytest.mark.parametrize("length", [45, 300])
def test_half_precision_rounds_only_input_and_output(form, dtype, tolerance, length):
    options, inputs = masks("both", length), causal_inputs(length, dtype)
    expected = output_and_gradients(naive(**options), [x.double() for x in inputs])
    actual = output_and_gradients(form(**options), inputs)
    for name, a, b in zip(NAMES, actual, expected):
        assert a.dtype == dtype
        assert relative_rms(a, b) < tolerance, name


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2.5e-3), (torch.float16, 4e-4)])
def test_sums_over_long_sequences_do_not_overflow(dtype, tolerance):
    """The sums reach about 2e7. This is too large for float16, and bfloat16 cannot count so far."""
    q, k, v, weights = causal_inputs(4096)
    inputs = [x.to(dtype) for x in (q * 0.01, k + 50, v + 50, weights * 100)]
    expected, _ = naive_causal_luna(*[x.double() for x in inputs])
    output = chunk_causal_luna(*inputs)
    stepped, state = recurrent_causal_luna(*inputs)
    for actual in (output, stepped):
        assert actual.isfinite().all()
        assert relative_rms(actual, expected) < tolerance
    assert state.value_sum.max() > 1e7 and state.value_sum.dtype == torch.float32


@pytest.mark.parametrize("form", ["naive", "chunk", "recurrent"])
def test_autocast_does_not_reach_the_sums(form):
    inputs = causal_inputs(300, torch.float32)
    expected, _ = naive_causal_luna(*[x.double() for x in inputs])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if form == "recurrent":
            start = [x[:, :, :-1] for x in inputs]
            _, state = recurrent_causal_luna(*start)
            output, state = recurrent_causal_luna(*[x[:, :, -1:] for x in inputs], state=state)
            assert state.key_sum.dtype == state.value_sum.dtype == torch.float32
            expected = expected[:, :, -1:]
        else:
            output = causal_luna(*inputs, backend=form)
    assert relative_rms(output, expected) < 1e-5


@pytest.mark.parametrize("length", [40, 200])
def test_dropout_drops_the_same_weights(length):
    inputs = causal_inputs(length)
    results = []
    for form in (naive, chunked):
        torch.manual_seed(3)
        results.append(output_and_gradients(form(dropout=0.3, **masks("both", length)), inputs))
    for name, a, b in zip(NAMES, *results):
        assert_equal_up_to(a, b, 1e-9, name)
    without = naive_causal_luna(*inputs, **masks("both", length))[0]
    assert relative_rms(results[0][0], without) > 0.1


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="as Luna backend, got 'triangle'"):
        causal_luna(*causal_inputs(3), backend="triangle")
    q, k, _, _ = causal_inputs(3)
    with pytest.raises(ValueError, match="Expected one of softplus, elu as pack activation, got 'relu'"):
        causal_pack_weights(q, k, "relu")


def test_pack_weights_by_hand():
    """For logit x, softplus gives log2(1 + 2^x). elu gives x + 1 for positive x, and e^x otherwise."""
    pack_q, pack_k, _, _ = causal_inputs(4)
    pack_k = pack_k.repeat(1, 1, 3, 1)  # 12 positions, 4 rows of P
    for b in range(B):
        logits = pack_k[b] @ pack_q[b].transpose(-2, -1) / 5**0.5
        assert_equal_up_to(causal_pack_weights(pack_q, pack_k, "softplus")[b], (1 + 2**logits).log2(), 1e-8)
        expected = torch.where(logits > 0, logits + 1, logits.exp())
        assert_equal_up_to(causal_pack_weights(pack_q, pack_k, "elu")[b], expected, 1e-12)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert causal_pack_weights(pack_q.to(dtype), pack_k.to(dtype), "softplus").dtype == torch.float32
