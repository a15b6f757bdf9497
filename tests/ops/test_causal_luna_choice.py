"""Test the selection of the backend for ``auto``.

Tests that need the Triton kernels run on a GPU or with TRITON_INTERPRET=1.
test_causal_luna_triton_interpreter.py runs this file with the interpreter.
"""

import os
import sys
from types import SimpleNamespace

import pytest
import torch

from luna_fairseq.ops.causal_luna import (
    causal_luna,
    choice,
    chunk_causal_luna,
    fastest_backend,
    triton_causal_luna,
    why_not_triton_here,
)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
TRITON = not why_not_triton_here(torch.zeros((), device=DEVICE).device)
has_triton = pytest.mark.skipif(
    not TRITON, reason="needs a CUDA device of capability 8.0 or TRITON_INTERPRET=1"
)


@pytest.fixture(autouse=True)
def reset_choices(caplog, monkeypatch):
    """Clear earlier choices, and pretend that triton takes 1 ms and chunk 2 ms."""
    caplog.set_level("INFO")
    monkeypatch.setattr(choice, "COMPARED_LENGTH", 40)  # three chunks: the interpreter is slow
    monkeypatch.setattr(
        choice, "measure_milliseconds", lambda form, inputs: 1 + (form is choice.chunk_causal_luna)
    )
    for function in (choice.choose_backend, choice.log_once):
        function.cache_clear()
    yield
    for function in (choice.choose_backend, choice.log_once):
        function.cache_clear()


def attend(T=5, K=8, L=3, dtype=torch.float32, log_decay=None):
    heads = [torch.randn(2, 2, T, K, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3)]
    return causal_luna(*heads, torch.rand(2, 2, T, L, device=DEVICE), log_decay=log_decay)


@pytest.fixture
def supported(monkeypatch):
    """Pretend that Triton supports this machine. The tests replace the kernels."""
    monkeypatch.setattr(choice, "why_not_triton", lambda *heads: "")


@pytest.mark.skipif(TRITON, reason="for machines without the Triton form")
def test_chunk_without_triton_is_reported_once(caplog):
    for L in (3, 17, 40):
        attend(L=L)
        with torch.inference_mode():
            attend(L=L)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"causal Luna attention on {DEVICE}")
    assert ": chunk; not triton, because " in caplog.messages[0]


@has_triton
def test_triton_if_it_is_supported(caplog, monkeypatch):
    calls = []
    monkeypatch.setattr(
        sys.modules[causal_luna.__module__], "triton_causal_luna", lambda *args: calls.append(args)
    )
    with torch.inference_mode():
        attend()
    attend(T=7, L=16)
    assert len(calls) == 2
    place = "cuda:0" if DEVICE == "cuda" else "cpu"
    assert len(caplog.messages) == 2  # one for each L up to a power of two
    assert all(
        message.startswith(f"causal Luna attention on {place}: triton (") for message in caplog.messages
    )


@has_triton
def test_chunk_for_other_shapes_and_types(caplog):
    attend(K=130)
    attend(dtype=torch.float64)
    assert "chunk; not triton, because heads of 130 are wider than 128" in caplog.messages[0]
    assert "float64" in caplog.messages[1]


@has_triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_is_not_a_disagreement(dtype, caplog):
    attend(dtype=dtype)
    assert ": triton (heads of 8, l 4, " in caplog.messages[0]


@has_triton
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(x, marks=pytest.mark.slow) for x in (torch.float16, torch.bfloat16))],
)
def test_triton_with_decay(dtype, caplog):
    attend(dtype=dtype, log_decay=torch.tensor([-0.3, -0.01], device=DEVICE))
    assert ": triton (heads of 8, l 4, " in caplog.messages[0]


@has_triton
def test_decay_is_compared_separately_and_a_wrong_result_brings_a_warning(caplog, monkeypatch):
    attend()
    monkeypatch.setattr(choice, "triton_causal_luna", wrong)
    attend(log_decay=torch.tensor([-0.3, -0.01], device=DEVICE))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    expected = "its output differs by 1.0e-03 from that of the chunkwise implementation"
    assert caplog.messages[-1].endswith(expected)


def wrong(q, k, v, pack_weights, **masks):
    return triton_causal_luna(q, k, v * 1.001, pack_weights, **masks)


def failing(q, k, v, pack_weights, **masks):
    raise RuntimeError("no such instruction\non this card")


def test_training_continues_with_chunk_if_triton_does_not_compile(supported, caplog, monkeypatch):
    monkeypatch.setattr(choice, "triton_causal_luna", failing)
    for _ in range(2):
        attend().sum().backward()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].endswith(
        "chunk; triton is supported, but it fails with RuntimeError: no such instruction"
    )


def test_chunk_on_a_card_of_an_older_capability(caplog, monkeypatch):
    form = sys.modules[triton_causal_luna.__module__]
    monkeypatch.setattr(form.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.3.0"))
    compiled = SimpleNamespace(INTERPRETED=SimpleNamespace(value=False))
    monkeypatch.setitem(sys.modules, "luna_fairseq.ops.causal_luna.triton_kernels", compiled)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    reason = form.why_not_triton_here.__wrapped__(torch.device("cuda", 0))
    assert reason == "it needs compute capability 8.0 or later, not 7.0"
    monkeypatch.setattr(choice, "why_not_triton", lambda *heads: reason)
    for _ in range(2):
        attend().sum().backward()
    assert caplog.messages == [f"causal Luna attention on {DEVICE}: chunk; not triton, because {reason}"]


@pytest.mark.parametrize("ours, theirs, faster", [(2, 5, "triton"), (3, 3, "triton"), (5, 2, "chunk")])
def test_the_faster_of_both(ours, theirs, faster, supported, caplog, monkeypatch):
    monkeypatch.setattr(
        choice, "triton_causal_luna", lambda *args, **options: chunk_causal_luna(*args, **options)
    )
    times = lambda form, inputs: theirs if form is chunk_causal_luna else ours  # noqa: E731
    monkeypatch.setattr(choice, "measure_milliseconds", times)
    q, weights = torch.randn(2, 2, 5, 8, device=DEVICE), torch.rand(2, 2, 5, 3, device=DEVICE)
    for v in (q, torch.randn_like(q)):
        assert fastest_backend(q, q, v, weights) == faster
    assert (
        f": {faster} (heads of 8, l 4, float32: triton {ours:.2f} ms, chunk {theirs:.2f} ms)" in caplog.text
    )


def test_random_numbers_do_not_change(monkeypatch):
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if DEVICE == "cuda" else [])
    monkeypatch.undo()
    inputs = choice.draw_sample(2, 2, 40, 8, 16, torch.device(DEVICE), torch.float32, False, False)
    assert choice.measure_milliseconds(chunk_causal_luna, inputs) > 0
    after = [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if DEVICE == "cuda" else [])
    assert all(torch.equal(x, y) for x, y in zip(states, after))


def test_inputs_of_different_types_go_to_chunk():
    q, weights = torch.randn(2, 2, 5, 8, device=DEVICE), torch.rand(2, 2, 5, 3, device=DEVICE)
    assert fastest_backend(q.half(), q, q, weights) == "chunk"
