"""A browser that all tests of a process share."""

import browser as chromium
import pytest


@pytest.fixture(scope="session")
def browser():
    path = chromium.find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()
