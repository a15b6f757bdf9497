"""The page of luna-report in a real browser."""

import pytest
from browser import fits, opened, shown_in_notebook
from test_report_page import HOSTILE
from training_logs import write_run, write_translations

from luna_fairseq.report.runs import find_runs
from luna_fairseq.report.training import main, report_page

WORDS = "the cat sat on a mat and looked at the old dog".split()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Three runs of 100,000 updates, one of them with a hostile name, with translations."""
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


POINTS = (
    "board.charts.reduce((sum, chart) => sum + chart.plot.data.flat().filter((y) => y != null).length, 0)"
)


def legend(page, figure="ppl"):
    return page.locator(f"#chart-{figure} .u-legend .u-value").all_inner_texts()


@pytest.mark.parametrize("size", ["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_drawn_and_fits(browser, report, size, scheme):
    with opened(browser, report, size, color_scheme=scheme) as page:
        assert fits(page)
        for figure in ("ppl", "loss", "bleu", "lr", "gnorm", "wps", "gb_free"):
            assert ink(page, figure) > 1000
        assert page.title() == "Training runs"
        assert page.evaluate(POINTS) < 60_000  # few enough to be drawn at once


def ink(page, figure):
    """Pixels of a chart that are not empty."""
    return page.evaluate(
        """(name) => {
          const canvas = document.querySelector(`#chart-${name} canvas`);
          const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          let count = 0;
          for (let at = 3; at < pixels.length; at += 4) count += pixels[at] > 0;
          return count;
        }""",
        figure,
    )


def test_hovering_reads_values_on_all_charts(browser, report):
    with opened(browser, report) as page:
        assert legend(page)[0] == "end"
        page.locator("#chart-ppl .u-over").hover(position={"x": 200, "y": 60})
        page.wait_for_function("document.querySelector('#chart-ppl .u-value').textContent !== 'end'")
        update, *values = legend(page)
        assert 0 < int(update.replace(",", "")) < 100_000
        assert len(values) == 6 and all(float(value) > 3 for value in values)
        assert legend(page, "lr")[0] == update


def test_runs_can_be_left_out(browser, report):
    with opened(browser, report) as page:
        page.get_by_label("transformer").first.uncheck()
        names = page.locator("#chart-ppl .u-legend .u-label").all_inner_texts()
        assert len(names) == 5 and not any("transformer" in name for name in names)
        assert "transformer" not in page.locator("#samples dl").first.inner_text()
        page.reload()
        page.wait_for_selector("body[data-drawn=yes]")
        assert not page.get_by_label("transformer").first.is_checked()
        page.requests.pop()


def test_every_axis(browser, report):
    with opened(browser, report) as page:
        ends = {}
        for axis in ("epochs", "tokens", "hours", "updates"):
            page.select_option("#axis", axis)
            ends[axis] = page.evaluate("board.charts[0].plot.scales.x.max")
        assert ends["epochs"] == pytest.approx(100) and ends["updates"] == pytest.approx(100_000)
        assert ends["tokens"] == pytest.approx(4e8)
        assert ends["hours"] == pytest.approx(100_000 / 7 / 3600, rel=1e-3)


def test_zooming_by_mouse_button_and_keyboard(browser, report):
    def span(chart=0):
        return f"(board.charts[{chart}].plot.scales.x.max - board.charts[{chart}].plot.scales.x.min)"

    with opened(browser, report) as page:
        whole = page.evaluate(span())
        area = page.locator("#chart-ppl .u-over")
        area.scroll_into_view_if_needed()
        box = area.bounding_box()
        page.mouse.move(box["x"] + 100, box["y"] + 80)
        page.mouse.down()
        page.mouse.move(box["x"] + 200, box["y"] + 80, steps=4)
        page.mouse.up()
        page.wait_for_function(f"{span(1)} < {whole / 2}")
        assert page.evaluate(span(0)) == pytest.approx(page.evaluate(span(1)))
        page.get_by_label("show the whole").click()
        page.wait_for_function(f"{span()} > {whole * 0.9}")
        plot = page.locator("#chart-ppl .plot")
        plot.focus()
        page.keyboard.press("+")
        page.wait_for_function(f"{span()} < {whole * 0.6}")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.querySelector('#chart-ppl .u-value').textContent !== 'end'")
        page.keyboard.press("0")
        page.wait_for_function(f"{span()} > {whole * 0.9}")


def test_text_that_looks_like_html_is_shown(browser, report):
    with opened(browser, report) as page:
        assert page.title() == "Training runs" and page.locator("img").count() == 0
        page.get_by_label("only samples with this text").fill("<script>")
        assert HOSTILE.split("&")[0] in page.locator("#samples dd").first.inner_text()
        assert "<img src=x onerror=alert(1)>" in page.locator("main table").first.inner_text()


def test_differing_words_are_marked(browser, report):
    with opened(browser, report) as page:
        page.select_option("#samples select", "low 0")
        assert page.locator("#samples mark").first.inner_text() == "dog"


def test_it_prints_in_light_colours(browser, report):
    with opened(browser, report, color_scheme="dark") as page:
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("board.charts[0].plot.width") == 330
        assert page.evaluate("board.charts[0].plot.series[1]._stroke") == "#015a97"
        assert len(page.pdf()) > 10_000
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert page.evaluate("board.charts[0].plot.width") > 330


def test_in_a_notebook_runs_can_be_chosen(browser, tmp_path):
    runs = [write_run(tmp_path / name, updates=1000) for name in ("one", "two")]
    with shown_in_notebook(browser, report_page(find_runs(runs))._repr_html_(), tmp_path) as frame:
        frame.get_by_label("two").first.uncheck()
        names = frame.locator("#chart-ppl .u-legend .u-label").all_inner_texts()
        assert names and not any("two" in name for name in names)


def test_many_options_that_differ_are_folded_and_stay_as_they_are(browser, tmp_path):
    runs = [write_run(tmp_path / "one", updates=1000), write_run(tmp_path / "two", updates=1000)]
    log = runs[1] / "train.log"
    more = "".join(f"'option_{number}': 1, " for number in range(40))
    text = log.read_text(encoding="utf-8").replace("'common': {", f"'common': {{{more}")
    log.write_text(text, encoding="utf-8")
    report_page(find_runs(runs)).write(tmp_path / "report.html")
    with opened(browser, tmp_path / "report.html") as page:
        assert not page.get_by_text("--option-7").first.is_visible()
        page.get_by_text("40 options differ").click()
        assert page.get_by_text("--option-7").first.is_visible()
        page.get_by_label("two").first.uncheck()
        page.get_by_label("two").first.check()
        assert page.get_by_text("--option-7").first.is_visible()
