"""What ``auto`` takes. The tests of a machine that has the Triton form run on a GPU, or with
TRITON_INTERPRET=1: test_causal_luna_triton_interpreter.py runs this file so."""

import os
import sys

import pytest
import torch

from luna_fairseq.ops.causal_luna import causal_luna, choice, triton_causal_luna, why_not_triton_here

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
TRITON = not why_not_triton_here(torch.zeros((), device=DEVICE).device)
has_triton = pytest.mark.skipif(
    not TRITON, reason="needs a CUDA device of capability 8.0 or TRITON_INTERPRET=1"
)


@pytest.fixture(autouse=True)
def nothing_chosen(caplog, monkeypatch):
    caplog.set_level("INFO")
    if INTERPRETED:
        monkeypatch.setattr(choice, "SAMPLE", 40)  # two chunks: the interpreter is slow
    for function in (choice.choice, choice.log_once):
        function.cache_clear()
    yield
    for function in (choice.choice, choice.log_once):
        function.cache_clear()


def attend(T=5, K=8, L=3, dtype=torch.float32, rates=None):
    heads = [torch.randn(2, 2, T, K, device=DEVICE, dtype=dtype) for _ in range(3)]
    return causal_luna(*heads, torch.rand(2, 2, T, L, device=DEVICE), rates=rates)


@pytest.mark.skipif(TRITON, reason="for machines without the Triton form")
def test_chunk_without_triton_and_one_line_about_it(caplog):
    for L in (3, 17, 40):
        attend(L=L)
        with torch.inference_mode():
            attend(L=L)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"causal Luna attention on {DEVICE}")
    assert ": chunk; not triton, because " in caplog.messages[0]


@has_triton
def test_triton_where_it_suits(caplog, monkeypatch):
    calls = []
    monkeypatch.setattr(
        sys.modules[causal_luna.__module__], "triton_causal_luna", lambda *args: calls.append(args)
    )
    with torch.inference_mode():
        attend()
    attend(T=7, L=16)
    assert len(calls) == 2
    assert caplog.messages == [f"causal Luna attention on {DEVICE}{':0' if DEVICE == 'cuda' else ''}: triton"]


@has_triton
def test_chunk_for_other_shapes_and_types(caplog):
    attend(K=130)
    attend(dtype=torch.float64)
    assert "chunk; not triton, because heads of 130 are wider than 128" in caplog.messages[0]
    assert "float64" in caplog.messages[1]


@has_triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_is_no_disagreement(dtype, caplog):
    attend(dtype=dtype)
    assert caplog.messages[0].endswith(": triton")


@has_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_triton_where_it_forgets(dtype, caplog):
    attend(dtype=dtype, rates=torch.tensor([0.3, 0.01], device=DEVICE))
    assert caplog.messages[0].endswith(": triton")


@has_triton
def test_where_it_forgets_it_is_compared_anew(caplog, monkeypatch):
    attend()
    monkeypatch.setattr(choice, "triton_causal_luna", wrong)
    attend(rates=torch.tensor([0.3, 0.01], device=DEVICE))
    assert caplog.messages[-1].endswith("its output differs by 1.0e-03 from that of the chunkwise form")


def wrong(q, k, v, pack_weights, **masks):
    return triton_causal_luna(q, k, v * 1.001, pack_weights, **masks)


def failing(q, k, v, pack_weights, **masks):
    raise RuntimeError("no such instruction\non this card")


@has_triton
@pytest.mark.parametrize(
    "form, reason",
    [
        (wrong, "its output differs by 1.0e-03 from that of the chunkwise form"),
        (failing, "RuntimeError: no such instruction"),
    ],
)
def test_chunk_with_a_warning_where_triton_is_wrong(form, reason, caplog, monkeypatch):
    monkeypatch.setattr(choice, "triton_causal_luna", form)
    attend()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].endswith(reason)


def test_random_numbers_are_left_alone():
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if DEVICE == "cuda" else [])
    choice.choice(torch.device(DEVICE), torch.float32, 8, 16)
    after = [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if DEVICE == "cuda" else [])
    assert all(torch.equal(x, y) for x, y in zip(states, after))


def test_inputs_of_different_types_go_to_chunk():
    q, weights = torch.randn(2, 2, 5, 8, device=DEVICE), torch.rand(2, 2, 5, 3, device=DEVICE)
    assert choice.choose_backend(q.half(), q, q, weights) == "chunk"
