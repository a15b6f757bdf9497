"""The page of luna-report in a real browser."""

import pytest
from browser import fits_window, open_in_notebook, open_page
from test_report_page import HOSTILE
from training_logs import write_run, write_translations

from luna_fairseq.report.runs import find_runs
from luna_fairseq.report.training import main, report_page

WORDS = "the cat sat on a mat and looked at the old dog".split()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Report of three runs with 100,000 updates and translations. One run has HTML in its name."""
    folder = tmp_path_factory.mktemp("runs")
    references = [" ".join(WORDS[: 3 + number % 9]) for number in range(60)]
    runs = []
    for place, name in enumerate(("luna-16", "transformer", "<img src=x onerror=alert(1)>")):
        run = write_run(folder / name, speed=1 + place, lr=[0.1 * (place + 1)])
        hypotheses = [
            text.replace("cat", "dog") if number % (3 + place) == 0 else text
            for number, text in enumerate(references)
        ]
        write_translations(run, hypotheses, [HOSTILE, *references[1:]], references)
        runs.append(str(run))
    out = folder / "report.html"
    assert main([*runs, "--out", str(out), "--quiet"]) == 0
    return out


@pytest.mark.parametrize("size", ["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_drawn_and_fits_the_window(browser, report, size, scheme):
    with open_page(browser, report, size, color_scheme=scheme) as page:
        assert fits_window(page)
        assert page.title() == "Training runs"
        assert page.locator("h2").all_inner_texts() == [
            "Runs",
            "Options that differ",
            "BLEU by length of the source",
            "Translations",
        ]


def test_runs_can_be_hidden(browser, report):
    with open_page(browser, report) as page:
        page.get_by_label("transformer").first.uncheck()
        assert "transformer" not in page.locator("main table").first.inner_text()
        assert "transformer" not in page.locator("#samples dl").first.inner_text()
        page.reload()
        page.wait_for_selector("body[data-drawn=yes]")
        assert not page.get_by_label("transformer").first.is_checked()
        page.requests.pop()


def test_text_that_looks_like_html_is_shown(browser, report):
    with open_page(browser, report) as page:
        assert page.title() == "Training runs" and page.locator("img").count() == 0
        page.get_by_label("only samples with this text").fill("<script>")
        assert HOSTILE.split("&")[0] in page.locator("#samples dd").first.inner_text()
        assert "<img src=x onerror=alert(1)>" in page.locator("main table").first.inner_text()


def test_differing_words_are_marked(browser, report):
    with open_page(browser, report) as page:
        page.select_option("#samples select", "low 0")
        assert page.locator("#samples mark").first.inner_text() == "dog"


def test_it_prints_in_light_colours(browser, report):
    with open_page(browser, report, color_scheme="dark") as page:
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("theme.colour(0)") == "#015a97"
        assert len(page.pdf()) > 10_000
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("theme.colour(0)") != "#015a97"


def test_in_a_notebook_runs_can_be_chosen(browser, tmp_path):
    runs = [write_run(tmp_path / name, updates=1000) for name in ("one", "two")]
    with open_in_notebook(browser, report_page(find_runs(runs))._repr_html_(), tmp_path) as frame:
        frame.get_by_label("two").first.uncheck()
        text = frame.locator("main table").first.inner_text()
        assert "one" in text and "two" not in text


def test_a_long_list_of_options_is_folded_and_stays_open(browser, tmp_path):
    runs = [write_run(tmp_path / "one", updates=1000), write_run(tmp_path / "two", updates=1000)]
    log = runs[1] / "train.log"
    more = "".join(f"'option_{number}': 1, " for number in range(40))
    text = log.read_text(encoding="utf-8").replace("'common': {", f"'common': {{{more}")
    log.write_text(text, encoding="utf-8")
    report_page(find_runs(runs)).write(tmp_path / "report.html")
    with open_page(browser, tmp_path / "report.html") as page:
        assert not page.get_by_text("--option-7").first.is_visible()
        page.get_by_text("40 options differ").click()
        assert page.get_by_text("--option-7").first.is_visible()
        page.get_by_label("two").first.uncheck()
        page.get_by_label("two").first.check()
        assert page.get_by_text("--option-7").first.is_visible()
