"""The benchmark's command line and its measurements at tiny sizes. No test looks at a clock."""

import sys
from functools import partial

import pytest
import torch
from benchmark_checks import check_png, check_refused

from luna_fairseq.benchmark import __main__ as command
from luna_fairseq.benchmark import measure, plot, report
from luna_fairseq.benchmark.__main__ import main
from luna_fairseq.benchmark.measure import Form, Result, Settings, spread


def test_all_commands_run_without_a_name(monkeypatch, capsys):
    def run(name, args, settings):
        result = Result({"case": name}, name, [1.0, 2.0], 1, 0)
        return measured.append((name, args, settings)) or report.Section(name, (), (name,), [result])

    measured = []
    for name, module in command.COMMANDS.items():
        monkeypatch.setattr(module, "run", partial(run, name))
    assert main(["--repetitions", "3"]) == 0
    assert [name for name, _, _ in measured] == ["causal", "attention", "train", "lra", "decode", "apollo"]
    assert measured[0][1].lengths == [32, 128, 512, 1024] and measured[4][1].beam == 5
    assert all(settings.repetitions == 3 for _, _, settings in measured)
    assert "== causal ==" in capsys.readouterr().out


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
        (["causal", "--json", "no/such/folder/x.json"], "cannot write no/such/folder/x.json: give --json"),
        (["apollo", "--plot", "no/such/folder/x.png"], "cannot write no/such/folder/x.png: give --plot"),
        (["decode", "--lengths", "1"], "'1' is not an integer of 2 or more"),
        (["apollo", "--without", "adam"], "--without adam: there is no such form here; choose of adamw"),
    ],
)
def test_bad_arguments_give_one_line(arguments, words, capsys):
    check_refused(arguments, [words], capsys)


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


def test_missing_matplotlib_is_one_line_before_anything_is_measured(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["--plot needs matplotlib: pip install matplotlib"]
    check_refused(["apollo", "--plot", str(tmp_path / "x.png")], words, capsys)


def test_plot_of_several_sections(tmp_path):
    def results(**case):
        return [Result(case, name, [1.0, 2.0], 1, extra) for name, extra in (("a", 0), ("b", 2**20))]

    lengths = [r for n in (16, 64) for r in results(T=n, l=1) + results(T=n, l=2)[:1]]
    sections = [
        report.Section("curves", (), ("b",), lengths, length="T", panels=("l",)),
        report.Section("rates", (), ("b",), results(T=3), "T", (), "tokens", [3, 3]),
        report.Section("bars", (), ("a", "b"), results(parameters="5")),
    ]
    where = {"hardware": "x", "threads": 1, "torch": "y", "commit": None}
    plot.write_png(tmp_path / "x.png", sections, where)
    check_png(tmp_path / "x.png")
    assert [file.name for file in tmp_path.iterdir()] == ["x.png"]


def test_failed_write_leaves_nothing(tmp_path):
    def write(temporary):
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(ValueError, match="cannot write .*x.json: No space left"):
        report.replace_file(tmp_path / "x.json", write)
    assert not list(tmp_path.iterdir())
