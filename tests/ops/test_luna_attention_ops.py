"""Compare pack and unpack attention with the definition, both fused and as matrix products."""

import pytest
import torch
from attention_inputs import (
    B,
    H,
    K,
    S,
    assert_equal_up_to,
    output_and_gradients,
    padding_mask,
    relative_rms,
    softmax_inputs,
)

from luna_fairseq.ops import attention
from luna_fairseq.ops.attention import fast_softmax, key_mask, naive_attention, softmax_attention
from luna_fairseq.ops.blocks import windowed_attention

NAMES = ("output", "gradient of q", "gradient of k", "gradient of v")
MASKS = {
    "none": None,
    "left": padding_mask(S, left=(0, 3, S - 1)),
    "right": padding_mask(S, right=(4, 0, S - 1)),
    "whole sentence": padding_mask(S, right=(0, S, 2)),
}
kinds = pytest.mark.parametrize("kind", list(MASKS))


def naive_form(q, k, v, mask=None, dropout=0.0, bias=None):
    return naive_attention(q, k, v, key_mask(mask), dropout, bias)[0]


def fused_form(q, k, v, mask=None, dropout=0.0, bias=None):
    return softmax_attention(q, k, v, key_mask(mask), dropout, bias, "fused")


def matmul_form(q, k, v, mask=None, dropout=0.0, bias=None):
    return softmax_attention(q, k, v, key_mask(mask), dropout, bias, "matmul")


FORMS = (naive_form, fused_form, matmul_form)
forms = pytest.mark.parametrize("form", FORMS)


@kinds
@pytest.mark.parametrize("length", [1, 7, 40])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_forms_equal_naive(length, kind, dtype, tolerance):
    inputs = softmax_inputs(length, dtype)
    expected = output_and_gradients(lambda *x: naive_form(*x, MASKS[kind]), [x.double() for x in inputs])
    for form in FORMS:
        actual = output_and_gradients(lambda *x, form=form: form(*x, MASKS[kind]), inputs)
        for name, a, b in zip(NAMES, actual, expected):
            assert a.dtype == dtype
            assert relative_rms(a, b) < tolerance, name


def bias(length, shape=(B, H), dtype=torch.float64):
    return torch.randn(*shape, length, S, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(
        dtype
    )


@kinds
@pytest.mark.parametrize("shape", [(B, H), (1, H), (B, 1)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_forms_add_a_bias_to_the_logits(kind, shape, dtype, tolerance):
    inputs = [*softmax_inputs(7, dtype), bias(7, shape, dtype)]
    expected = output_and_gradients(
        lambda *x: naive_form(*x[:3], MASKS[kind], bias=x[3]), [x.double() for x in inputs]
    )
    for form in FORMS:
        actual = output_and_gradients(lambda *x, form=form: form(*x[:3], MASKS[kind], bias=x[3]), inputs)
        for name, a, b in zip((*NAMES, "gradient of the bias"), actual, expected):
            assert a.dtype == dtype
            assert relative_rms(a, b) < tolerance, name


@forms
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_a_bias_in_half_precision(form, dtype, tolerance):
    inputs = [*softmax_inputs(7, dtype), bias(7, dtype=dtype)]
    expected = naive_form(*(x.double() for x in inputs[:3]), MASKS["left"], bias=inputs[3].double())
    assert relative_rms(form(*inputs[:3], MASKS["left"], bias=inputs[3]), expected) < tolerance
    if dtype == torch.float16 and torch.__version__ < "2.":
        return  # a CPU's autocast knew bfloat16 alone
    with torch.autocast("cpu", dtype=dtype):
        actual = form(*(x.float() for x in inputs[:3]), MASKS["left"], bias=inputs[3].float())
    assert relative_rms(actual, expected) < tolerance


@forms
@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_half_precision(form, dtype, tolerance):
    inputs = softmax_inputs(9, dtype)
    expected = output_and_gradients(lambda *x: naive_form(*x, MASKS["left"]), [x.double() for x in inputs])
    actual = output_and_gradients(lambda *x: form(*x, MASKS["left"]), inputs)
    for name, a, b in zip(NAMES, actual, expected):
        assert a.dtype == dtype
        assert relative_rms(a, b) < tolerance, name


@forms
@kinds
def test_gradients_are_those_of_finite_differences(form, kind):
    inputs = [x.requires_grad_() for x in softmax_inputs(4)]
    assert torch.autograd.gradcheck(lambda *x: form(*x, MASKS[kind]), inputs, fast_mode=True)


@forms
@pytest.mark.parametrize("with_bias", [False, True])
def test_by_hand(form, with_bias):
    q, k, v = softmax_inputs(6)
    mask, added = MASKS["left"], bias(6) * with_bias
    output = form(q, k, v, mask, bias=added if with_bias else None)
    for b in range(B):
        real = ~mask[b]
        for h in range(H):
            logits = q[b, h] @ k[b, h, real].t() / K**0.5 + added[b, h][:, real]
            weights = logits.softmax(dim=-1)
            assert_equal_up_to(output[b, h], weights @ v[b, h, real], 1e-12)


@forms
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_sentence_without_keys_gives_zeros_and_finite_gradients(form, dtype):
    mask = MASKS["whole sentence"]
    output, *gradients = output_and_gradients(lambda *x: form(*x, mask), softmax_inputs(6, dtype))
    assert output.isfinite().all() and not output[1].any() and output[0].any() and output[2].any()
    for gradient in gradients:
        assert gradient.isfinite().all() and not gradient[1].any()


@kinds
def test_weights_are_a_distribution_over_real_keys(kind):
    _, weights = naive_attention(*softmax_inputs(6), key_mask(MASKS[kind]))
    assert weights.shape == (B, H, 6, S)
    total = torch.ones(B, 1, 1, dtype=weights.dtype)
    if kind != "none":
        assert not (weights * MASKS[kind][:, None, None, :]).any()
        total[MASKS[kind].all(dim=1)] = 0
    assert_equal_up_to(weights.sum(dim=-1), total.expand(B, H, 6), 1e-12)


@forms
def test_dropout_keeps_the_expectation(form):
    torch.manual_seed(0)
    inputs = softmax_inputs(6)
    expected = form(*inputs)
    draws = torch.stack([form(*inputs, None, 0.25) for _ in range(1500)])
    assert relative_rms(draws[0], expected) > 0.1
    assert relative_rms(draws.mean(dim=0), expected) < 0.05


@pytest.mark.parametrize("kind", ["none", "left"])
def test_weights_are_computed_in_float32_under_autocast(kind):
    inputs = softmax_inputs(6, torch.float32)
    expected = naive_attention(*inputs, key_mask(MASKS[kind]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = naive_attention(*inputs, key_mask(MASKS[kind]))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected))


@pytest.mark.parametrize("form", [fused_form, matmul_form])
def test_masks_under_autocast(form):
    inputs = softmax_inputs(6, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = form(*inputs, MASKS["whole sentence"])
    assert relative_rms(actual, naive_form(*inputs, MASKS["whole sentence"])) < 1e-2


def test_without_a_fused_kernel_the_definition_is_used(monkeypatch):
    monkeypatch.setattr(attention, "_FUSED", False)
    inputs = softmax_inputs(6)
    assert torch.equal(fused_form(*inputs, MASKS["left"]), naive_form(*inputs, MASKS["left"]))


@pytest.mark.parametrize(
    "batch, queries, keys, dtype, gradients, expected",
    [
        (64, 30, 16, torch.float32, "inputs", "matmul"),
        (64, 30, 16, torch.float64, "none", "matmul"),
        (1, 30, 16, torch.float32, "none", "fused"),  # few weights
        (64, 16, 30, torch.float32, "inputs", "fused"),  # more keys than queries
        (64, 64, 64, torch.float32, "inputs", "fused"),
        (1, 3, 65, torch.float32, "bias", "matmul"),
        (1, 65, 65, torch.float32, "bias", "fused"),
        (1, 30, 16, torch.bfloat16, "inputs", "matmul"),
        (1, 16, 128, torch.bfloat16, "inputs", "matmul"),
        (1, 16, 200, torch.bfloat16, "inputs", "fused"),
        (1, 1, 16, torch.bfloat16, "inputs", "fused"),
        (64, 30, 16, torch.bfloat16, "none", "fused"),
        (1, 256, 300, torch.bfloat16, "bias", "matmul"),
    ],
)
def test_choice_of_the_form(batch, queries, keys, dtype, gradients, expected):
    q, k = (torch.randn(batch, 2, n, 8, dtype=dtype) for n in (queries, keys))
    mask, bias = torch.zeros(batch, keys, dtype=torch.bool), torch.zeros(1, 2, queries, keys)
    q.requires_grad_(gradients == "inputs")
    bias.requires_grad_(gradients == "bias")
    with attention.SOFTMAX_FORMS.force(None) as taken:
        softmax_attention(q, k, k, key_mask(mask), 0.0, bias if gradients == "bias" else None)
    assert taken == [expected]


@pytest.mark.parametrize("length", [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32])
@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float64, 1e-15), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
@pytest.mark.parametrize("vector", [0, 8, 16])
def test_softmax_of_short_rows(length, dtype, tolerance, vector, monkeypatch):
    monkeypatch.setattr(attention, "_VECTOR", vector)
    logits = (3 * torch.randn(50, 60, length)).to(dtype).requires_grad_()
    logits.data[0] = torch.finfo(dtype).min  # a row of masked keys
    exact = logits.detach().double().requires_grad_()
    gradient = torch.randn(50, 60, length)
    actual, expected = fast_softmax(logits), exact.softmax(dim=-1)
    actual.backward(gradient.to(dtype))
    expected.backward(gradient.double())
    assert actual.dtype == dtype and actual.shape == expected.shape
    assert_equal_up_to(actual, expected.to(dtype), tolerance)
    assert_equal_up_to(logits.grad, exact.grad.to(dtype), 4 * tolerance)


def test_a_window_of_an_empty_sequence():
    x = torch.randn(B, H, 0, K)
    assert windowed_attention(x, x, x, before=3, after=3).shape == (B, H, 0, K)
