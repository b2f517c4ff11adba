"""The system's Chromium, or a reason to skip a test, and a page of this browser."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, sync_playwright

# Chromium contacts the servers of its makers at every start. Here, it must contact only our server.
BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Animations of waiting pages are switched off, because the processor draws them here.
STAND_STILL = """
addEventListener("DOMContentLoaded", () => {
  document.head.appendChild(document.createElement("style")).textContent = "* { animation: none !important; transition: none !important }";
});
"""
TIMEOUT_MILLISECONDS = 60_000


def browser_path() -> str | None:
    """Return the path of the system's Chromium or Chrome, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


IN_A_BROWSER = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(browser_path() is None, reason="no Chromium or Chrome on this machine"),
]


@contextmanager
def browser_page(*, width: int = 1400, height: int = 1000, dark: bool = False) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=BROWSER_ARGUMENTS)
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
        page.add_init_script(STAND_STILL)
        page.set_default_timeout(TIMEOUT_MILLISECONDS)
        yield page
        browser.close()
