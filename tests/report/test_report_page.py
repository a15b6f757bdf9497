"""The page of luna-report: its size, bad input, and text that looks like HTML."""

import json
import re

import numpy as np
import pytest
from training_logs import LOGS, write_run, write_translations

from luna_fairseq.report.page import ASSETS, build_page
from luna_fairseq.report.training import main

HOSTILE = "<script>document.title='run'</script><img src=x onerror=alert(1)>&\u2028</script>"


def page_data(text):
    """Return the data of a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def report(out, *words):
    """Run luna-report and return the data of the page."""
    assert main([*map(str, words), "--out", str(out), "--quiet"]) == 0
    return page_data(out.read_text(encoding="utf-8"))


def test_a_report_of_three_long_runs_is_small(tmp_path):
    runs = [write_run(tmp_path / f"run {speed}", 30_000, 10, speed) for speed in (1, 2, 3)]
    data = report(tmp_path / "report.html", *runs)
    assert (tmp_path / "report.html").stat().st_size < 1e5
    assert [run["summary"]["Updates"] for run in data["runs"]] == ["30,000"] * 3


def test_text_that_looks_like_html_stays_text(tmp_path):
    folder = write_run(tmp_path / "<img src=x onerror=alert(2)>", updates=2000)
    write_translations(folder, [HOSTILE], [HOSTILE], ["reference"])
    out = tmp_path / "report.html"
    data, text = report(out, folder, "--title", HOSTILE), out.read_text(encoding="utf-8")
    assert text.count("<script") == text.count("</script>") == 1 + 3 and "<img" not in text
    assert data["samples"][0]["source"] == HOSTILE and data["title"] == HOSTILE


def test_the_page_makes_no_requests():
    text = build_page("title", {}, ["page.css", "training.css"], ["page.js", "samples.js"]).text
    assert "default-src 'none'" in text and text.count("'sha256-") == 2
    assert not re.search(r"(src|href)=|@import|url\(", text)


def test_a_notebook_displays_the_page():
    shown = build_page(HOSTILE, {"text": HOSTILE}, [], ["page.js"])._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts"') and shown.count("<") == 2


@pytest.mark.parametrize("name", ["simple.log", "json.log", "none.log", "simple.file", "hydra_train.log"])
def test_a_report_of_every_format(name, tmp_path):
    (run,) = report(tmp_path / "report.html", LOGS / name)["runs"]
    assert int(run["summary"]["Updates"]) > 0 and any(key.startswith("Best ") for key in run["summary"])


def test_mean_and_spread_over_seeds(tmp_path):
    for seed, accuracy in ((1, 60.0), (2, 62.0)):
        folder = write_run(tmp_path / "out" / "text" / "luna-16" / f"seed-{seed}", updates=1000)
        result = {"title": "Text", "model": "luna-16", "seed": seed, "accuracy": accuracy, "options": []}
        (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    expected = {"task": "Text", "model": "luna-16", "seeds": 2, "mean": 61.0, "deviation": 1.41}
    assert report(tmp_path / "report.html", tmp_path / "out")["seeds"] == [expected]


def test_five_models_with_five_seeds_fit_on_a_page(tmp_path):
    runs = [f"{number}={LOGS / 'simple.log'}" for number in range(25)]
    assert len(report(tmp_path / "report.html", *runs)["runs"]) == 25


def test_translations_in_a_folder_of_several_runs_belong_to_none(tmp_path):
    folder = write_run(tmp_path / "first", updates=2000)
    write_translations(folder, ["one"], ["eins"], ["one"])
    shown = report(tmp_path / "report.html", folder, folder / "train.log")  # the same run twice
    assert shown["samples"][0]["runs"] == [["one", 100.0]] * 2
    (write_run(tmp_path / "second", updates=1000) / "train.log").rename(folder / "second.log")
    shown = report(tmp_path / "report.html", folder)
    assert (
        not shown["samples"]
        and [run["notes"] for run in shown["runs"]]
        == [[f"{folder} has translations, but several runs share this folder. Give --results."]] * 2
    )
    shown = report(tmp_path / "report.html", folder, "--results", folder, tmp_path / "second")
    assert shown["samples"][0]["runs"] == [["one", 100.0], None]


def test_seeds_with_other_options_are_not_averaged(tmp_path):
    same = ["--arch", "luna_lra_imdb", "--max-update", "5", "--cpu"]
    other = ["--arch", "luna_lra_imdb", "--max-update", "9"]
    results = [(60.0, same, "a"), (62.0, same[:-1], "a"), (90.0, other, "a"), (80.0, same, "b")]
    for seed, (accuracy, options, data) in enumerate(results):
        folder = write_run(tmp_path / "out" / "text" / "luna-16" / f"seed-{seed}", updates=1000)
        result = {"title": "Text", "model": "luna-16", "seed": seed, "accuracy": accuracy, "options": options}
        (folder / "result.json").write_text(json.dumps({**result, "data": data}), encoding="utf-8")
    shown = report(tmp_path / "report.html", tmp_path / "out")
    assert [(row["seeds"], row["mean"]) for row in shown["seeds"]] == [(2, 61.0), (1, 90.0), (1, 80.0)]
    assert "--max-update" in shown["runs"][2]["notes"][-1] and "other data" in shown["runs"][3]["notes"][-1]


def test_watching_ends_when_all_runs_are_finished(tmp_path):
    folder = write_run(tmp_path / "run", updates=1000)
    assert report(tmp_path / "report.html", folder, "--watch", "1")["watch"] == 1


@pytest.mark.parametrize(
    "words, message",
    [
        (["nowhere"], "nowhere"),
        ([str(LOGS), "--results", "a"], "--results"),
        ([str(LOGS / "simple.log"), "--results", "nowhere"], "--results nowhere"),
    ],
)
def test_bad_input_gives_one_line_of_error(words, message, tmp_path, capsys):
    assert main([*words, "--out", str(tmp_path / "report.html"), "--quiet"]) == 1
    error = capsys.readouterr().err.strip()
    assert message in error and "\n" not in error and not (tmp_path / "report.html").exists()


def test_colours_stand_out_from_the_ground():
    text = (ASSETS / "page.js").read_text(encoding="utf-8")
    for ground, name in (("#ffffff", "light"), ("#14171c", "dark")):
        colours = re.findall(r"#[0-9a-f]{6}", re.search(rf"{name}: \[(.*?)\]", text)[1])
        assert len(colours) == 6
        for colour in colours:
            assert contrast(colour, ground) >= 3, (colour, ground)


def linear(colour):
    values = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    bright, dim = sorted(
        (float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other)), reverse=True
    )
    return (bright + 0.05) / (dim + 0.05)
