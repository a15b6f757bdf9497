"""Test causal Luna attention with decay: equal forms, and the limits of weak and strong decay."""

import pytest
import torch
from attention_inputs import (
    B,
    H,
    assert_equal_up_to,
    causal_inputs,
    masks,
    output_and_gradients,
    relative_rms,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from luna_fairseq.anchored.causal import DecayingCausalAttention
from luna_fairseq.ops.causal_luna import (
    chunk,
    chunk_causal_luna,
    naive_causal_luna,
    recurrent_causal_luna,
)
from luna_fairseq.ops.causal_luna.decay import decay_totals, decayed_counts

LOG_DECAY = (-0.02, -1.5)
kinds = st.sampled_from(["none", "left", "both"])


def inputs(length, dtype=torch.float64, seed=0, log_decay=LOG_DECAY):
    """Return random q, k, v, pack weights, and the log decay of each head in float32 or float64."""
    wide = torch.promote_types(dtype, torch.float32)
    return [*causal_inputs(length, dtype, seed), torch.tensor(log_decay, dtype=wide)]


def naive(**options):
    return lambda *parts: naive_causal_luna(*parts[:4], **options, log_decay=parts[4])[0]


def chunked(tied=False, **options):
    def form(q, k, v, a, log_decay):
        return chunk_causal_luna(q, k, k if tied else v, a, **options, log_decay=log_decay) + 0 * v * tied

    return form


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    length=st.integers(1, 40),
    size=st.integers(1, 50),
    kind=kinds,
    tied=st.booleans(),
    seed=st.integers(0, 99),
)
def test_chunk_equals_naive_for_any_chunk_size(length, size, kind, tied, seed):
    options, parts = masks(kind, length), inputs(length, seed=seed)

    def definition(q, k, v, a, log_decay):
        return naive(**options)(q, k, k if tied else v, a, log_decay) + 0 * v * tied

    expected = output_and_gradients(definition, parts)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(chunk, "chunk_size", lambda q, L: size)
        actual = output_and_gradients(chunked(tied, **options), parts)
    for a, b in zip(actual, expected):
        assert_equal_up_to(a, b, 1e-9)
    assert length == 1 or expected[-1].all()  # each log decay has a gradient to compare


@pytest.mark.parametrize("kind", ["none", "both"])
@pytest.mark.parametrize("length", [31, 129, 300])
def test_chunk_equals_naive_in_float32(length, kind):
    options, parts = masks(kind, length), inputs(length, torch.float32)
    expected = output_and_gradients(naive(**options), [x.double() for x in parts])
    *actual, of_decay = output_and_gradients(chunked(**options), parts)
    for a, b in zip(actual, expected):
        assert a.dtype == torch.float32 and relative_rms(a, b) < 3e-6
    # A sum over all positions of differences that nearly cancel.
    assert relative_rms(of_decay, expected[-1]) < 1e-4


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 6e-3), (torch.float16, 8e-4)])
def test_half_precision_rounds_only_input_and_output(dtype, tolerance):
    options, parts = masks("both", 300), inputs(300, dtype)
    expected = output_and_gradients(naive(**options), [x.double() for x in parts])
    actual = output_and_gradients(chunked(**options), parts)
    for a, b in zip(actual[:-1], expected):
        assert a.dtype == dtype and relative_rms(a, b) < tolerance


@settings(deadline=None, derandomize=True, max_examples=25)
@given(sizes=st.lists(st.sampled_from([1, 1, 1, 2, 3, 7, 13]), min_size=1, max_size=8), kind=kinds)
def test_any_division_into_calls_gives_the_same_output_and_gradients(sizes, kind):
    options, parts = masks(kind, sum(sizes)), inputs(sum(sizes))
    padding = options.pop("key_padding_mask", None)

    def in_calls(*parts):
        outputs, state, start = [], None, 0
        for size in sizes:
            cut = slice(start, start + size)
            mask = None if padding is None else padding[:, cut]
            output, state = recurrent_causal_luna(
                *(x[:, :, cut] for x in parts[:4]),
                state=state,
                key_padding_mask=mask,
                log_decay=parts[4],
                **options,
            )
            outputs.append(output)
            start += size
        return torch.cat(outputs, dim=2)

    expected = output_and_gradients(naive(key_padding_mask=padding, **options), parts)
    for a, b in zip(output_and_gradients(in_calls, parts), expected):
        assert_equal_up_to(a, b, 1e-9)


@pytest.mark.parametrize("form", [naive, chunked])
@pytest.mark.parametrize("length", [9, 150])
def test_weak_decay_approaches_attention_without_decay(form, length):
    *parts, _ = inputs(length)
    log_decay = torch.full((H,), -1e-10, dtype=torch.float64)
    expected = naive_causal_luna(*parts, **masks("both", length))[0]
    assert_equal_up_to(form(**masks("both", length))(*parts, log_decay), expected, 1e-6)


def test_a_rate_that_underflows_in_float16_gives_no_nan():
    attention = DecayingCausalAttention(4 * H, H).to(torch.float16)
    torch.nn.init.constant_(attention.decay.change, -30.0)
    *parts, _ = inputs(20, torch.float16)
    expected = naive_causal_luna(*parts)[0]
    assert relative_rms(chunked()(*parts, attention.log_decay()), expected) < 3e-3


@pytest.mark.parametrize("form", [naive, chunked])
def test_with_strong_decay_each_position_sees_only_itself(form):
    q, k, v, a, _ = inputs(200)
    expected = naive_causal_luna(*(x.flatten(0, 2)[:, None, None] for x in (q, k, v, a)))[0]
    output, *gradients = output_and_gradients(form(), [q, k, v, a, torch.full((H,), -80.0).double()])
    assert_equal_up_to(output, expected.view_as(output), 1e-12)
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("before", [0, 7])
def test_the_derivative_of_the_decay_totals(before):
    count = (~masks("both", 9)["key_padding_mask"]).cumsum(dim=1)[:, None, :, None]
    steps = (count + before).clamp(min=1)
    log_decay = torch.tensor(LOG_DECAY, dtype=torch.float64, requires_grad=True)
    inverse, total = decay_totals(log_decay, count, steps)
    assert_equal_up_to(inverse, 1 / decayed_counts(log_decay, steps), 1e-12)
    assert_equal_up_to(total, log_decay[:, None, None] * count, 1e-12)
    assert torch.autograd.gradcheck(lambda x: decay_totals(x, count, steps), [log_decay])


def test_only_inputs_and_the_softmax_are_saved_for_the_gradient():
    saved = []
    parts = [x.requires_grad_() for x in inputs(500)]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        chunk_causal_luna(*parts[:4], log_decay=parts[4])
    q, _, _, a, _ = parts
    assert sum(saved) < 3 * q.numel() + 2 * a.numel() + 10 * B * H * 500
