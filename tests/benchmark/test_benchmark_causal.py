"""Causal attention's sub-command at tiny sizes. No test looks at a clock."""

import sys

import pytest
import torch
from benchmark_checks import check_forms, check_refused, check_results, needs_sdpa, no_children, run_command  # noqa: F401

from luna_fairseq.benchmark import __main__ as command
from luna_fairseq.benchmark import causal, measure
from luna_fairseq.benchmark.heads import Shape, check_equal, leaves
from luna_fairseq.benchmark.measure import Settings
from luna_fairseq.benchmark.options import DTYPES
from luna_fairseq.benchmark.peers import CAUSAL, Form
from luna_fairseq.benchmark.task import lay_out

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
    options = ["--tied", "--lengths", "9", "40", "--max-naive-length", "39", "--dtype", "bfloat16"]
    section = run_command([*COMMAND, *options], tmp_path)["causal"]
    check_results({**section, "results": section["results"][:8]}, FORMS, cases=2)
    check_results({**section, "results": section["results"][8:]}, ["chunk", "sdpa"], cases=2)
    out = capsys.readouterr().out
    assert "cumsum, loop and sdpa-math are left out: at lengths beyond --max-naive-length 39" in out
    assert "bfloat16, tied" in out
    row = next(line for line in out.splitlines() if " 40 " in line and " chunk " in line)
    assert row.split()[-6:-4] == ["-", "-"]


def test_a_form_that_forgets(tmp_path, capsys, no_children):  # noqa: F811
    options = ["--tied", "--with", "decay", "decay-naive", "--without", "sdpa", "loop"]
    section = run_command([*COMMAND, "--lengths", "9", *options], tmp_path)["causal"]
    check_results(section, ["cumsum", "chunk", "decay-naive", "decay"], cases=2)
    capsys.readouterr()


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
    return causal.backend(inputs, "chunk")


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
        (not_a_number, "at length 7 its output differs from cumsum in float32 by nan"),
    ],
)
def test_wrong_form_is_refused(form, what, limit, monkeypatch, capsys):
    monkeypatch.setitem(CAUSAL, "chunk", Form(form, equals="cumsum"))
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("was timed"))
    arguments = [*COMMAND, "--lengths", "21", "--max-naive-length", limit]
    check_refused(arguments, ["error: chunk is not timed", what], capsys)


@needs_sdpa
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_forms_are_within_the_tolerance_of_every_dtype(dtype, tied):
    options = ["--dtype", dtype, "--head-dim", "16", "--max-naive-length", "100", *["--tied"] * tied]
    check_forms([*COMMAND, *options], (1, 33, 300))


@needs_sdpa
def test_gradients_that_are_zero_are_equal():
    check_forms([*COMMAND, "--projection-length", "1"], (9,))


def test_tied_keys_are_values():
    shape = Shape(1, 1, 4, 3, "float32", tied=True)
    inputs, _ = causal.make_inputs(shape, 5, SETTINGS)
    assert inputs.k is inputs.v and list(leaves(inputs)) == ["q", "k", "pack_k", "pack_q"]


@needs_sdpa
def test_extra_memory_of_a_forward_pass_holds_its_output():
    words = "causal --batch 8 --projection-length 4 --dtype bfloat16 --lengths 512 --without cumsum loop"
    args = command.build_parser().parse_args(words.split())
    (_, forms), _ = lay_out(command.CausalAttention(args, SETTINGS)).cases
    assert [form.name for form in forms] == ["chunk", "sdpa"]
    for form in forms:
        assert measure.measure_extra_bytes(form, SETTINGS) > 0.8 * (8 * 8 * 64 * 512 * 2), form.name


def test_other_backends_run_where_they_can(monkeypatch):
    half, gpu = Shape(1, 2, 16, 16, "bfloat16"), Settings(2, 1, "cuda", 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(causal.importlib.util, "find_spec", lambda _: object())
    assert not causal.why_no_triton(half, gpu) and not causal.why_no_fla(half, gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    assert "compute capability 8.0" in causal.why_no_triton(half, gpu)


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
    problem = causal.make_inputs(Shape(2, 2, 16, 5, "float32"), 20, SETTINGS)
    functions = {"fla": causal.flash_linear_attention}
    check_equal(functions, "cumsum", CAUSAL["cumsum"].compute, problem, "float32", whole=True)
