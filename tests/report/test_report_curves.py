"""Curves: thinned without a visible difference, against every axis."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_logs import LOGS, write_run

from luna_fairseq.report.curves import axes, charts, hours, thinned
from luna_fairseq.report.logs import read_logs


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 60), st.integers(0, 2**31))
def test_no_extreme_of_any_pixel_is_lost(length, columns, seed):
    random = np.random.default_rng(seed)
    x = np.sort(random.choice(10 * length, length, replace=False)).astype(float)
    y = random.standard_cauchy(length)
    few_x, few_y = thinned(x, y, columns)
    assert len(few_x) <= max(4 * columns, 1) or len(few_x) == length
    assert set(zip(few_x, few_y)) <= set(zip(x, y)) and (np.diff(few_x) > 0).all()
    assert few_x[0] == x[0] and few_x[-1] == x[-1]
    if length > 4 * columns:
        pixel = np.minimum((x - x[0]) * (columns / (x[-1] - x[0])), columns - 1).astype(int)
        few_pixel = np.minimum((few_x - x[0]) * (columns / (x[-1] - x[0])), columns - 1).astype(int)
        for one in np.unique(pixel):
            seen, all_of_it = few_y[few_pixel == one], y[pixel == one]
            assert (seen.min(), seen.max()) == (all_of_it.min(), all_of_it.max())


def test_what_is_no_number_is_no_point():
    x, y = thinned(np.arange(5.0), np.array([1.0, np.nan, 3.0, np.inf, 5.0]))
    assert x.tolist() == [0, 2, 4] and y.tolist() == [1, 3, 5]


def test_a_chart_for_each_figure():
    logs = [read_logs([LOGS / name]) for name in ("simple.log", "none.log")]
    found = {chart["figure"]: chart for chart in charts(logs)}
    assert [line["kind"] for line in found["ppl"]["lines"]] == ["train", "valid"] and found["ppl"]["log"]
    assert [line["kind"] for line in found["bleu"]["lines"]] == ["valid"]
    assert [line["run"] for line in found["score"]["lines"]] == [1]
    assert {"lr", "gnorm", "wps"} <= set(found)
    assert not {"num_updates", "best_loss", "epoch", "wall"} & set(found)
    assert all(line["kind"] == "train" for line in found["wps"]["lines"])


def test_axes_grow_with_the_updates(tmp_path):
    known = axes(read_logs([write_run(tmp_path / "run", updates=5000) / "train.log"]))
    assert known["updates"][-1] == 5000 and known["epochs"][-1] == 5
    assert known["tokens"][-1] == 5000 * 4000
    assert known["hours"][-1] == pytest.approx(5000 / 7 / 3600, rel=1e-2)
    assert all(np.all(np.diff(values) >= 0) for values in known.values())
    assert axes(read_logs([LOGS / "none.log"])) == {"updates": [0.0, 7, 12], "epochs": [0.0, 1, 2]}


def test_the_clock_goes_on_after_a_restart():
    """fairseq's begins again, or stands at 0."""
    for wall in ([100, 200, 0, 0], [100, 200, 90, 190]):
        table = {"wall": np.array(wall, dtype=float), "train_wall": np.array([90.0, 90, 90, 100])}
        assert hours(table)[-1] * 3600 == pytest.approx(390)
