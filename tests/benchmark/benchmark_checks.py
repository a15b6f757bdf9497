"""What the tests of all sub-commands check."""

import json
import pickle

import pytest
import torch

from luna_fairseq.benchmark import measure
from luna_fairseq.benchmark.__main__ import COMMANDS, build_parser, main
from luna_fairseq.benchmark.task import lay_out

needs_sdpa = pytest.mark.skipif(
    not hasattr(torch.nn.functional, "scaled_dot_product_attention"),
    reason="needs scaled_dot_product_attention, of torch 2.0",
)


@pytest.fixture
def no_children(monkeypatch):
    """Memory is not measured, for which each form takes a process; but forms are pickled, and warmed up."""

    def pretend(form, settings):
        pickle.loads(pickle.dumps(form)).warm_up()()
        return 2**20

    monkeypatch.setattr(measure, "measure_extra_bytes", pretend)
    monkeypatch.setattr(measure, "SHORTEST_SAMPLE", 0.0)


def run_command(arguments, folder):
    """The JSON of a run of the command, which also draws a plot."""
    paths = folder / "all.json", folder / "all.png"
    assert main([*arguments, "--repetitions", "2", "--json", str(paths[0]), "--plot", str(paths[1])]) == 0
    assert sorted(folder.iterdir()) == sorted(paths)
    check_png(paths[1])
    return json.loads(paths[0].read_text())


def check_png(path):
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n") and content.endswith(b"IEND\xaeB`\x82")


def check_results(section, forms, cases):
    """Forms in this order in every case, and figures that fit each other."""
    results = section["results"]
    assert [r["form"] for r in results] == forms * cases
    for i, result in enumerate(results):
        seconds = result["seconds"]
        assert len(seconds["samples"]) == 2
        assert 0 < seconds["q1"] <= seconds["median"] <= seconds["q3"]
        assert result["extra_bytes"] >= 0 and result["calls_per_sample"] >= 1
        assert list(result["speed_ratio"]) == [p for p in section["peers"] if p in forms]
        group = results[i // len(forms) * len(forms) :][: len(forms)]
        for peer in result["speed_ratio"]:
            (theirs,) = (r for r in group if r["form"] == peer)
            assert theirs["case"] == result["case"]
            expected = [b / a for a, b in zip(seconds["samples"], theirs["seconds"]["samples"])]
            assert result["speed_ratio"][peer]["median"] == pytest.approx(sum(expected) / 2)


def check_forms(arguments, lengths):
    """Every form of an attention gives what its definition gives; raises InputError otherwise."""
    args = build_parser().parse_args([*arguments, "--lengths", *map(str, lengths)])
    settings = measure.Settings(repetitions=2, threads=1, device="cpu", seed=3)
    lay_out(COMMANDS[args.command](args, settings))


def check_refused(arguments, words, capsys):
    """One line that says why, and no success."""
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    assert status not in (0, None)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m luna_fairseq.benchmark") and "error: " in line
    for word in words:
        assert word in line
