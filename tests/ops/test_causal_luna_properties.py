"""Test that all forms of causal Luna attention are causal, ignore padding, and decode step by step."""

import pytest
import torch
from attention_inputs import B, H, K, L, assert_equal_up_to, causal_inputs, packed_mask, padding_mask
from hypothesis import given, settings
from hypothesis import strategies as st

from luna_fairseq.ops.causal_luna import (
    chunk,
    chunk_causal_luna,
    naive_causal_luna,
    parallel,
    recurrent_causal_luna,
)
from luna_fairseq.ops.causal_luna.parallel import parallel_causal_luna


def naive_form(*inputs, **options):
    return naive_causal_luna(*inputs, **options)[0]


forms = pytest.mark.parametrize("form", [naive_form, chunk_causal_luna, parallel_causal_luna])
examples = settings(deadline=None, derandomize=True, max_examples=25)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunk, "chunk_size", lambda q, L: q.size(1) if q.size(1) <= 8 else 3)
    monkeypatch.setattr(parallel, "CHUNK_SIZE", 3)


def step_by_step(inputs, sizes, state=None, **options):
    """Call the recurrent form on consecutive parts of a sequence.

    Args:
        inputs: q, k, v and pack weights of the whole sequence.
        sizes: number of new positions of each call.
        state: state before the first call (default: None).
        **options: further arguments of the recurrent form.

    Returns:
        The concatenated outputs, and the last state.
    """
    outputs, key_padding_mask = [], options.pop("key_padding_mask", None)
    start = 0
    for size in sizes:
        part = slice(start, start + size)
        mask = None if key_padding_mask is None else key_padding_mask[:, part]
        output, state = recurrent_causal_luna(
            *[x[:, :, part] for x in inputs], state=state, key_padding_mask=mask, **options
        )
        outputs.append(output)
        start += size
    return torch.cat(outputs, dim=2), state


@forms
def test_by_hand(form):
    """Compare with equations 7 to 9, written out for each position, with padding on either side."""
    q, k, v, a = causal_inputs(6)
    left, right = (2, 0, 0), (0, 1, 0)
    mask, rows = padding_mask(6, left, right), packed_mask()
    output = form(q, k, v, a, packed_padding_mask=rows, key_padding_mask=mask)
    for b in range(B):
        real = [t for t in range(6) if not mask[b, t]]
        kept = [i for i in range(L) if not rows[b, i]]
        for h in range(H):
            for t in real:
                past = [j for j in real if j <= t]
                keys = sum(torch.outer(k[b, h, j], a[b, h, j]) for j in past) / len(past)
                values = sum(torch.outer(a[b, h, j], v[b, h, j]) for j in past) / len(past)
                weights = (q[b, h, t] / K**0.5 @ keys)[kept].softmax(dim=0)
                assert_equal_up_to(output[b, h, t], weights @ values[kept], 1e-12)


@forms
@pytest.mark.parametrize("length", [7, 20])
def test_output_does_not_depend_on_later_positions(form, length, small_chunks):
    inputs = causal_inputs(length)
    expected = form(*inputs)
    other = causal_inputs(length, seed=1)
    for t in range(length):
        changed = [torch.cat([x[:, :, : t + 1], y[:, :, t + 1 :]], dim=2) for x, y in zip(inputs, other)]
        assert torch.equal(form(*changed)[:, :, : t + 1], expected[:, :, : t + 1])


@forms
@pytest.mark.parametrize("length", [7, 20])
def test_gradient_with_respect_to_later_positions_is_exactly_zero(form, length, small_chunks):
    inputs = [x.requires_grad_() for x in causal_inputs(length)]
    output = form(*inputs)
    for t in range(length):
        gradients = torch.autograd.grad(output[:, :, t].sum(), inputs, retain_graph=True)
        for gradient in gradients:
            assert not gradient[:, :, t + 1 :].any()
        assert all(gradient[:, :, : t + 1].any() for gradient in gradients[2:])


@forms
@examples
@given(
    length=st.integers(1, 30),
    left=st.tuples(*[st.integers(0, 9)] * 3),
    right=st.tuples(*[st.integers(0, 9)] * 3),
)
def test_padding_on_either_side_changes_nothing(form, length, left, right):
    inputs = causal_inputs(length)
    expected = form(*inputs)
    total = length + max(a + b for a, b in zip(left, right))
    padded = causal_inputs(total, seed=1)  # what stands at padding is arbitrary
    right = [total - length - n for n in left]
    for x, y in zip(padded, inputs):
        for b in range(B):
            x[b, :, left[b] : left[b] + length] = y[b]
    output = form(*padded, key_padding_mask=padding_mask(total, left, right))
    for b in range(B):
        assert_equal_up_to(output[b, :, left[b] : left[b] + length], expected[b], 1e-12)


@forms
@pytest.mark.parametrize("length", [8, 21])
def test_gradients_at_padding_are_zero(form, length, small_chunks):
    mask = padding_mask(length, left=(3, 0, 1), right=(0, 2, 4))
    inputs = [x.requires_grad_() for x in causal_inputs(length)]
    output = form(*inputs, key_padding_mask=mask, packed_padding_mask=packed_mask())
    real = ~mask[:, None, :, None]
    gradients = torch.autograd.grad((output * real).pow(2).sum(), inputs)
    for gradient in gradients:
        assert gradient.isfinite().all()
        assert not (gradient * ~real).any()
        assert (gradient * real).any()
    # Keys, values and pack weights at padding do not even reach the outputs there.
    for gradient in torch.autograd.grad(form(*inputs, key_padding_mask=mask).sum(), inputs)[1:]:
        assert not (gradient * ~real).any()


@forms
def test_fully_masked_P_gives_zeros_and_finite_gradients(form):
    rows = packed_mask()
    rows[1] = True
    inputs = [x.requires_grad_() for x in causal_inputs(9)]
    output = form(*inputs, packed_padding_mask=rows)
    assert not output[1].any() and output[0].all() and output[2].all()
    for gradient in torch.autograd.grad(output.pow(2).sum(), inputs):
        assert gradient.isfinite().all() and not gradient[1].any()


@forms
def test_a_sentence_of_padding_alone_gives_zeros_and_finite_gradients(form):
    mask = padding_mask(9, left=(9, 2, 0))
    inputs = [x.requires_grad_() for x in causal_inputs(9)]
    output = form(*inputs, key_padding_mask=mask)
    assert not output[0].any() and output[1:, :, 2:].all()
    for gradient in torch.autograd.grad(output.sum(), inputs):
        assert gradient.isfinite().all()


@forms
def test_masked_rows_of_P_equal_missing_rows(form):
    q, k, v, a = causal_inputs(9)
    expected = form(q, k, v, a[..., : L - 2])
    output = form(q, k, v, a, packed_padding_mask=packed_mask())
    assert_equal_up_to(output[1], expected[1], 1e-12)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@examples
@given(
    sizes=st.lists(st.sampled_from([1, 1, 1, 2, 3, 7, 13]), min_size=1, max_size=8),
    padded=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_division_into_calls_gives_the_same(dtype, tolerance, sizes, padded, seed):
    length = sum(sizes)
    options = {"packed_padding_mask": packed_mask()}
    if padded:
        options["key_padding_mask"] = padding_mask(length, (0, length // 2, 1), (length // 3, 0, 0))
    inputs = causal_inputs(length, dtype, seed)
    expected = naive_causal_luna(*inputs, **options)[0]
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(chunk, "chunk_size", lambda q, L: q.size(1) if q.size(1) <= 5 else 4)
        output, state = step_by_step(inputs, sizes, **options)
    assert_equal_up_to(output, expected, tolerance)
    assert output.dtype == dtype
    if padded:
        assert state.steps.tolist() == (~options["key_padding_mask"]).sum(dim=1).tolist()
    else:
        assert state.steps.tolist() == [length] * B


def test_state_is_the_undivided_sums():
    q, k, v, a = causal_inputs(10)
    _, state = recurrent_causal_luna(q, k, v, a)
    assert_equal_up_to(state.key_sum, torch.einsum("bhtk,bhtl->bhkl", k, a), 1e-12)
    assert_equal_up_to(state.value_sum, torch.einsum("bhtl,bhtk->bhlk", a, v), 1e-12)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)])
def test_steps_are_counted_beyond_2048_in_half_precision(dtype, tolerance):
    inputs = causal_inputs(2060, dtype)
    expected, _ = naive_causal_luna(*[x.double() for x in inputs])
    output, state = step_by_step(inputs, [2040] + [1] * 20)
    assert state.steps.dtype == torch.int64 and state.steps.tolist() == [2060] * B
    assert state.key_sum.dtype == state.value_sum.dtype == torch.float32
    last = expected[:, :, -20:]
    assert (output[:, :, -20:] - last).abs().max() < tolerance * last.abs().max()
