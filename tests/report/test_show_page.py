"""The page of luna-show: its size, its content, and its behaviour in a browser."""

import pytest
import torch
from browser import fits_window, open_in_notebook, open_page
from test_report_page import HOSTILE

from luna_fairseq.report.attention import AttentionMaps
from luna_fairseq.report.show import attention_page, main

SOURCE = [*(f"source{place}" for place in range(58)), HOSTILE, "</s>"]
TARGET = [*(f"target{place}" for place in range(59)), "</s>"]
STRENGTHS = {"encoder.0.self": {"pack gamma": torch.arange(1.0, 9), "unpack gamma": torch.ones(8)}}


def random_maps(layers=6, heads=8):
    """Random maps, which do not compress well, of a translation with 60 tokens."""
    torch.manual_seed(0)
    maps, rows = {}, 32
    for layer in range(layers):
        for name in (f"encoder.{layer}.self", f"decoder.{layer}.self", f"decoder.{layer}.cross"):
            maps[f"{name}.pack"] = (2 * torch.randn(heads, rows, 60)).softmax(-1)
            maps[f"{name}.unpack"] = (2 * torch.randn(heads, 60, rows)).softmax(-1)
            maps[f"{name}.read"] = maps[f"{name}.unpack"] @ maps[f"{name}.pack"].mean(0)
    texts = {"source": HOSTILE, "translation": "target"}
    return AttentionMaps(maps, SOURCE, TARGET, ["</s>", *TARGET[:-1]], texts, STRENGTHS)


def test_page_is_small():
    assert len(attention_page([random_maps()]).text.encode("utf-8")) < 2e6


@pytest.mark.parametrize(
    "words, message",
    [
        (["nowhere.pt", "--text", "a"], "nowhere.pt"),
        (
            ["nowhere.pt", "--text", "a", "--text", "b", "--target", "c"],
            "--target",
        ),
        (["nowhere.pt", "--input", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_bad_input_gives_one_line_of_error(words, message, tmp_path, capsys):
    assert main([*words, "--out", str(tmp_path / "page.html")]) == 1
    error = capsys.readouterr().err.strip()
    assert message in error and "\n" not in error and not (tmp_path / "page.html").exists()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    path = tmp_path_factory.mktemp("show") / "attention.html"
    attention_page([random_maps(layers=2), random_maps(layers=1, heads=3)]).write(path)
    return path


@pytest.mark.parametrize("size, scheme", [("phone", "dark"), ("desktop", "light")])
def test_page_is_drawn_and_fits_the_window(browser, shown, size, scheme):
    with open_page(browser, shown, size, color_scheme=scheme) as page:
        assert fits_window(page)
        assert page.locator(".map h3").all_inner_texts() == [
            "pack (mean of 8 heads)",
            "unpack (mean of 8 heads)",
            "read: unpack × pack (mean of 8 heads)",
        ]
        assert page.title() == "Attention" and page.locator("img").count() == 0
        assert HOSTILE in page.locator("main").inner_text()
        assert page.locator(".map canvas").first.evaluate("canvas => canvas.width") > 300


def test_hovering_and_arrows_read_the_weights(browser, shown):
    with open_page(browser, shown) as page:
        values = random_maps(layers=2)["encoder.0.self.pack"].mean(0)
        first = page.locator(".map").first
        place = page.evaluate(
            "(({ left, top, size }) => ({ x: left + 2.5 * size, y: top + 1.5 * size }))(view.drawn[0])"
        )
        first.locator("canvas").first.hover(position=place)
        found = first.locator(".readout").inner_text()
        assert found.startswith("P2 packs source2: ")
        assert float(found.rsplit(" ", 1)[1]) == pytest.approx(
            values[1, 2].item(), abs=0.02 * values.max().item()
        )
        first.locator("canvas").first.press("ArrowDown")
        assert first.locator(".readout").inner_text().startswith("P3 packs source2: ")


def wait_for_heading(page, text):
    page.wait_for_function("text => document.querySelector('.map h3').textContent === text", arg=text)


def test_layers_heads_and_texts_are_chosen(browser, shown):
    with open_page(browser, shown) as page:
        page.select_option("#head", label="4")
        wait_for_heading(page, "pack (head 4)")
        page.keyboard.press("Escape")
        page.locator("h1").click()
        page.keyboard.press("]")
        page.wait_for_function("document.querySelector('#attention').value === '1'")
        page.keyboard.press(">")
        wait_for_heading(page, "pack (head 5)")
        page.locator(".overview button").last.click()
        wait_for_heading(page, "pack (head 8)")
        page.select_option("#text", "1")
        wait_for_heading(page, "pack (mean of 3 heads)")


def test_the_alignment_lights_up(browser, shown):
    with open_page(browser, shown) as page:
        page.locator("#target button").nth(5).hover()
        read = random_maps(layers=2)["decoder.1.cross.read"].mean(0)[5]
        darkest = page.evaluate(
            """() => {
              const light = (node) => node.style.background.match(/\\d+/g).map(Number).reduce((a, b) => a +
              b); const all = [...document.querySelectorAll("#source button")].map(light);
              return all.indexOf(Math.min(...all));
            }"""
        )
        assert darkest in read.topk(3).indices.tolist()


def test_strengths_of_anchors_are_shown(browser, shown):
    with open_page(browser, shown) as page:
        text = page.locator("main").inner_text()
        assert "pack gamma" in text and "unpack gamma" in text


def test_attention_without_p_has_one_map(browser, tmp_path):
    maps = {"encoder.0.self.read": torch.rand(2, 3, 3).softmax(-1)}
    attention_page([AttentionMaps(maps, ["a", "b", "c"])]).write(tmp_path / "page.html")
    with open_page(browser, tmp_path / "page.html") as page:
        assert page.locator(".map h3").all_inner_texts() == ["read (mean of 2 heads)"]


def test_in_a_notebook_heads_can_be_chosen(browser, tmp_path):
    with open_in_notebook(browser, random_maps(layers=1)._repr_html_(), tmp_path) as frame:
        frame.select_option("#head", label="4")
        frame.wait_for_function("document.querySelector('.map h3').textContent === 'pack (head 4)'")
