"""Causal attention's sub-command at tiny sizes. No test looks at a clock."""

import sys

import pytest
import torch
from benchmark_checks import check_refused, check_results, needs_sdpa, no_children, run_command  # noqa: F401

from luna_fairseq.benchmark import causal, causal_forms, measure
from luna_fairseq.benchmark.heads import DTYPES, Shape, leaves, make_form
from luna_fairseq.benchmark.measure import Settings

COMMAND = "causal --batch 1 --heads 2 --head-dim 4 --projection-length 3".split()
FORMS = ["cumsum", "loop", "chunk", "sdpa"]
SETTINGS = Settings(repetitions=2, threads=1, device="cpu", seed=3)


@needs_sdpa
def test_causal(tmp_path, capsys, no_children):  # noqa: F811
    values = run_command([*COMMAND, "5", "--lengths", "5", "130"], tmp_path)
    captured = capsys.readouterr()
    for words in ("speed / cumsum", "speed / sdpa", "extra MiB", "torch: ", "seed: 1", "fla is left out"):
        assert words in captured.out
    assert "it/s]" not in captured.out and "T 130" in captured.err
    assert list(values) == ["environment", "causal"]
    assert values["environment"]["threads"] == torch.get_num_threads()
    check_results(values["causal"], FORMS, cases=8)
    assert [r["case"] for r in values["causal"]["results"][::4]] == [
        {"l": l, "T": length, "pass": direction}
        for l in (3, 5)  # noqa: E741
        for length in (5, 130)
        for direction in ("forward", "forward+backward")
    ]


@needs_sdpa
def test_long_sequences_are_without_the_forms_that_cannot(tmp_path, capsys, no_children):  # noqa: F811
    options = ["--tied", "--lengths", "40", "--max-naive-length", "39", "--dtype", "bfloat16"]
    values = run_command([*COMMAND, *options], tmp_path)
    check_results(values["causal"], ["chunk", "sdpa"], cases=2)
    out = capsys.readouterr().out
    assert "cumsum, loop and sdpa-math end at --max-naive-length 39" in out and "bfloat16, tied" in out
    row = next(line for line in out.splitlines() if " chunk " in line)
    assert row.split()[-4] == "-" or " - " in row


@needs_sdpa
def test_without(tmp_path, capsys, no_children):  # noqa: F811
    values = run_command([*COMMAND, "--lengths", "5", "--without", "loop", "cumsum"], tmp_path)
    assert values["causal"]["peers"] == ["sdpa"]
    check_results(values["causal"], ["chunk", "sdpa"], cases=2)
    capsys.readouterr()
    check_refused([*COMMAND, "--without", "lop"], ["--without lop: there is no such form"], capsys)


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1.01 * gradient


def chunk(inputs):
    return causal_forms.backend(inputs, "chunk")


def wrong_output(inputs):
    return 1.001 * chunk(inputs)


def wrong_gradient(inputs):
    return chunk(inputs._replace(k=WrongGradient.apply(inputs.k)))


def wrong_at_length_only(inputs):
    return chunk(inputs) * (2.0 if inputs.q.size(2) == 21 else 1.0)


def not_a_number(inputs):
    return chunk(inputs) * float("nan")


@needs_sdpa
@pytest.mark.parametrize("limit", ["1024", "20"])
@pytest.mark.parametrize(
    "form, what",
    [
        (wrong_output, "at length 7 its output differs"),
        (wrong_gradient, "at length 7 its gradient of k differs"),
        (wrong_at_length_only, "at length 21 its output differs"),
        (not_a_number, "at length 7 its output differs from cumsum by nan"),
    ],
)
def test_wrong_form_is_refused(form, what, limit, monkeypatch, capsys):
    monkeypatch.setitem(causal_forms.FORMS, "chunk", form)
    monkeypatch.setattr(causal, "compare_cases", lambda *_: pytest.fail("was timed"))
    command = [*COMMAND, "--lengths", "21", "--max-naive-length", limit]
    check_refused(command, ["error: chunk is not timed", what], capsys)


@needs_sdpa
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_forms_are_within_the_tolerance_of_every_dtype(dtype, tied):
    shape = Shape(batch=2, heads=2, head_dim=16, projection_length=5, dtype=dtype, tied=tied)
    functions, _ = causal.usable(shape, SETTINGS, [])
    for length in (1, 33, 300):
        causal.check_forms(functions, shape, length, 100, SETTINGS)


@needs_sdpa
def test_gradients_that_are_zero_are_equal():
    shape = Shape(batch=1, heads=2, head_dim=4, projection_length=1, dtype="float32")
    functions, _ = causal.usable(shape, SETTINGS, [])
    causal.check_forms(functions, shape, 9, 100, SETTINGS)


def test_tied_keys_are_values():
    shape = Shape(1, 1, 4, 3, "float32", tied=True)
    inputs, _ = causal_forms.make_inputs(shape, 5, SETTINGS)
    assert inputs.k is inputs.v and list(leaves(inputs)) == ["q", "k", "pack_k", "pack_q"]


@needs_sdpa
def test_extra_memory_of_a_forward_pass_holds_its_output():
    shape = Shape(batch=8, heads=8, head_dim=64, projection_length=4, dtype="bfloat16")
    functions, _ = causal.usable(shape, SETTINGS, [])
    output_bytes = 8 * 8 * 64 * 512 * 2
    for name in ("chunk", "sdpa"):
        form = make_form(name, functions[name], causal_forms.make_inputs, shape, 512, "forward", SETTINGS)
        assert measure.measure_extra_bytes(form, SETTINGS) > 0.8 * output_bytes, name


def test_other_backends_run_where_they_can(monkeypatch):
    half = Shape(1, 2, 16, 16, "bfloat16")
    gpu = Settings(2, 1, "cuda", 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(causal_forms.importlib.util, "find_spec", lambda _: object())
    assert causal_forms.available(half, gpu) == (["cumsum", "loop", "chunk", "triton", "fla"], [])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    names, notes = causal_forms.available(half, gpu)
    assert names == ["cumsum", "loop", "chunk", "fla"] and "compute capability 8.0" in notes[0]


def test_linear_attention_kernels_are_composed_rightly(monkeypatch):
    def chunk_linear_attn(q, k, v, scale, normalize):  # [B, T, H, *]
        assert not normalize
        products = torch.einsum("bthk,bshk->bhts", q, k).tril()
        return scale * torch.einsum("bhts,bshv->bthv", products, v), None

    class Module:
        pass

    module = Module()
    module.chunk_linear_attn = chunk_linear_attn
    for name in ("fla", "fla.ops", "fla.ops.linear_attn"):
        monkeypatch.setitem(sys.modules, name, module)
    shape = Shape(2, 2, 16, 5, "float32")
    functions = {"cumsum": causal_forms.FORMS["cumsum"], "fla": causal_forms.flash_linear_attention}
    causal.check_forms(functions, shape, 20, 100, SETTINGS)
