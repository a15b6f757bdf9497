"""The benchmark's command line at tiny sizes. No test looks at a clock."""

import json
import subprocess
import sys
from functools import partial

import pytest
import torch

from luna_fairseq.benchmark import causal, measure
from luna_fairseq.benchmark.__main__ import main
from luna_fairseq.benchmark.measure import Form, Result, Settings, spread

CAUSAL = "causal --batch 1 --heads 2 --head-dim 4 --projection-length 3 --repetitions 2".split()
TRAIN = "train --preset small --dictionary-size 40 --batch 2x5 1x9 --projection-length 2 --repetitions 2".split()


def check_results(section, forms, cases):
    results = section["results"]
    assert [r["form"] for r in results] == forms * cases
    for i, result in enumerate(results):
        seconds = result["seconds"]
        assert len(seconds["samples"]) == 2
        assert 0 < seconds["q1"] <= seconds["median"] <= seconds["q3"]
        assert result["extra_bytes"] >= 0 and result["calls_per_sample"] >= 1
        assert list(result["speed_ratio"]) == section["peers"]
        group = results[i // len(forms) * len(forms) :][: len(forms)]
        for peer in section["peers"]:
            (theirs,) = (r for r in group if r["form"] == peer)
            assert theirs["case"] == result["case"]
            expected = [b / a for a, b in zip(seconds["samples"], theirs["seconds"]["samples"])]
            assert result["speed_ratio"][peer]["median"] == pytest.approx(sum(expected) / 2)


def test_causal(tmp_path, capsys):
    path = tmp_path / "causal.json"
    assert main([*CAUSAL, "--lengths", "5", "130", "--json", str(path)]) == 0
    captured = capsys.readouterr()
    for words in ("speed / naive", "speed / sdpa", "forward+backward", "extra MiB", "torch: ", "seed: 1"):
        assert words in captured.out
    assert "it/s]" not in captured.out and "T 130" in captured.err
    values = json.loads(path.read_text())
    assert list(values) == ["environment", "causal"]
    assert values["environment"]["threads"] == torch.get_num_threads()
    check_results(values["causal"], ["naive", "chunk", "sdpa"], cases=4)
    assert [r["case"] for r in values["causal"]["results"][::3]] == [
        {"T": length, "pass": direction} for length in (5, 130) for direction in ("forward", "forward+backward")
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["causal.json"]


def test_train_as_a_process(tmp_path):
    path = tmp_path / "train.json"
    command = [sys.executable, "-m", "luna_fairseq.benchmark", "--threads", "1", *TRAIN, "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tokens/s" in done.stdout and "speed / transformer" in done.stdout
    values = json.loads(path.read_text())
    assert values["environment"]["threads"] == 1
    check_results(values["train"], ["transformer", "luna-tied", "luna-untied"], cases=2)
    for result, tokens in zip(values["train"]["results"], [10] * 3 + [9] * 3):
        assert result["tokens_per_second"] == pytest.approx(tokens / result["seconds"]["median"])
        # At least the gradients of the embedding and of the feed-forward blocks.
        assert result["extra_bytes"] > 6 * 2 * 256 * 1024 * 4


def test_all_commands_run_without_a_name(monkeypatch, capsys):
    def run(name, args, settings):
        result = Result({"case": name}, name, [1.0, 2.0], 1, 0)
        return measured.append((name, args, settings)) or report.Section(name, (), (name,), [result])

    from luna_fairseq.benchmark import __main__ as command
    from luna_fairseq.benchmark import report

    measured = []
    for name, module in command.COMMANDS.items():
        monkeypatch.setattr(module, "run", partial(run, name))
    assert main(["--repetitions", "3"]) == 0
    assert [name for name, _, _ in measured] == ["causal", "train"]
    assert measured[0][1].lengths == [32, 128, 512, 1024] and str(measured[1][1].batch[0]) == "32x30"
    assert all(settings.repetitions == 3 for _, _, settings in measured)
    assert "== causal ==" in capsys.readouterr().out


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1.01 * gradient


def wrong_output(inputs):
    return 1.001 * causal.luna(inputs, "chunk")


def wrong_gradient(inputs):
    return causal.luna(inputs._replace(k=WrongGradient.apply(inputs.k)), "chunk")


def wrong_at_length_only(inputs):
    return causal.luna(inputs, "chunk") * (2.0 if inputs.q.size(2) == 21 else 1.0)


def not_a_number(inputs):
    return causal.luna(inputs, "chunk") * float("nan")


@pytest.mark.parametrize(
    "form, what",
    [
        (wrong_output, "at length 7 its output differs"),
        (wrong_gradient, "at length 7 its gradient of k differs"),
        (wrong_at_length_only, "at length 21 its output differs"),
        (not_a_number, "at length 7 its output differs from naive by nan"),
    ],
)
def test_wrong_form_is_refused(form, what, monkeypatch, capsys):
    monkeypatch.setitem(causal.LUNA_FORMS, "chunk", form)
    monkeypatch.setattr(causal, "compare", lambda *_: pytest.fail("was timed"))
    assert main([*CAUSAL, "--lengths", "21"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m luna_fairseq.benchmark: error: chunk is not timed") and what in line


@pytest.mark.parametrize("dtype", list(causal.DTYPES))
def test_chunk_is_within_the_tolerance_of_every_dtype(dtype):
    shape = causal.Shape(batch=2, heads=2, head_dim=16, projection_length=5, dtype=dtype)
    settings = Settings(repetitions=2, threads=1, device="cpu", seed=3)
    for length in (1, 33, 300):
        causal.check_forms(shape, length, settings)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["speed"], "invalid choice: 'speed'"),
        (["causal", "--lengths", "0"], "'0' is not an integer of 1 or more"),
        (["causal", "--lengths", "many"], "'many' is not an integer of 1 or more"),
        (["causal", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["causal", "--repetitions", "1"], "'1' is not an integer of 2 or more"),
        (["--threads", "0"], "'0' is not an integer of 1 or more"),
        (["train", "--batch", "32"], "'32' is not SENTENCESxTOKENS"),
        (["train", "--preset", "huge"], "invalid choice: 'huge'"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--device", "cuda:99"], "there is no device cuda:99"),
        (["causal", "--json", "no/such/folder/x.json"], "cannot write no/such/folder/x.json"),
    ],
)
def test_bad_arguments_give_one_line(arguments, words, capsys):
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    assert status not in (0, None)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m luna_fairseq.benchmark") and "error: " in line and words in line


def allocate(mib):
    return partial(torch.ones, mib, 2**20, dtype=torch.uint8)


def test_extra_memory_is_that_of_the_job():
    settings = Settings(repetitions=2, threads=1, device="cpu", seed=1)
    form = Form("allocation", prepare=partial(allocate, 100), warm_up=partial(allocate, 1))
    assert measure.measure_extra_bytes(form, settings) == pytest.approx(100 * 2**20, rel=0.05)


def test_repetitions_are_interleaved():
    order = []
    forms = [Form(n, partial(partial, order.append, n), None) for n in "ab"]

    class Progress:
        def update(self):
            pass

        def set_description(self, text):
            pass

    settings = Settings(repetitions=3, threads=1, device="cpu", seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "measure_extra_bytes", lambda *_: 0)
        patch.setattr(measure, "SHORTEST_SAMPLE", 0.0)
        results = measure.compare({}, forms, settings, Progress())
    assert "".join(order) == "aabb" + "ab" * 3
    assert [r.form for r in results] == ["a", "b"] and all(len(r.seconds) == 3 for r in results)


def test_spread():
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == (3.0, 2.0, 4.0)


def test_extra_memory_of_a_forward_pass_holds_its_output():
    shape = causal.Shape(batch=8, heads=8, head_dim=64, projection_length=4, dtype="bfloat16")
    settings = Settings(repetitions=2, threads=1, device="cpu", seed=1)
    output_bytes = 8 * 8 * 64 * 512 * 2
    for name in ("chunk", "sdpa"):
        form = causal.make_form(name, shape, 512, "forward", settings)
        assert measure.measure_extra_bytes(form, settings) > 0.8 * output_bytes, name
