"""Compare window attention with its definition."""

import pytest
import torch
from attention_inputs import output_and_gradients, relative_rms
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_inputs import LENGTHS, B, L, S, draw_inputs, masks

from luna_fairseq.anchored.segments import segment_of_tokens
from luna_fairseq.anchored.window import (
    find_window,
    naive_window_attention,
    split_window_weights,
    window_attention,
)
from luna_fairseq.modules.memory import PackedMemory
from luna_fairseq.ops.attention import key_mask, naive_attention

NAMES = ("output", "q", "k", "v", "token keys", "token values", "strength")


def zero_padding(output, context):
    """Return the output with zeros at padding, where the values are arbitrary."""
    return output.masked_fill(context[:, None, :, None], 0.0)


def build_window_attention(number, context, packed):
    window = find_window(context, packed, number)

    def form(*x):
        return zero_padding(window_attention(*x, window)[0], context)

    return form


def build_definition(number, context, packed):
    return lambda *x: zero_padding(naive_window_attention(*x, number, context, packed)[0], context)


@pytest.mark.parametrize("kind", list(LENGTHS))
@pytest.mark.parametrize("number", [1, 3, 5, 2 * L + 1])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 5e-6)])
def test_window_attention_equals_the_definition(kind, number, dtype, tolerance):
    x = draw_inputs(dtype)
    # Both forms compute distances in float32, in which 11 tokens cannot be divided exactly into segments.
    expected = output_and_gradients(build_definition(number, *masks(kind)), [i.double() for i in x])
    actual = output_and_gradients(build_window_attention(number, *masks(kind)), x)
    for name, a, b in zip(NAMES, actual, expected):
        assert a.dtype == dtype
        assert relative_rms(a, b) < tolerance, name


@pytest.mark.parametrize("length, full", [(4 * L, True), (L, True), (4 * L - 1, False)])
def test_full_segments_need_no_gather(length, full):
    context, packed = torch.zeros(B, length, dtype=torch.bool), torch.zeros(B, L, dtype=torch.bool)
    x = draw_inputs(queries=length, tokens=length)
    window = find_window(context, packed, 3, complete=True)
    assert window.full == full

    def form(*x):
        return window_attention(*x, window)[0]

    expected = output_and_gradients(build_definition(3, context, packed), x)
    for name, a, b in zip(NAMES, output_and_gradients(form, x), expected):
        assert relative_rms(a, b) < 1e-12, name
    pack_weights = torch.rand(B, 1, L, length, dtype=torch.float64)
    _, weights = window_attention(*x, window)
    fetched = split_window_weights(weights, window._replace(full=False)).total(
        PackedMemory(None, None, pack_weights[:, 0])
    )
    assert torch.equal(
        split_window_weights(weights, window).total(PackedMemory(None, None, pack_weights[:, 0])), fetched
    )


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.tuples(*[st.integers(1, 13)] * B), rows=st.integers(1, 9), number=st.sampled_from([1, 3, 5])
)
def test_any_lengths_and_any_number_of_rows(lengths, rows, number):
    length = max(lengths)
    x = draw_inputs(queries=length, rows=rows, tokens=length)
    n = torch.tensor(lengths)[:, None]
    context, packed = torch.arange(length)[None, :] >= n, torch.arange(rows)[None, :] >= n
    actual, expected = (
        form(number, context, packed)(*x) for form in (build_window_attention, build_definition)
    )
    assert torch.allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize("number", [1, 3])
def test_padded_rows_leave_more_tokens_to_the_other_segments(number):
    x, (context, _) = draw_inputs(), masks("right")
    packed = torch.arange(L)[None, :] >= torch.tensor([2, 1, 1])[:, None]
    actual, expected = (
        form(number, context, packed)(*x) for form in (build_window_attention, build_definition)
    )
    assert torch.allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
def test_half_precision(dtype, tolerance):
    x = draw_inputs(dtype)
    expected = output_and_gradients(build_definition(3, *masks("right")), [i.double() for i in x])
    actual = output_and_gradients(build_window_attention(3, *masks("right")), x)
    for name, a, b in zip(NAMES, actual, expected):
        assert a.dtype == dtype
        assert relative_rms(a, b) < tolerance, name


def test_a_window_over_all_segments_is_softmax_attention_over_rows_and_tokens():
    q, k, v, token_k, token_v, strength = draw_inputs()
    context, packed = masks("right")
    everything = build_window_attention(2 * L + 1, context, packed)(q, k, v, token_k, token_v, 0 * strength)
    keys, values = torch.cat([k, token_k], dim=2), torch.cat([v, token_v], dim=2)
    expected, _ = naive_attention(q, keys, values, key_mask(torch.cat([packed, context], dim=1)))
    assert torch.allclose(everything, zero_padding(expected, context), atol=1e-12)


def test_weights_come_from_one_softmax_over_rows_and_nearby_segments():
    context, packed = masks("right")
    x = draw_inputs()
    _, of_rows, of_tokens = naive_window_attention(*x, 3, context, packed)
    assert torch.allclose(of_rows.sum(-1) + of_tokens.sum(-1), torch.ones(()).double())
    part = segment_of_tokens(context, packed)
    far = ((part[:, :, None] - part[:, None, :]).abs() > 1)[:, None]
    assert far.any() and not of_tokens.masked_select(far).any()
    window = find_window(context, packed, 3)
    pack_weights = torch.rand(B, 1, L, S, dtype=torch.float64)
    _, weights = window_attention(*x, window)
    through = of_rows @ pack_weights + of_tokens
    assert torch.allclose(
        zero_padding(
            split_window_weights(weights, window).total(PackedMemory(None, None, pack_weights[:, 0])), context
        ),
        zero_padding(through, context),
        atol=1e-6,
    )


def test_a_query_reads_the_rows_and_its_window_only():
    context, packed = torch.zeros(1, 4096, dtype=torch.bool), torch.zeros(1, 64, dtype=torch.bool)
    assert find_window(context, packed, 3).distance.numel() == 4096 * (64 + 3 * 64)
