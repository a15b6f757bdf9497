"""Compare the Triton kernels of causal Luna attention with the naive form.

The tests run on a GPU, or in Triton's interpreter with TRITON_INTERPRET=1. The variable must be set before
Triton is imported, so test_causal_luna_triton_interpreter.py starts a process for this file.
"""

import os

import pytest
import torch
from attention_inputs import output_and_gradients, relative_rms

from luna_fairseq.ops.causal_luna import chunk_causal_luna, naive_causal_luna
from luna_fairseq.ops.causal_luna import triton as form

pytest.importorskip("triton", reason="triton is not installed")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA device or TRITON_INTERPRET=1"
)
DEVICE = "cpu" if INTERPRETED else "cuda"
NAMES = ("output", *(f"gradient of {x}" for x in ("q", "k", "v", "the pack weights", "the log decay")))
B, H = 2, 2


@pytest.fixture(autouse=True)
def tensor_core_rounding(monkeypatch):
    """Let the interpreter round products to tf32 and values to bfloat16, as a GPU does."""
    if not INTERPRETED:
        return
    import numpy
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    exact = InterpreterBuilder.create_dot

    def cut(x):
        if x.data.dtype != numpy.float32:
            return x
        bits = x.data.copy().view(numpy.uint32) & numpy.uint32(0xFFFFE000)
        return TensorHandle(bits.view(numpy.float32), x.dtype)

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        if input_precision.name == "TF32":
            a, b = cut(a), cut(b)
        return exact(self, a, b, d, input_precision, max_num_imprecise_acc)

    cast = InterpreterBuilder.cast_impl

    def cast_impl(self, src, dst_type):
        if src.dtype.scalar.is_fp32() and dst_type.scalar.is_bf16():
            bits = numpy.ascontiguousarray(src.data).view(numpy.uint32)
            rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
            return TensorHandle(rounded.astype(numpy.uint16), dst_type.scalar)
        return cast(self, src, dst_type)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast_impl)


def make_inputs(T, K, L, dtype=torch.float32, seed=0):
    """Return random q, k, v and pack weights for T positions, head width K and packed length L.

    q, k and v are views of a tensor [T, B, C], as in the modules. The pack weights [B, H, T, L] are float32.
    """
    generator = torch.Generator().manual_seed(seed)
    heads = [torch.randn(T, B, H * K, generator=generator).to(DEVICE, dtype) for _ in range(3)]
    q, k, v = (x.unflatten(-1, (H, K)).permute(1, 2, 0, 3) for x in heads)
    return [q, k, v, (torch.rand(B, H, T, L, generator=generator) * 2).to(DEVICE)]


def make_masks(T, L, kind):
    """Return masks as keyword arguments.

    ``kind`` is "none", "left" (padding on the left), or "both" (padding on both sides, and masked rows of the
    packed sequence P).
    """
    position = torch.arange(T, device=DEVICE)[None, :]
    left = position < torch.tensor([[T // 3], [0]], device=DEVICE)
    right = position >= torch.tensor([[T], [T - T // 4]], device=DEVICE)
    packed = torch.arange(L, device=DEVICE)[None, :] >= torch.tensor([[max(1, L - 2)], [L]], device=DEVICE)
    return {
        "none": {},
        "left": {"key_padding_mask": left},
        "both": {"key_padding_mask": left | right, "packed_padding_mask": packed},
    }[kind]


def with_log_decay(form, **options):
    """Return a function (q, k, v, pack weights, log decay) that calls a form with these options."""
    return lambda q, k, v, a, log_decay=None: form(q, k, v, a, log_decay=log_decay, **options)


def relative_errors(inputs, **options):
    """Return the relative errors of the kernels' output and gradients against the naive form."""
    weight = torch.randn(inputs[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9)).to(
        DEVICE
    )
    run = lambda f, x: output_and_gradients(with_log_decay(f, **options), x, weight)  # noqa: E731
    expected = run(lambda *x, **o: naive_causal_luna(*x, **o)[0], [x.double() for x in inputs])
    actual = run(form.triton_causal_luna, inputs)
    for x, a in zip([inputs[0], *inputs], actual):
        assert a.dtype == x.dtype and a.shape == x.shape
    # A mean over one position does not depend on q: what little there is of its gradient is rounding.
    return {
        name: relative_rms(a, e) if e.abs().max() > 1e-12 else a.abs().max().item()
        for name, a, e in zip(NAMES, actual, expected)
    }


def test_second_derivatives_are_refused():
    q, k, v, a = make_inputs(3, 8, 5)
    output = form.triton_causal_luna(q.requires_grad_(), k, v, a)
    with pytest.raises(NotImplementedError, match='Use backend="parallel" or "naive"'):
        torch.autograd.grad(output.sum(), q, create_graph=True)


@pytest.mark.parametrize("name, shape", [("packed_padding_mask", (1, 5)), ("key_padding_mask", (4, 3))])
def test_masks_of_another_shape_are_refused(name, shape):
    """The kernels would read memory beyond a shorter mask, and other entries of a longer mask."""
    mask = torch.zeros(shape, dtype=torch.bool, device=DEVICE)
    with pytest.raises(ValueError, match=rf"Expected {name} of shape \(2, {shape[1]}\), got \({shape[0]}, "):
        form.triton_causal_luna(*make_inputs(3, 8, 5), **{name: mask})


# One chunk; several in one segment; several segments of several (few PROGRAMS) or of one; L in blocks.
CASES = [
    (1, 8, 5, "none", 384),
    (2, 33, 1, "left", 384),
    (33, 33, 16, "both", 4),
    (35, 8, 20, "both", 8),
    (60, 8, 5, "none", 384),
    (65, 8, 40, "both", 8),
    (17, 64, 130, "both", 384),
    (33, 64, 40, "none", 1),
    (140, 33, 16, "both", 8),
    (33, 128, 32, "left", 384),
    (20, 128, 256, "both", 384),
]


def slow_from(number, cases):
    """Mark the test cases from index ``number`` on as slow, because the interpreter needs long for them."""
    return [*cases[:number], *(pytest.param(*case, marks=pytest.mark.slow) for case in cases[number:])]


@pytest.mark.parametrize("T, K, L, masks, programs", slow_from(5, CASES))
def test_equals_naive_in_float32(T, K, L, masks, programs, monkeypatch):
    monkeypatch.setattr(form, "PROGRAMS", programs)
    for name, error in relative_errors(make_inputs(T, K, L), **make_masks(T, L, masks)).items():
        assert error < 3e-6, name


# The same kinds, but for one chunk of one position, and one more: decay that differs a lot by head.
FORGETTING = [
    (17, 8, 5, "none", 384),
    (33, 8, 20, "left", 1),
    (65, 33, 16, "both", 8),
    (70, 8, 40, "none", 8),
]
LOG_DECAY = torch.tensor([-0.02, -1.2])


@pytest.mark.parametrize("T, K, L, masks, programs", slow_from(2, FORGETTING))
def test_equals_naive_with_decay(T, K, L, masks, programs, monkeypatch):
    monkeypatch.setattr(form, "PROGRAMS", programs)
    found = relative_errors([*make_inputs(T, K, L), LOG_DECAY.to(DEVICE)], **make_masks(T, L, masks))
    assert found.pop("gradient of the log decay") < 1e-4  # a sum of differences that nearly cancel
    for name, error in found.items():
        assert error < 3e-6, name


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 6e-3), (torch.float16, 1e-3)])
def test_half_precision_with_decay(dtype, tolerance):
    found = relative_errors(
        [*make_inputs(33, 16, 16, dtype), LOG_DECAY.to(DEVICE)], **make_masks(33, 16, "both")
    )
    assert found.pop("gradient of the log decay") < 2e-2
    for name, error in found.items():
        assert error < tolerance, name


@pytest.mark.parametrize("dtype, tolerance", slow_from(1, [(torch.float16, 1e-3), (torch.bfloat16, 6e-3)]))
@pytest.mark.parametrize(
    "T, K, L, masks, programs", slow_from(1, [(33, 33, 20, "both", 384), (70, 64, 40, "left", 8)])
)
def test_half_precision_rounds_only_input_output_and_tf32_products(
    T, K, L, masks, programs, dtype, tolerance, monkeypatch
):
    monkeypatch.setattr(form, "PROGRAMS", programs)
    found = relative_errors(make_inputs(T, K, L, dtype), **make_masks(T, L, masks))
    for name, error in found.items():
        assert error < tolerance, name


@pytest.mark.parametrize("bits", [0x7FFFFFFF, -1])
def test_nan_is_not_rounded_to_zero(bits):
    """A GPU's NaN has all bits of the fraction set, so that rounding up would carry into the sign."""
    inputs = make_inputs(20, 8, 5, torch.float16)
    inputs[3][:, :, 7] = torch.tensor(bits, dtype=torch.int32, device=DEVICE).view(torch.float32)
    assert form.triton_causal_luna(*inputs)[:, :, 7:].isnan().all()


def test_segments_are_what_the_cases_say(monkeypatch):
    """The cases cover one chunk, segments of several chunks (one or more), and one segment for each chunk."""
    shapes = set()
    for T, K, L, _, programs in CASES:
        monkeypatch.setattr(form, "PROGRAMS", programs)
        plan = form.make_plan(B * H, T, K, L)
        shapes.add((plan["segments"] > 1, plan["chunks"] > 1, L > form.BLOCK_L))
    assert len(shapes) == 8


@pytest.mark.parametrize(
    "T, K, L, masks, programs",
    slow_from(2, [(17, 8, 5, "none", 384), (50, 8, 16, "both", 8), (40, 8, 20, "left", 384)]),
)
@pytest.mark.parametrize("log_decay", [[], [LOG_DECAY]])
def test_tied_keys_and_values(T, K, L, masks, programs, log_decay, monkeypatch):
    monkeypatch.setattr(form, "PROGRAMS", programs)
    q, k, _, weights = make_inputs(T, K, L)
    inputs = [q, k, weights, *(x.to(DEVICE) for x in log_decay)]
    tied = lambda f: lambda q, k, a, r=None: f(q, k, k, a, log_decay=r, **make_masks(T, L, masks))  # noqa: E731
    weight = torch.randn(q.shape, dtype=torch.float64, device=DEVICE)
    expected = output_and_gradients(
        tied(lambda *x, **o: naive_causal_luna(*x, **o)[0]), [x.double() for x in inputs], weight
    )
    for a, e in zip(output_and_gradients(tied(form.triton_causal_luna), inputs, weight), expected):
        assert relative_rms(a, e) < (3e-6 if a.dim() > 1 else 1e-4)


def test_fully_masked_p_gives_zeros():
    inputs = make_inputs(20, 8, 5)
    mask = torch.tensor([[True] * 5, [False] * 5], device=DEVICE)
    for x in output_and_gradients(lambda *y: form.triton_causal_luna(*y, packed_padding_mask=mask), inputs):
        assert x[0].eq(0).all() and x.isfinite().all() and x[1].ne(0).any()


def test_layout_of_the_inputs_is_kept():
    """Heads are views of a tensor [T, B, C]. The output and the gradients have the same memory layout."""
    inputs = make_inputs(20, 8, 5)
    output, dq, dk, dv, da = output_and_gradients(form.triton_causal_luna, inputs)
    for x, y in zip([inputs[0], *inputs], (output, dq, dk, dv, da)):
        assert x.stride() == y.stride()


def test_slices_and_transposed_inputs():
    """Inputs may be slices of one fused projection, or have a last dimension that is not contiguous."""
    fused = torch.randn(20, B, 3, H, 8, device=DEVICE)
    q, k, v = fused.permute(2, 1, 3, 0, 4)
    weights = torch.rand(B, H, 5, 20, device=DEVICE).transpose(2, 3)
    expected = naive_causal_luna(q, k, v, weights)[0]
    assert relative_rms(form.triton_causal_luna(q, k, v, weights), expected) < 1e-6
    keys = k.transpose(2, 3).contiguous().transpose(2, 3)
    assert relative_rms(form.triton_causal_luna(q, keys, v, weights), expected) < 1e-6


@pytest.mark.parametrize("log_decay", [[], [LOG_DECAY]])
def test_a_wrong_kernel_is_caught(log_decay, monkeypatch):
    """The comparison must fail if the kernels omit the sums over segments."""
    launch = form.launch

    def planted(kernel, *args, **tensors):
        if kernel.__name__ == "segment_sums_kernel":
            tensors["sums"].zero_()
        else:
            launch(kernel, *args, **tensors)

    monkeypatch.setattr(form, "launch", planted)
    found = relative_errors([*make_inputs(40, 8, 5), *(x.to(DEVICE) for x in log_decay)])
    assert all(error > 1e-3 for error in found.values()), found


def test_unsupported_inputs_are_refused():
    q, k, v, weights = make_inputs(3, 8, 5)
    assert not form.why_not_triton(q.device, q.dtype, 8, 5)
    for bad, words in [
        ((q.double(), k, v, weights), "float16, bfloat16 or float32, not float64"),
        ((q.repeat(1, 1, 1, 17), k, v, weights), "heads of 136 are wider than 128"),
        ((q, k, v, weights.repeat(1, 1, 1, 52)), "packed length is above 256"),
        ((q, k.half(), v, weights), "Expected q, k and v of one dtype"),
    ]:
        with pytest.raises(ValueError, match=words):
            form.triton_causal_luna(*bad)


def test_empty_inputs():
    q, k, v, weights = make_inputs(0, 8, 5)
    assert form.triton_causal_luna(q, k, v, weights).shape == (B, H, 0, 8)


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="too slow in the interpreter")
@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 6e-3), (torch.float16, 2e-3)]
)
@pytest.mark.parametrize(
    "T, K, L", [(1000, 64, 16), (4096, 64, 32), (4096, 128, 16), (2048, 64, 256), (30, 64, 16)]
)
def test_equals_chunk_at_size_on_a_gpu(T, K, L, dtype, tolerance):
    inputs = make_inputs(T, K, L, dtype)
    for masks in ("none", "both"):
        options = make_masks(T, L, masks)
        weight = torch.randn(inputs[0].shape, device=DEVICE)
        expected = output_and_gradients(
            lambda *x, o=options: chunk_causal_luna(*x, **o), [x.double() for x in inputs], weight
        )
        actual = output_and_gradients(lambda *x, o=options: form.triton_causal_luna(*x, **o), inputs, weight)
        for name, a, e in zip(NAMES, actual, expected):
            assert relative_rms(a, e) < tolerance, name
