"""Test dropout in the Triton kernels.

The factors have the right distribution, and forward and backward pass draw the same factors. The tests run
where those of test_causal_luna_triton.py run.
"""

import os
from functools import partial

import pytest
import torch
from attention_inputs import output_and_gradients, relative_rms

from luna_fairseq.ops.attention import masked_softmax
from luna_fairseq.ops.causal_luna import triton as form
from luna_fairseq.ops.causal_luna.naive import (
    causal_outer_mean,
    count_steps,
    decayed_outer_mean,
    decayed_shares,
)

triton = pytest.importorskip("triton", reason="triton is not installed")
tl = triton.language
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a CUDA device or TRITON_INTERPRET=1", allow_module_level=True)

from luna_fairseq.ops.causal_luna.triton_kernels import block_offsets, dropout_factor  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"
B, H, K = 2, 2, 8


@triton.jit
def draw_kernel(
    out, seed, dropout, boost, rows, WIDTH: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_L: tl.constexpr
):
    bh = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * BLOCK_T
    first = tl.program_id(2) * BLOCK_L
    row = bh * rows + start
    x = dropout_factor(seed, dropout, boost, row, first, WIDTH, BLOCK_T, BLOCK_L)
    tl.store(out + row * WIDTH + block_offsets(WIDTH, first, BLOCK_T, BLOCK_L), x)


def draw_factors(seed, dropout, T, L, block_t=16, block_l=16):
    """Return the dropout factors [B, H, T, L] of the unpack weights, drawn in blocks of the given size."""
    plan = form.make_plan(B * H, T, K, L)
    rows, width = plan["rows"], plan["WIDTH"]
    out = torch.empty(B, H, rows, width, device=DEVICE)
    draw_kernel[(B * H, rows // block_t, width // block_l)](
        out, seed, dropout, 1 / (1 - dropout), rows, WIDTH=width, BLOCK_T=block_t, BLOCK_L=block_l
    )
    return out[:, :, :T, :L]


def next_seed(n):
    """Seed torch's generator with ``n``, and return the dropout seed that the next call will draw."""
    torch.manual_seed(n)
    seed = torch.randint(2**62, (1,), device=DEVICE)
    torch.manual_seed(n)
    return seed


def make_inputs(T, L):
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(B, H, T, K, generator=generator).to(DEVICE) for _ in range(3))
    return [q, k, v, (torch.rand(B, H, T, L, generator=generator) * 2).to(DEVICE)]


def naive_with(factor, q, k, v, a, log_decay=None):
    mean = partial(causal_outer_mean, steps=count_steps(q, None))
    if log_decay is not None:
        mean = partial(decayed_outer_mean, shares=decayed_shares(log_decay, None, q.size(2)))
    weights = masked_softmax(mean(q * K**-0.5, k, a), None)
    return mean(weights * factor, a, v)


def test_rate_and_scale():
    factor = draw_factors(next_seed(0), 0.25, 500, 20)
    dropped = factor == 0
    torch.testing.assert_close(factor[~dropped], torch.full_like(factor[~dropped], 4 / 3))
    # 40,000 draws: a deviation of 0.01 is more than four standard errors.
    assert abs(dropped.float().mean() - 0.25) < 0.01
    for rows in (dropped.float().mean((0, 1, 2)), dropped.float().mean((0, 1, 3))):
        assert rows.std() > 0 and abs(rows - 0.25).max() < 0.25
    assert not torch.equal(dropped[0, 0], dropped[0, 1])


def test_blocks_do_not_change_what_is_drawn():
    seed = next_seed(1)
    assert torch.equal(
        draw_factors(seed, 0.5, 60, 20), draw_factors(seed, 0.5, 60, 20, block_t=32, block_l=32)
    )


@pytest.mark.parametrize(
    "T, L, programs, log_decay",
    [
        (17, 5, 512, ()),
        pytest.param(40, 16, 1000, (), marks=pytest.mark.slow),
        (33, 20, 512, ()),
        (40, 16, 1000, [-0.05, -0.9]),
    ],
)
def test_equals_naive_with_the_same_weights_dropped(T, L, programs, log_decay, monkeypatch):
    monkeypatch.setattr(form, "PROGRAMS", programs)
    inputs = [*make_inputs(T, L), *([torch.tensor(log_decay, device=DEVICE)] if log_decay else [])]
    weight = torch.randn(B, H, T, K, device=DEVICE)
    factor = draw_factors(next_seed(2), 0.3, T, L).double()
    dropping = lambda q, k, v, a, r=None: form.triton_causal_luna(q, k, v, a, dropout=0.3, log_decay=r)  # noqa: E731
    actual = output_and_gradients(dropping, inputs, weight)
    doubles = [x.double() for x in inputs]
    expected = output_and_gradients(lambda *x: naive_with(factor, *x), doubles, weight)
    without = output_and_gradients(lambda *x: naive_with(1.0, *x), doubles, weight)
    for a, e, o in zip(actual, expected, without):
        assert relative_rms(a, e) < (3e-6 if a.dim() > 1 else 1e-4)  # log decay: what nearly cancels
        assert relative_rms(o, e) > 1e-2  # what is compared depends on the weights dropped


def test_the_generator_decides():
    inputs = make_inputs(20, 5)

    def run(n):
        torch.manual_seed(n)
        return form.triton_causal_luna(*inputs, dropout=0.4)

    first = run(5)
    assert torch.equal(first, run(5)) and not torch.equal(first, run(6))
    torch.manual_seed(5)
    form.triton_causal_luna(*inputs, dropout=0.4)
    assert not torch.equal(first, form.triton_causal_luna(*inputs, dropout=0.4))


def test_all_dropped():
    results = output_and_gradients(lambda *x: form.triton_causal_luna(*x, dropout=1.0), make_inputs(20, 5))
    assert all(x.eq(0).all() for x in results)
