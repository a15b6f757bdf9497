"""Unpack attention that also reads the parts around a token: the form by parts against the definition."""

import pytest
import torch
from attention_inputs import output_and_gradients, relative_rms
from hypothesis import given, settings
from hypothesis import strategies as st

from luna_fairseq.anchored.segments import segment_of_tokens
from luna_fairseq.anchored.window import (
    find_window,
    naive_window_attention,
    total_window_weights,
    window_attention,
)
from luna_fairseq.ops.attention import naive_attention

B, H, K, L, S = 3, 2, 5, 4, 11
NAMES = ("output", "q", "k", "v", "token keys", "token values", "strength")
LENGTHS = {"whole": (S, S, S), "right": (S, 7, 2), "left": (S, 7, 2), "nothing left": (S, 0, 1)}


def masks(kind, length=S, rows=L):
    position, n = torch.arange(length)[None, :], torch.tensor(LENGTHS[kind])[:, None]
    context = position < length - n if kind == "left" else position >= n
    return context, torch.arange(rows)[None, :] >= n


def inputs(dtype=torch.float64, seed=0, length=S, rows=L):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(B, H, length, K), (B, H, rows, K), (B, H, rows, K)] + 2 * [(B, H, length, K)] + [(H,)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def real(output, context):
    """``output`` of padding is of no meaning."""
    return output.masked_fill(context[:, None, :, None], 0.0)


def arrange_tokens(number, context, packed):
    window = find_window(context, packed, number)

    def form(*x):
        return real(window_attention(*x, window)[0], context)

    return form


def defined(number, context, packed):
    return lambda *x: real(naive_window_attention(*x, number, context, packed)[0], context)


@pytest.mark.parametrize("kind", list(LENGTHS))
@pytest.mark.parametrize("number", [1, 3, 5, 2 * L + 1])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 5e-6)])
def test_by_parts_equals_the_definition(kind, number, dtype, tolerance):
    x = inputs(dtype)
    # Distances are single precision in both forms: parts of 11 tokens have no exact width.
    expected = output_and_gradients(defined(number, *masks(kind)), [i.double() for i in x])
    actual = output_and_gradients(arrange_tokens(number, *masks(kind)), x)
    for name, a, b in zip(NAMES, actual, expected):
        assert a.dtype == dtype
        assert relative_rms(a, b) < tolerance, name


@pytest.mark.parametrize("length, full", [(4 * L, True), (L, True), (4 * L - 1, False)])
def test_full_parts_need_no_fetching(length, full):
    context, packed = torch.zeros(B, length, dtype=torch.bool), torch.zeros(B, L, dtype=torch.bool)
    x = inputs(length=length)
    window = find_window(context, packed, 3, complete=True)
    assert window.full == full

    def form(*x):
        return window_attention(*x, window)[0]

    expected = output_and_gradients(defined(3, context, packed), x)
    for name, a, b in zip(NAMES, output_and_gradients(form, x), expected):
        assert relative_rms(a, b) < 1e-12, name
    pack_weights = torch.rand(B, 1, L, length, dtype=torch.float64)
    _, weights = window_attention(*x, window)
    fetched = total_window_weights(weights, window._replace(full=False), pack_weights)
    assert torch.equal(total_window_weights(weights, window, pack_weights), fetched)


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.tuples(*[st.integers(1, 13)] * B), rows=st.integers(1, 9), number=st.sampled_from([1, 3, 5])
)
def test_any_lengths_and_any_number_of_rows(lengths, rows, number):
    x = inputs(length=max(lengths), rows=rows)
    n = torch.tensor(lengths)[:, None]
    context, packed = torch.arange(max(lengths))[None, :] >= n, torch.arange(rows)[None, :] >= n
    actual, expected = (form(number, context, packed)(*x) for form in (arrange_tokens, defined))
    assert torch.allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
def test_half_precision(dtype, tolerance):
    x = inputs(dtype)
    expected = output_and_gradients(defined(3, *masks("right")), [i.double() for i in x])
    actual = output_and_gradients(arrange_tokens(3, *masks("right")), x)
    for name, a, b in zip(NAMES, actual, expected):
        assert a.dtype == dtype
        assert relative_rms(a, b) < tolerance, name


def test_a_window_of_all_parts_without_strength_is_softmax_attention_over_rows_and_tokens():
    q, k, v, token_k, token_v, strength = inputs()
    context, packed = masks("right")
    everything = arrange_tokens(2 * L + 1, context, packed)(q, k, v, token_k, token_v, 0 * strength)
    keys, values = torch.cat([k, token_k], dim=2), torch.cat([v, token_v], dim=2)
    expected, _ = naive_attention(q, keys, values, torch.cat([packed, context], dim=1))
    assert torch.allclose(everything, real(expected, context), atol=1e-12)


def test_weights_are_those_of_one_softmax_and_only_of_the_parts_around():
    context, packed = masks("right")
    x = inputs()
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
        real(total_window_weights(weights, window, pack_weights), context), real(through, context), atol=1e-6
    )


def test_what_a_sentence_costs_grows_as_its_parts():
    context, packed = torch.zeros(1, 4096, dtype=torch.bool), torch.zeros(1, 64, dtype=torch.bool)
    assert find_window(context, packed, 3).distance.numel() == 4096 * (64 + 3 * 64)
