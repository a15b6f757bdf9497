"""The sub-command of growth with length and width at tiny sizes. No test looks at a clock."""

import pytest
from benchmark_checks import check_refused, needs_sdpa, no_children, run_command  # noqa: F401

from luna_fairseq.benchmark import __main__ as command
from luna_fairseq.benchmark import complexity
from luna_fairseq.benchmark.complexity import LAYERS
from luna_fairseq.benchmark.exponents import fit

SIZES = "--lengths 8 16 24 --widths 8 16 24 --width 8 --length 8 --heads 2 --projection-length 3"
COMMAND = ["complexity", *SIZES.split()]


@needs_sdpa
def test_complexity(tmp_path, no_children, capsys):  # noqa: F811
    section = run_command(COMMAND, tmp_path)["complexity"]
    assert [r["form"] for r in section["results"]] == list(LAYERS) * 6
    sizes = {(r["case"]["against"], r["case"]["size"]) for r in section["results"]}
    assert sizes == {(against, n) for against in ("n, d = 8", "d, n = 8") for n in (8, 16, 24)}
    fitted = section["exponents"]
    assert [(e["against"][0], e["form"]) for e in fitted] == [(a, name) for a in "nd" for name in LAYERS]
    for each in fitted:
        assert each["time"]["error"] >= 0 and each["memory"]["exponent"] == pytest.approx(0)
        known = LAYERS[each["form"]].theory
        assert each["time_in_theory"] == known.time["nd".index(each["against"][0])]
    out = capsys.readouterr().out
    assert "exponents of growth" in out and "log_k n" in out and "n sqrt(n) d" in out


def test_exponents_of_exact_growth():
    points = [(n, 3 * n**1.5) for n in (2, 4, 7, 11)]
    assert fit(points).exponent == pytest.approx(1.5) and fit(points).error == pytest.approx(0, abs=1e-7)
    assert fit(points[:2]) is None and fit([*points, (12, 0)]) is None


def test_the_error_is_that_of_the_slope():
    """Of y = x on logarithmic axes, moved by +-h: worked out by hand for 0, 1, 2, 3 and +h, -h, -h, +h."""
    e, h = 2.718281828459045, 0.1
    points = [(e**x, e ** (x + s * h)) for x, s in zip(range(4), (1, -1, -1, 1))]
    found = fit(points)
    assert found.exponent == pytest.approx(1.0)
    assert found.error == pytest.approx((4 * h * h / 2 / 5) ** 0.5)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["complexity", "--lengths", "8", "16"], "--lengths 8 16: an exponent needs 3 values or more"),
        (["complexity", "--widths", "8", "8", "16"], "--widths 8 8 16: an exponent needs 3 values or more"),
        (["complexity", "--heads", "3"], "a width of 256 is not divisible by --heads 3"),
    ],
)
def test_sizes_that_cannot_be_are_one_line(arguments, words, capsys):
    check_refused(arguments, [words], capsys)


@needs_sdpa
def test_a_wrong_layer_is_refused(monkeypatch, capsys):
    def wrong(size, settings):
        built = complexity.attention(size, settings, "linear")
        return built._replace(compute=lambda: 1.001 * built.compute())

    monkeypatch.setitem(LAYERS, "linear", complexity.Layer(wrong, LAYERS["linear"].theory))
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("was timed"))
    check_refused(COMMAND, ["linear is not timed", "its output differs from its definition"], capsys)
