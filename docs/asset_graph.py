"""Takes pictures of the asset graph from a UI that runs (`make ui`), in the system's Chromium.

python docs/asset_graph.py http://127.0.0.1:3000           the whole graph, for the README
python docs/asset_graph.py http://127.0.0.1:3000 corpus    corpora and what is built from them; needs a data set with `prepare`
"""

import re
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
CORPUS_SELECTION = 'group:"corpus" or group:"pretrain"'
# Chromium looks for its makers' servers at every start; here it is to look at ours alone.
BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def browser_path() -> str | None:
    """The system's Chromium or Chrome, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def open_asset_graph(page: Page, url: str, selection: str = "") -> None:
    """The global graph, or what is selected of it, with every group expanded."""
    page.goto(f"{url}/asset-groups")
    page.get_by_text("tokenizer").first.wait_for()
    if selection:
        page.locator(".CodeMirror").first.click()
        page.keyboard.type(selection)
        page.keyboard.press("Escape")  # the suggestions
        page.keyboard.press("Enter")
        page.wait_for_timeout(3_000)  # the layout is made anew
    page.mouse.click(700, 180, button="right")  # on the empty ground
    page.get_by_text("Expand all groups").last.click()
    # The first is in the menu, the next in a node: its details, or from further away its name.
    page.get_by_text(re.compile("^(Automation|train_shards|meta_json)$")).nth(1).wait_for()


def picture_all(page: Page, url: str) -> None:
    page.set_viewport_size({"width": 1400, "height": 1700})
    open_asset_graph(page, url)
    page.wait_for_timeout(2_000)  # the layout moves into place
    page.mouse.move(900, 1600)
    page.mouse.wheel(0, 600)  # further away: everything on one screen
    page.wait_for_timeout(1_000)
    page.mouse.move(620, 200)
    page.mouse.down()
    page.mouse.move(620, 740, steps=20)
    page.mouse.up()
    page.wait_for_timeout(1_000)
    page.screenshot(path=IMAGES / "asset_graph.png", clip={"x": 545, "y": 280, "width": 805, "height": 1375})


def picture_corpus(page: Page, url: str) -> None:
    page.set_viewport_size({"width": 2000, "height": 1000})
    open_asset_graph(page, url, CORPUS_SELECTION)
    page.wait_for_timeout(2_000)
    page.screenshot(path=IMAGES / "corpus_graph.png", clip={"x": 600, "y": 130, "width": 1340, "height": 660})


def main(url: str, which: str = "all") -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=BROWSER_ARGUMENTS)
        page = browser.new_page()
        page.set_default_timeout(60_000)
        (picture_corpus if which == "corpus" else picture_all)(page, url)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
