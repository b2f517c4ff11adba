"""The Dagster UI in a real browser, behind the guard: the graph opens, buttons launch runs that succeed, logs arrive as they are made."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.asset_graph import BROWSER_ARGUMENTS, browser_path, open_asset_graph
from tests.ui.running import RunningUi, running_ui, wait_until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(browser_path() is None, reason="no Chromium or Chrome on this machine"),
]


@pytest.fixture
def ui(tmp_path: Path, tiny_model: Path) -> Iterator[RunningUi]:
    with running_ui(tmp_path, tiny_model) as ui:
        yield ui


def test_a_click_materializes_an_asset_with_live_logs_and_another_verifies_the_caches(ui: RunningUi) -> None:
    from playwright.sync_api import WebSocket, sync_playwright

    refused: list[str] = []
    live: list[str] = []

    def listen(websocket: WebSocket) -> None:
        assert websocket.url == f"ws://127.0.0.1:{ui.port}/graphql"
        websocket.on("framereceived", lambda frame: live.append(str(frame)))

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=BROWSER_ARGUMENTS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(60_000)
        page.on("response", lambda response: refused.append(f"{response.status} {response.url}") if response.status >= 400 else None)
        page.on("websocket", listen)
        open_asset_graph(page, ui.url)
        page.goto(f"{ui.url}/assets/tokenizer")
        page.locator("button", has_text=re.compile("^Materialize")).first.click()
        wait_until(lambda: len(ui.runs()) == 1, seconds=60, what="the click has launched nothing")
        page.goto(f"{ui.url}/runs/{ui.runs()[0]['runId']}")
        page.get_by_text("RUN_SUCCESS").first.wait_for(timeout=120_000)  # the page is not loaded again: its log came while it ran
        assert any('"ENGINE_EVENT"' in frame or "EngineEvent" in frame for frame in live), live[:3]
        assert [run["status"] for run in ui.runs()] == ["SUCCESS"]
        assert (ui.project.root / "tokenizer/spm.model").read_bytes() == ui.project.tokenizer_model.read_bytes()

        page.goto(f"{ui.url}/assets/pretrain/meta_json?view=checks")
        page.get_by_text("caches_in_sync").first.click()
        page.locator("button", has_text=re.compile("^Execute$")).click()
        wait_until(lambda: [run["status"] for run in ui.runs()] == ["SUCCESS"] * 2, seconds=120, what="the check has not succeeded")
        page.goto(f"{ui.url}/graphql")
        page.get_by_text("GraphiQL").first.wait_for()
        browser.close()
    assert refused == []
