"""``public`` at its smallest size, with the packages that are there. No test looks at a clock."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
from benchmark_checks import check_refused, needs_sdpa, no_children, run_command  # noqa: F401

from luna_fairseq.benchmark import public
from luna_fairseq.benchmark.measure import Result
from luna_fairseq.benchmark.plot import COLUMNS, layout
from luna_fairseq.benchmark.public_attentions import PAIRS
from luna_fairseq.benchmark.report import Section


@needs_sdpa
@pytest.mark.slow
def test_every_attention_beside_what_is_installed(tmp_path, capsys, no_children):  # noqa: F811
    section = run_command(["public", "--lengths", "800"], tmp_path)["public"]
    assert {result["case"]["T"] for result in section["results"]} == {768}
    ours = [result["case"]["attention"] for result in section["results"] if result["form"] == "ours"]
    theirs = [result["case"]["attention"] for result in section["results"] if result["form"] == "public"]
    assert ours == list(PAIRS)
    assert theirs == [name for name, pair in PAIRS.items() if find_spec(pair.module)]


def test_a_package_that_is_missing_is_named(monkeypatch, tmp_path, capsys, no_children):  # noqa: F811
    monkeypatch.setattr(public.importlib.util, "find_spec", lambda name: None)
    section = run_command(["public", "--lengths", "768", "--attentions", "linear"], tmp_path)["public"]
    assert [result["form"] for result in section["results"]] == ["ours"]
    assert "public is left out: performer-pytorch is not installed." in section["notes"]


def test_a_wrong_public_one_is_not_timed(monkeypatch, capsys):
    pytest.importorskip("transformers")
    wrong = PAIRS["longformer"].theirs

    def theirs(module, x, parts):
        side = wrong(module, x, parts)
        return side._replace(compute=lambda: side.compute() + 1)

    monkeypatch.setitem(public.PAIRS, "longformer", replace(PAIRS["longformer"], theirs=theirs))
    check_refused(
        ["public", "--attentions", "longformer", "--lengths", "768"], ["differs from the public one"], capsys
    )


def test_too_short_and_unknown(capsys):
    check_refused(["public", "--lengths", "64"], ["'64' is not an integer of 768 or more"], capsys)
    check_refused(["public", "--attentions", "luna"], ["invalid choice: 'luna'"], capsys)


def test_many_panels_stand_in_several_rows():
    names = list(PAIRS)[: COLUMNS + 1]
    results = [Result({"attention": name, "T": 768}, "ours", [1.0, 2.0], 1, 0) for name in names]
    grid = layout(Section("public", [], [], results, length="T", panels=("attention",)))
    assert [len(row) for row in grid] == [COLUMNS, COLUMNS, 1, 1]
