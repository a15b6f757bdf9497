"""The benchmark's tasks at tiny sizes, and rows with wrong results. No test depends on a clock."""

import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked import TORCH, run_python

from fairseq.modules import MultiheadAttention
from luna_fairseq.benchmark import __main__ as benchmark
from luna_fairseq.benchmark import apollo, attention, measure, models
from luna_fairseq.benchmark.__main__ import TASKS, build_parser, main
from luna_fairseq.benchmark.forms import FORM_TABLES
from luna_fairseq.benchmark.measure import compare, cpu_flop_formulas, extra_bytes, spread
from luna_fairseq.benchmark.task import Section, Variant, plan_jobs
from luna_fairseq.models.int8 import Linear8
from luna_fairseq.models.luna_classifier import ARCHITECTURES
from luna_fairseq.models.onednn_linear import OneDnnLinear
from luna_fairseq.optim.apollo import Apollo
from luna_fairseq.peers import ATTENTIONS
from luna_fairseq.peers.models import ARCHITECTURES as PEER_ARCHITECTURES

pytestmark = pytest.mark.skipif(
    not hasattr(torch.nn.functional, "scaled_dot_product_attention"),
    reason="needs scaled_dot_product_attention, of torch 2.0",
)
HEADS = "--batch 2 --heads 2 --head-dim 4 --projection-length 3 --lengths 9 30 --max-naive-length 20"
SMALL = "--preset small --dictionary-size 40"
COMMANDS = {
    "causal": f"causal --tied {HEADS} --with decay",
    "attention": f"attention {HEADS} --with anchored-naive anchored look-up",
    "train": f"train {SMALL} --batch 2x5 --projection-length 6 --with luna-6-no-look-up luna-6-softmax-cross",
    "masked-lm": f"train --task masked-lm {SMALL} --batch 1x16 --with peer-softmax-alibi",
    "lra": "lra --batch 1x12 --projection-length 2 --with peer-linear",
    "decode": f"decode {SMALL} --projection-length 3 --lengths 4 6 --batch 2 --beam 3",
    "apollo": "apollo --preset small --dictionary-size 40",
}
ROWS = {
    "causal": ["cumsum", "chunk", "parallel", "decay", "sdpa"],
    "attention": ["luna-naive", "luna", "anchored-naive", "anchored", "look-up", "softmax", "sdpa"],
    "train": ["transformer", "transformer-sdpa", "luna-6-tied", "luna-6-untied", "luna-6-anchored",
              "luna-6-no-look-up", "luna-6-softmax-cross"],
    "masked-lm": ["roberta-softmax", "roberta-sdpa", "peer-softmax-alibi", "luna-16-tied", "luna-16-untied",
                  "luna-16-anchored"],
    "lra": ["transformer-softmax", "transformer-sdpa", "peer-linear", "luna-2-anchored", "luna-2"],
    "decode": ["transformer", "luna-3-tied", "luna-3-untied", "luna-3-anchored"],
    "apollo": ["adamw", "adamw-foreach", "adamw-fused", "apollo-single", "apollo-foreach", "apollo"],
}  # fmt: skip


@pytest.fixture
def quick(monkeypatch):
    """Time a single call, and do not profile memory."""
    monkeypatch.setattr(measure, "extra_bytes", lambda job, device: 2**20)
    monkeypatch.setattr(measure, "SHORTEST_SAMPLE", 1e-9)


def task_of(words):
    args = build_parser().parse_args([*words.split(), "--seed", "3"])
    return TASKS[args.command](args)


def failed(task):
    """Return the errors of the rows that cannot be measured, and the jobs of the others."""
    section = Section("any")
    cases = plan_jobs(task, section)
    return section.failed, [jobs for _, jobs in cases]


# These tasks prepare and measure models as "train" does.
LIKE_TRAIN = [pytest.param(name, marks=pytest.mark.slow) for name in ("masked-lm", "lra")]


@pytest.mark.parametrize(
    "name", [*(name for name in COMMANDS if name not in ("masked-lm", "lra")), *LIKE_TRAIN]
)
def test_every_row_is_checked_and_measured(name, quick, tmp_path, capsys):
    paths = tmp_path / "all.json", tmp_path / "all.png"
    words = [*COMMANDS[name].split(), "--repetitions", "2", "--json", str(paths[0]), "--plot", str(paths[1])]
    assert main(words) == 0
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    task = words[0]
    section = json.loads(paths[0].read_text())[task]
    assert list(dict.fromkeys(r["form"] for r in section["results"])) == ROWS[name]
    assert set(section["checks"]) == set(ROWS[name]) and not section["failed"] and not section["running"]
    for result in section["results"]:
        seconds = result["seconds"]
        assert len(seconds["samples"]) == 2 and 0 < seconds["q1"] <= seconds["median"] <= seconds["q3"]
        group = [r for r in section["results"] if r["case"] == result["case"]]
        assert list(result["speed_ratio"]) == [p for p in section["peers"] if p in {r["form"] for r in group}]
        for peer, ratio in result["speed_ratio"].items():
            (theirs,) = (r["seconds"]["samples"] for r in group if r["form"] == peer)
            expected = spread([b / a for a, b in zip(seconds["samples"], theirs)])
            assert ratio == pytest.approx(expected)
        if section["rate"]:
            processed = result[f"{section['rate']}_per_second"] * seconds["median"]
            count = {"train": 10 if name == "train" else 16, "lra": 12, "decode": 2}[task]
            assert processed == pytest.approx(count)
    out = capsys.readouterr().out
    assert f"== {task} ==" in out and "extra MiB" in out and "torch: " in out
    if task in ("causal", "attention"):
        long = {r["form"] for r in section["results"] if r["case"]["T"] == 30}
        assert long == set(ROWS[name]) - {"cumsum", "softmax"}
        assert "(lengths beyond --max-naive-length 20)" in out


@pytest.mark.slow
def test_a_separate_process_measures_memory_and_profiles(tmp_path):
    path = tmp_path / "x.json"
    words = f"--threads 1 train {SMALL} --batch 2x5 --repetitions 2 --profile --json {path} --without"
    words += " transformer transformer-sdpa luna-16-untied luna-16-anchored"
    command = [sys.executable, "-m", "luna_fairseq.benchmark", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    values = json.loads(path.read_text())
    assert values["environment"]["threads"] == 1 and "DEBUG" not in done.stderr
    ((result,), (each,)) = values["train"]["results"], values["train"]["profiles"]
    # At least the gradients of the embedding and of the feed-forward blocks.
    assert result["extra_bytes"] > 6 * 2 * 256 * 1024 * 4
    assert each["GFLOP of products"] > 1e-3 and 0 < each["part of the time in products"] < 1
    assert each["calls"] > 100 and each["MiB written"] > 1


@pytest.mark.slow
def test_decoding_is_profiled(tmp_path):
    path = tmp_path / "x.json"
    words = f"decode {SMALL} --lengths 3 --repetitions 2 --profile --json {path} --without luna-16-untied"
    main(words.split())
    profiles = {each["row"]: each for each in json.loads(path.read_text())["decode"]["profiles"]}
    transformer, luna = (profiles[name]["GFLOP of products"] for name in ("transformer", "luna-16-tied"))
    # The dense products are the same, and most of the work.
    assert luna == pytest.approx(transformer, rel=0.5)


@pytest.mark.parametrize("prepare", [OneDnnLinear, lambda linear: Linear8(linear.weight, linear.bias)])
def test_operations_of_prepared_linear_layers_are_counted(prepare):
    flop_counter = pytest.importorskip("torch.utils.flop_counter", reason="needs torch 2.1 or later")
    layer, x = prepare(torch.nn.Linear(8, 6)), torch.ones(5, 1, 8)
    layer(x)  # the first product in 8 bits also tries what the CPU has
    counter = flop_counter.FlopCounterMode(display=False, custom_mapping=cpu_flop_formulas())
    with torch.no_grad(), counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 5 * 8 * 6


def test_only_attention_is_measured_with_torch_alone():
    program = "import sys; sys.modules['fairseq'] = sys.modules['tqdm'] = None; "
    program += "import luna_fairseq.benchmark.{} as it; it.main()"
    for module, words, message in (
        ("__main__", f"causal --check {HEADS}", "chunk"),
        ("gpu", "--device cpu --minutes 1e-9 --only train", "Choose from parity, causal"),
    ):
        done = run_python("-c", program.format(module), *words.split(), imported=TORCH)
        assert message in done.stdout + done.stderr, done.stderr


def test_extra_memory_is_the_peak_of_a_job():
    def job():
        x = torch.ones(2**20)
        return (x + 1).sum() + torch.ones(2**20).sum()

    assert extra_bytes(job, "cpu") == pytest.approx(8 * 2**20, rel=0.01)


def test_repetitions_are_interleaved_and_a_failure_ends_one_row(monkeypatch):
    def fails():
        raise Exception("no kernel\nfor this")  # as Triton's compiler raises

    monkeypatch.setattr(measure, "extra_bytes", lambda *_: 0)
    monkeypatch.setattr(measure, "SHORTEST_SAMPLE", 0.0)
    order, section = [], Section("any", peers=["a"])
    jobs = {**{n: lambda n=n: lambda: order.append(n) for n in "ab"}, "c": fails}
    compare({"T": 1}, jobs, section, Namespace(repetitions=3, threads=1, device="cpu"))
    text = "".join(order)
    assert (
        text.startswith("ab") and "".join(c for c, d in zip(text[2:], " " + text[2:]) if c != d) == "ab" * 3
    )
    assert [record["form"] for record in section.results] == ["a", "b"]
    assert section.failed == {"c": "Exception: no kernel"} and not section.running


def test_the_calls_of_a_sample_are_those_of_all_its_blocks(quick, monkeypatch):
    sample = Namespace(number_per_run=10, raw_times=[1.0, 1.0], median=0.1)
    monkeypatch.setattr(measure, "Timer", lambda *_, **__: Namespace(blocked_autorange=lambda **__: sample))
    section = Section("any")
    compare({}, {"a": lambda: int}, section, Namespace(repetitions=2, threads=1, device="cpu"))
    assert section.results[0]["calls_per_sample"] == 20


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_the_time_and_memory_of_operators_are_profiled_on_a_cpu_only(device):
    pytest.importorskip("torch.utils.flop_counter", reason="needs torch 2.1 or later")
    x = torch.ones(9, 9)
    row = measure.profile(lambda: x @ x, {"case": {}, "form": "a", "seconds": {"median": 1.0}}, device)
    assert row["GFLOP of products"] == pytest.approx(2 * 9**3 / 1e9) and row["calls"] == 1
    assert ("part of the time in products" in row) == ("MiB written" in row) == (device == "cpu")


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1.01 * gradient


def chunk(inputs):
    return attention.luna_causal(inputs, "chunk", False)


def wrong_gradient(inputs):
    return chunk({**inputs, "k": WrongGradient.apply(inputs["k"])})


def wrong_at_length_only(inputs):
    return chunk(inputs) * (2.0 if inputs["q"].size(2) == 30 else 1.0)


def blind_to_padding(inputs):
    return attention.pack_and_unpack({**inputs, "mask": None})


WRONG_FORMS = [
    ("causal", "chunk", lambda inputs: 1.001 * chunk(inputs), "at length 7 its output differs"),
    ("causal", "chunk", wrong_gradient, "at length 7 its gradient of k differs"),
    ("causal", "chunk", wrong_at_length_only, "at length 30 its output differs"),
    ("causal", "chunk", lambda inputs: float("nan") * chunk(inputs), "differs from cumsum in float32 by nan"),
    ("attention", "luna", blind_to_padding, "at length 7 its output differs from luna-naive"),
    (
        "attention",
        "sdpa",
        lambda inputs: 1.01 * attention.explicit_self_attention(inputs),
        "differs from softmax",
    ),
]


@pytest.mark.parametrize("name, form, function, message", WRONG_FORMS)
def test_a_wrong_form_is_not_timed(name, form, function, message, monkeypatch):
    table = {"causal": attention.CAUSAL, "attention": attention.BIDIRECTIONAL}[name]
    monkeypatch.setitem(table, form, replace(table[form], make=function))
    why, jobs = failed(task_of(f"{name} {HEADS}"))
    assert list(why) == [form] and message in why[form]
    assert all(form not in each for each in jobs)


def test_a_cuda_error_ends_the_run_and_names_its_row(monkeypatch, tmp_path):
    def breaks(inputs):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with more.")

    monkeypatch.setitem(attention.CAUSAL, "chunk", replace(attention.CAUSAL["chunk"], make=breaks))
    path = tmp_path / "found.json"
    with pytest.raises(RuntimeError, match="illegal memory access"):
        main(["causal", *HEADS.split(), "--json", str(path)])
    found = json.loads(path.read_text())["causal"]
    assert found["running"] == "chunk" and not found["failed"]


def test_a_wrong_row_is_one_line_and_the_others_are_measured(quick, monkeypatch, capsys, tmp_path):
    wrong = Variant(lambda *args, **kwargs: Apollo(*args, **kwargs, beta=0.8), equals="apollo-single")
    monkeypatch.setitem(apollo.OPTIMIZERS, "apollo-foreach", wrong)
    monkeypatch.setitem(
        apollo.OPTIMIZERS, "adamw-fused", Variant(lambda p, lr: torch.optim.AdamW(p, no_such=1))
    )
    path = tmp_path / "x.json"
    words = [*COMMANDS["apollo"].split(), "--without", "apollo", "--repetitions", "2", "--json", str(path)]
    assert main(words) == 1
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if "error: " in line]
    assert "apollo-foreach was not measured: after 3 steps" in line
    assert "skipped: adamw-fused" in captured.out
    results = json.loads(path.read_text())["apollo"]["results"]
    assert [r["form"] for r in results] == ["adamw", "adamw-foreach", "apollo-single"]


@pytest.mark.parametrize("row", ["transformer-sdpa", "peer-linear", "luna-2"])
def test_a_classifier_is_timed_as_it_is_trained(row):
    """The last layer computes the output of <CLS> alone."""
    task = task_of(COMMANDS["lra"])
    job, lengths = task.prepare_job(task.variants()[row], task.cases()[0]), []
    norm = job.args[0].encoder.layers[-1].final_layer_norm
    norm.register_forward_hook(lambda module, inputs, output: lengths.append(len(output)))
    job()
    assert lengths == [1]


WRONG_MODELS = {
    "train": ("transformer-sdpa", "luna-6-tied"),
    "masked-lm": ("roberta-sdpa", "luna-16-tied"),
    "lra": ("transformer-sdpa", "luna-2"),
}


@pytest.mark.parametrize("name, row", [(name, row) for name, rows in WRONG_MODELS.items() for row in rows])
def test_a_wrong_model_is_not_timed(name, row, monkeypatch):
    forward, product = models.FusedAttention.forward, torch.bmm
    if row.endswith("sdpa"):
        wrong = models.FusedAttention, "forward", lambda *a, **k: (1.01 * forward(*a, **k)[0], None)
    else:
        wrong = torch, "bmm", lambda *args: 1.01 * product(*args)
    monkeypatch.setattr(*wrong)
    task = task_of(COMMANDS[name])
    with pytest.raises(ValueError, match="differs from that of the model with explicit attention weights"):
        task.check(task.variants()[row])


def test_wrong_decoding_is_not_timed(monkeypatch):
    from luna_fairseq.models.fairseq_decoder import FairseqLunaDecoder

    right = FairseqLunaDecoder.forward

    def wrong(self, *args, incremental_state=None, **kwargs):
        output, extra = right(self, *args, incremental_state=incremental_state, **kwargs)
        return (output if incremental_state is None else output + torch.ones_like(output)), extra

    monkeypatch.setattr(FairseqLunaDecoder, "forward", wrong)
    task = task_of(COMMANDS["decode"])
    with pytest.raises(ValueError, match="logits in decoding differ"):
        task.check(task.variants()["luna-3-tied"])


def test_every_hypothesis_has_the_requested_length():
    task = task_of(f"decode {SMALL} --projection-length 3 --batch 3 --lengths 11")
    job = task.prepare_job(task.variants()["luna-3-tied"], task.cases()[0])
    generator, sample = job.args
    assert [[len(h["tokens"]) for h in each] for each in generator.generate([], sample)] == [[11] * 5] * 3
    sample["net_input"]["src_tokens"] = sample["net_input"]["src_tokens"][:, 1:]
    with pytest.raises(ValueError, match="has 11 tokens instead of 10"):
        job()


@pytest.mark.parametrize("tied", ["", "--tied", "--masks"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_forms_are_within_the_tolerance_of_every_dtype(dtype, tied):
    words = f"--dtype {dtype} --head-dim 16 --heads 2 --projection-length 1 5 --lengths 1 33 130"
    for command in (f"causal {words} {tied} --with decay-naive decay --without sdpa", f"attention {words}"):
        if command.startswith("causal") or not tied:
            assert not failed(task_of(command))[0]


def test_inputs_are_tied_and_padded():
    assert "v" not in task_of("causal --tied").make_inputs({"l": 3, "T": 5})
    assert "v" in task_of("causal").make_inputs({"l": 3, "T": 5})
    inputs = task_of("attention --batch 4").make_inputs({"l": 3, "T": 9, "padding": "half"})
    assert inputs["mask"].sum(dim=1).tolist() == [0, 4, 0, 4]


@pytest.mark.parametrize("kwargs", [{"self_attention": True}, {"encoder_decoder_attention": True}])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_fused_attention_equals_fairseqs(kwargs, padded, is_causal):
    if is_causal and "encoder_decoder_attention" in kwargs:
        pytest.skip("no decoder has such an attention")
    module = MultiheadAttention(12, 3, dropout=0.3, **kwargs).double().eval()
    query = torch.randn(6, 2, 12, dtype=torch.double)
    key = query if "self_attention" in kwargs else torch.randn(5, 2, 12, dtype=torch.double)
    mask = torch.zeros(2, key.size(0), dtype=torch.bool)
    mask[1, 4:] = True
    options = {"key_padding_mask": mask if padded else None}
    if is_causal:
        options["attn_mask"] = torch.full((6, 6), float("-inf"), dtype=torch.double).triu(1)
    expected = module(query, key, key, need_weights=False, **options)[0]
    for change in (models.use_explicit_weights, models.use_fused_attention):
        layer = torch.nn.ModuleDict({"attention": module})
        names = [name for name, _ in layer.named_parameters()]
        change(layer)
        assert [name for name, _ in layer.named_parameters()] == names
        actual = layer["attention"](query, key, key, need_weights=False, **options)[0]
        # fairseq's softmax is float32
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_models_of_long_range_arena_equal_the_trained_ones():
    task = task_of("lra")
    rows = task.variants()
    always = [name for name, row in rows.items() if not row.optional]
    luna = [f"luna-{length}{end}" for length in (16, 128, 256) for end in ("-anchored", "")]
    assert always == ["transformer-softmax", "transformer-sdpa", *luna]
    assert {"peer-softmax-alibi", *(f"peer-{name}" for name in ATTENTIONS)} == set(rows) - set(always)
    for name in ("transformer-sdpa", "luna-16", "luna-16-anchored", "peer-linear", "peer-bigbird"):
        model = task.make_model(rows[name], 8)
        architecture = rows[name].architectures["classify"]
        for option, value in {**ARCHITECTURES, **PEER_ARCHITECTURES["peer_lra"]}[architecture].items():
            assert getattr(model.args, option) == value, option


@pytest.mark.parametrize("name", ["transformer", "luna-16"])
def test_bfloat16_beside_float32_in_one_run(name):
    task = task_of("train")
    rows = task.variants()
    plain = name if name in rows else f"{name}-tied"
    for row, dtype in ((f"{name}-bfloat16", torch.bfloat16), (plain, torch.float32)):
        assert {x.dtype for x in task.make_model(rows[row], 8).parameters()} == {dtype}
    assert rows[f"{name}-bfloat16"].optional


COMMON = {
    "--repetitions 3": ("repetitions", 3),
    "--threads 99": ("threads", 99),
    "--seed 5": ("seed", 5),
    "--device cuda": ("device", "cuda"),
    "--json x.json": ("json", Path("x.json")),
    "--plot x.png": ("plot", Path("x.png")),
    "--profile": ("profile", True),
    "--check": ("check", True),
    "--quiet": ("quiet", True),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("words", COMMON)
def test_options_of_all_tasks_stand_before_or_after_the_task(words, task):
    name, value = COMMON[words]
    for line in ([*words.split(), task], [task, *words.split()]):
        assert getattr(build_parser().parse_args(line), name) == value, line
    assert getattr(build_parser().parse_args([task]), name) != value


NO_FOLDER = Path("no/such/folder").absolute()


@pytest.mark.parametrize(
    "words, message",
    [
        ("speed", "invalid choice: 'speed'"),
        ("causal --lengths 0", "--lengths"),
        ("causal --dtype int8", "invalid choice: 'int8'"),
        ("causal --repetitions 1", "--repetitions: must be at least 2, not 1"),
        ("train --batch 32", "'32' is not SENTENCESxTOKENS"),
        ("train --task classify --preset small", "--preset small: --task classify has only base"),
        ("--device tpu", "--device tpu: "),
        ("--device cuda:99", "--device cuda:99: "),
        (
            "causal --json no/such/folder/x.json",
            f"cannot write no/such/folder/x.json: {NO_FOLDER} does not exist. Use --json",
        ),
        (
            "apollo --plot no/such/folder/x.png",
            f"cannot write no/such/folder/x.png: {NO_FOLDER} does not exist. Use --plot",
        ),
        ("decode --lengths 1", "--lengths 1 leaves no room for a token"),
        (f"decode {SMALL} --beam 40", "--beam 40 needs a larger --dictionary-size than 40"),
        ("apollo --without adam", "--without adam: no row has this name. Choose from adamw"),
        ("causal --without cumsum chunk parallel sdpa", "no row can be measured"),
    ],
)
def test_bad_arguments_give_one_line(words, message, capsys):
    try:
        status = main(words.split())
    except SystemExit as end:
        status = end.code
    assert status not in (0, None)
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_rows_that_are_compared_with_nothing_have_no_error(capsys):
    main(f"causal --check {HEADS} --without chunk".split())
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    errors = {line[1]: line[3] for line in lines}
    assert errors["cumsum"] == errors["sdpa"] == "-" and 0 <= float(errors["parallel"]) < 1


@pytest.mark.parametrize(
    "words, used", [("attention --force softmax=naive", True), ("causal --force causal=chunk", False)]
)
def test_a_forced_form_is_recorded_and_used(words, used, tmp_path, capsys):
    """The rows of causal name their forms, so that nothing is forced."""
    path = tmp_path / "x.json"
    assert main([*words.split(), "--check", *HEADS.split(), "--json", str(path)]) == (0 if used else 1)
    form = words.split()[-1]
    assert json.loads(path.read_text())["environment"]["force"] == [form]
    assert (f"{form} was never used" in capsys.readouterr().err) != used


def test_a_model_with_triton_is_skipped_where_the_kernels_cannot_run(monkeypatch):
    asked = []
    monkeypatch.setattr(models, "why_not_triton", lambda *inputs: asked.append(inputs) or "no triton")
    task = task_of("train --dtype float16 --projection-length 32")
    reasons = {name: task.skip_reason(row, {"T": 8}) for name, row in task.variants().items()}
    assert [name for name, reason in reasons.items() if reason == "no triton"] == ["luna-32-triton"]
    assert asked == [(torch.device("cpu"), torch.float16, 64, 32)]


def test_the_clock_waits_for_the_gpu_that_is_measured(monkeypatch):
    chosen = []
    on_gpu = Namespace(device=torch.device("cuda:1"))
    monkeypatch.setattr(torch, "empty", lambda *args, device: on_gpu)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: 1 / 0)  # ends the run, as there is no such GPU
    with pytest.raises(ZeroDivisionError):
        benchmark.run(build_parser().parse_args(["--device", "cuda:1", "causal"]))
    assert chosen == [on_gpu.device]


def test_a_form_is_forced_while_tasks_are_measured(monkeypatch, capsys):
    forced = []
    monkeypatch.setattr(benchmark, "measure", lambda *_: forced.append(FORM_TABLES["softmax"].forced()))
    main(f"attention --check {HEADS} --force softmax=naive".split())
    main(f"attention --check {HEADS}".split())
    assert forced == ["naive", None]
    both = []
    monkeypatch.setattr(
        benchmark, "measure", lambda *_: both.extend(FORM_TABLES[x].forced() for x in ("softmax", "pack"))
    )
    main(f"--force softmax=naive attention --check {HEADS} --force pack=projected".split())
    assert both == ["naive", "projected"]
    with pytest.raises(SystemExit):
        main("attention --force softmax=quick".split())
    assert "softmax=quick" in capsys.readouterr().err
