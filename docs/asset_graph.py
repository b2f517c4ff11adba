"""Takes the README's picture of the asset graph from a UI that runs (`make ui`), in the system's Chromium.

python docs/asset_graph.py http://127.0.0.1:3000
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

TARGET = Path(__file__).parent / "images" / "asset_graph.png"
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


def open_asset_graph(page: Page, url: str) -> None:
    """The global graph with every group expanded."""
    page.goto(f"{url}/asset-groups")
    page.get_by_text("tokenizer").first.wait_for()
    page.mouse.click(700, 180, button="right")  # on the empty ground
    page.get_by_text("Expand all groups").last.click()
    page.get_by_text("Automation", exact=True).nth(1).wait_for()  # the first is in the menu, the next in a node


def main(url: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=BROWSER_ARGUMENTS)
        page = browser.new_page(viewport={"width": 1400, "height": 1700})
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
        TARGET.parent.mkdir(exist_ok=True)
        page.screenshot(path=TARGET, clip={"x": 545, "y": 280, "width": 805, "height": 1375})
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
