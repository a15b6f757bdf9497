"""Test the backend that ``auto`` stands for, and the comparison of the Triton kernels before their first use.

Tests that need the Triton kernels run on a GPU or with TRITON_INTERPRET=1.
test_causal_luna_triton_interpreter.py runs this file with the interpreter.
"""

import os
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from luna_fairseq.errors import InputError
from luna_fairseq.ops.causal_luna import (
    causal_luna,
    chunk_causal_luna,
    comparison,
    triton_causal_luna,
    why_not_triton_here,
)
from luna_fairseq.ops.causal_luna.forms import CAUSAL_FORMS

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
TRITON = not why_not_triton_here(torch.zeros((), device=DEVICE).device)
OPERATION = sys.modules[causal_luna.__module__]
has_triton = pytest.mark.skipif(
    not TRITON, reason="needs a CUDA device of capability 8.0 or TRITON_INTERPRET=1"
)


@pytest.fixture(autouse=True)
def forget_comparisons(monkeypatch):
    monkeypatch.setattr(comparison, "COMPARED_LENGTH", 40)  # three chunks: the interpreter is slow
    comparison._compare_once.cache_clear()
    yield
    comparison._compare_once.cache_clear()


@pytest.fixture
def supported(monkeypatch):
    """Pretend that Triton supports this machine. The tests replace the kernels."""
    monkeypatch.setattr(comparison, "why_not_triton", lambda *heads: "")


def attend(backend, T=5, K=8, L=3, dtype=torch.float32, log_decay=None):
    heads = [torch.randn(2, 2, T, K, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3)]
    return causal_luna(*heads, torch.rand(2, 2, T, L, device=DEVICE), log_decay=log_decay, backend=backend)


def record_calls(monkeypatch, module, name, result=None):
    """Replace a function with one that records its positional arguments."""
    calls = []
    monkeypatch.setattr(module, name, lambda *args, **options: calls.append(args) or result)
    return calls


def test_auto_is_chunk_and_reads_no_clock(monkeypatch):
    for clock in ("time.time", "time.perf_counter", "time.monotonic"):
        monkeypatch.setattr(clock, mock.Mock(side_effect=AssertionError(clock)))
    calls = record_calls(monkeypatch, OPERATION, "chunk_causal_luna")
    for options in ({}, {"T": 1000}, {"dtype": torch.bfloat16}):
        attend("auto", **options)
    assert len(calls) == 3


@pytest.mark.parametrize(
    "capability, dtype, type_of_v, expected",
    [
        ((9, 0), torch.bfloat16, torch.bfloat16, "triton"),
        ((9, 0), torch.float32, torch.float32, "parallel"),  # not measured
        ((8, 0), torch.bfloat16, torch.bfloat16, "parallel"),  # not measured
        ((9, 0), torch.bfloat16, torch.float16, "parallel"),  # not of one dtype
    ],
)
def test_auto_is_triton_on_a_measured_gpu(capability, dtype, type_of_v, expected, supported, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    x = SimpleNamespace(is_cuda=True, dtype=dtype, device=torch.device("cuda", 0), size=lambda dim: 16)
    v = SimpleNamespace(dtype=type_of_v)
    assert CAUSAL_FORMS.choose(x, x, v, x) == expected


@has_triton
def test_triton_is_compared_once_for_each_shape_and_type(monkeypatch):
    compared = record_calls(monkeypatch, comparison, "find_disagreement", "")
    used = record_calls(monkeypatch, OPERATION, "triton_causal_luna")
    for L in (3, 4, 16):  # 3 and 4 share a power of two
        attend("triton", L=L)
        with torch.inference_mode():
            attend("triton", L=L)
    attend("triton", dtype=torch.bfloat16)
    attend("triton", log_decay=torch.tensor([-0.3, -0.01], device=DEVICE))
    assert len(compared) == 4 and len(used) == 8


@has_triton
@pytest.mark.parametrize("has_decay", [False, True])
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(x, marks=pytest.mark.slow) for x in (torch.float16, torch.bfloat16))],
)
def test_rounding_is_not_a_disagreement(dtype, has_decay):
    log_decay = torch.tensor([-0.3, -0.01], device=DEVICE) if has_decay else None
    attend("triton", dtype=dtype, log_decay=log_decay).sum().backward()


@has_triton
@pytest.mark.parametrize("log_decay", [None, (-0.3, -0.01)])
def test_a_wrong_result_is_an_error(log_decay, monkeypatch):
    def wrong(q, k, v, pack_weights, **masks):
        return triton_causal_luna(q, k, v * 1.001, pack_weights, **masks)

    monkeypatch.setattr(comparison, "triton_causal_luna", wrong)
    log_decay = None if log_decay is None else torch.tensor(log_decay, device=DEVICE)
    for _ in range(2):
        with pytest.raises(InputError, match="output differs by 1.0e-03.* parallel"):
            attend("triton", log_decay=log_decay)


def test_kernels_that_do_not_compile_are_an_error(supported, monkeypatch):
    def failing(q, k, v, pack_weights, **masks):
        raise RuntimeError("no such instruction\non this card")

    monkeypatch.setattr(comparison, "triton_causal_luna", failing)
    with pytest.raises(InputError, match=f"{DEVICE}.* RuntimeError: no such instruction.* parallel"):
        attend("triton")


@has_triton
@pytest.mark.parametrize("options, value", [({"K": 130}, "130"), ({"dtype": torch.float64}, "float64")])
def test_unsupported_inputs_are_refused_without_a_comparison(options, value, monkeypatch):
    compared = record_calls(monkeypatch, comparison, "find_disagreement", "")
    with pytest.raises(ValueError, match=value):
        attend("triton", **options)
    assert not compared


def test_a_card_of_an_older_capability_is_not_supported(monkeypatch):
    form = sys.modules[triton_causal_luna.__module__]
    monkeypatch.setattr(form.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.3.0"))
    compiled = SimpleNamespace(INTERPRETED=SimpleNamespace(value=False))
    monkeypatch.setitem(sys.modules, "luna_fairseq.ops.causal_luna.triton_kernels", compiled)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    reason = form.why_not_triton_here.__wrapped__(torch.device("cuda", 0))
    assert reason == "it needs compute capability 8.0 or later, not 7.0"


def test_the_comparison_leaves_the_random_numbers_alone(supported, monkeypatch):
    monkeypatch.setattr(comparison, "triton_causal_luna", chunk_causal_luna)
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if DEVICE == "cuda" else [])
    q, weights = torch.zeros(2, 2, 5, 8, device=DEVICE), torch.zeros(2, 2, 5, 3, device=DEVICE)
    comparison.check_triton_results(q, q, q, weights, False)
    assert comparison._compare_once.cache_info().currsize == 1
    after = [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if DEVICE == "cuda" else [])
    assert all(torch.equal(x, y) for x, y in zip(states, after))
