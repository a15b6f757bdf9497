"""The benchmark's command line and its measurements at tiny sizes. No test looks at a clock."""

import json
import sys
from functools import partial

import pytest
import torch
from benchmark_checks import check_png, check_refused, no_children  # noqa: F401

from luna_fairseq.benchmark import __main__ as command
from luna_fairseq.benchmark import measure, plot, report, task
from luna_fairseq.benchmark.__main__ import main
from luna_fairseq.benchmark.measure import Form, Result, Settings, spread


def test_all_commands_run_without_a_name(monkeypatch, capsys):
    def of(name, args, settings):
        measured.append((name, args, settings))
        return name

    measured = []
    for name, task_class in command.COMMANDS.items():
        monkeypatch.setattr(task_class, "of", partial(of, name))
    section = partial(report.Section, notes=(), peers=())
    monkeypatch.setattr(
        command, "lay_out", lambda name: task.Comparison(section(name), [({"case": 1}, [])], [1])
    )
    monkeypatch.setattr(command, "compare", lambda *_: [[]])
    assert main(["--repetitions", "3"]) == 0
    names = ["causal", "attention", "train", "lra", "decode", "apollo", "complexity", "public"]
    assert [name for name, _, _ in measured] == names
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
        rounds = list(measure.compare({}, forms, 5, settings, Progress()))
    assert "".join(order) == "aabb" + "ab" * 3
    assert [[(r.form, len(r.seconds)) for r in results] for results in rounds] == [
        [("a", 2), ("b", 2)],
        [("a", 3), ("b", 3)],
    ]
    assert {r.count for r in rounds[-1]} == {5}


def test_spread():
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == (3.0, 2.0, 4.0)


def test_missing_matplotlib_is_one_line_before_anything_is_measured(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["--plot needs matplotlib: pip install matplotlib"]
    check_refused(["apollo", "--plot", str(tmp_path / "x.png")], words, capsys)


def test_plot_of_several_sections(tmp_path):
    def results(**case):
        return [Result(case, name, [1.0, 2.0], 1, extra, count=3) for name, extra in (("a", 0), ("b", 2**20))]

    lengths = [r for n in (16, 64) for r in results(T=n, l=1) + results(T=n, l=2)[:1]]
    sections = [
        report.Section("curves", (), ("b",), lengths, length="T", panels=("l",)),
        report.Section("rates", (), ("b",), results(T=3), "T", (), "tokens"),
        report.Section("bars", (), ("a", "b"), results(parameters="5")),
    ]
    where = {"hardware": "x", "threads": 1, "torch": "y", "commit": None}
    plot.write_png(tmp_path / "x.png", sections, where)
    check_png(tmp_path / "x.png")
    assert [file.name for file in tmp_path.iterdir()] == ["x.png"]


class Countdown:
    """A job that ends the process, so to say, when it has been done so often."""

    def __init__(self, calls):
        self.calls = calls

    def __call__(self):
        self.calls -= 1
        if self.calls < 0:
            raise KeyboardInterrupt


def test_run_that_is_cut_off_keeps_what_it_had(no_children, monkeypatch, capsys, tmp_path):  # noqa: F811
    monkeypatch.setattr(command, "SECONDS_BETWEEN_WRITES", -1.0)
    # Two calls for the warm-up, then three samples of four.
    jobs = {"whole": partial(Countdown, 99), "broken off": partial(Countdown, 2 + 3)}
    cases = [({"case": name}, [Form("a", job, partial(Countdown, 99))]) for name, job in jobs.items()]
    comparison = task.Comparison(report.Section("s", (), ("a",), rate="tokens"), cases, [10, 20])
    settings = Settings(repetitions=4, threads=1, device="cpu", seed=1)
    with pytest.raises(KeyboardInterrupt):
        command.measure(comparison, settings, [comparison.section], tmp_path / "x.json", {"seed": 1})
    written = json.loads((tmp_path / "x.json").read_text())
    assert [len(r["seconds"]["samples"]) for r in written["s"]["results"]] == [4, 3]
    out = capsys.readouterr().out
    assert "\nwhole " in out and "\nbroken off" not in out
