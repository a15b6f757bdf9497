"""A headless Chromium for tests, controlled by playwright. Tests are skipped on machines without Chromium."""

import shutil
from contextlib import contextmanager

import pytest

SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium():
    """Return the path of Chromium, or skip the test if Chromium is not installed."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium on this machine: scripts/setup_browser.sh installs it")
    return path


@contextmanager
def open_page(browser, path, size="desktop", **settings):
    """Context manager that opens a file in the browser and checks it for errors and requests at the end.

    ``page.requests`` lists the addresses that the page requested, and ``page.complaints`` its messages.
    """
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, has_touch=size == "phone", **settings
    )
    page = context.new_page()
    page.requests, page.complaints = [], []
    page.on("request", lambda request: page.requests.append(request.url))
    page.on("console", lambda message: page.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("dialog", lambda dialog: (page.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-drawn=yes]")
    yield page
    assert page.complaints == []
    assert page.requests == [path.as_uri()]
    context.close()


@contextmanager
def open_in_notebook(browser, html, folder):
    """Context manager with the frame in which a notebook displays the HTML of ``_repr_html_``."""
    path = folder / "notebook.html"
    path.write_text(f"<!DOCTYPE html><title>notebook</title>{html}", encoding="utf-8")
    context = browser.new_context()
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())
    frame = page.frames[1]
    frame.wait_for_selector("body[data-drawn=yes]")
    yield frame
    assert complaints == [] and page.title() == "notebook"
    context.close()


def fits_window(page):
    """Return True if no element is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
