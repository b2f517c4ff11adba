"""The Dagster UI in a real browser, on `dagster dev`: the graph opens, and its buttons launch runs that succeed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from docs.asset_graph import BROWSER_ARGUMENTS, browser_path, open_asset_graph
from tests.dagster_tools import Project

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(browser_path() is None, reason="no Chromium or Chrome on this machine"),
]


def wait_until(true: Callable[[], bool], *, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what} after {seconds} s"
        time.sleep(0.5)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def graphql(url: str, query: str) -> dict:
    request = urllib.request.Request(f"{url}/graphql", json.dumps({"query": query}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        answer: dict = json.load(response)["data"]
        return answer


@pytest.fixture
def ui(tmp_path: Path, tiny_model: Path) -> Iterator[tuple[Project, str]]:
    """A small project and the address of `dagster dev` on it; what the quickstart profile adds is switched off."""
    project = Project(tmp_path / "project", tiny_model)
    config = project.folder / "niels_cache.toml"
    config.write_text(config.read_text() + "[pretrain.python_docs]\nenabled = false\n[sft.python_help]\nenabled = false\n")
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(tmp_path / "home"),
        "NIELS_CACHE_CONFIG": str(config),
        "NIELS_CACHE_PROFILE": "quickstart",
        "NIELS_CACHE_ROOT": str(project.root),
    }
    port = free_port()
    subprocess.run([sys.executable, "-m", "niels_cache_assets.defs.instance"], env=environment, check=True, capture_output=True)
    command = [sys.executable, "-m", "dagster", "dev", "-m", "niels_cache_assets.definitions", "-h", "127.0.0.1", "-p", str(port)]
    with open(tmp_path / "dev.log", "wb") as log:
        server = subprocess.Popen(command, env=environment, cwd=project.folder, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return bool(
                graphql(url, "{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }")["repositoriesOrError"]["nodes"]
            )
        except OSError:
            return False

    try:
        wait_until(answers, seconds=90, what="the UI does not answer")
        yield project, url
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()


def test_a_click_materializes_an_asset_and_another_verifies_the_caches(ui: tuple[Project, str]) -> None:
    from playwright.sync_api import sync_playwright

    project, url = ui

    def statuses() -> list[str]:
        return [run["status"] for run in graphql(url, "{ runsOrError { ... on Runs { results { status } } } }")["runsOrError"]["results"]]

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=BROWSER_ARGUMENTS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        open_asset_graph(page, url)
        page.goto(f"{url}/assets/tokenizer")
        page.locator("button", has_text=re.compile("^Materialize")).first.click()
        wait_until(lambda: statuses() == ["SUCCESS"], seconds=120, what="the run of the tokenizer has not succeeded")
        assert (project.root / "quickstart/tokenizer/spm.model").read_bytes() == project.tokenizer_model.read_bytes()

        page.goto(f"{url}/assets/pretrain/meta_json?view=checks")
        page.get_by_text("caches_in_sync").first.click()
        page.locator("button", has_text=re.compile("^Execute$")).click()
        wait_until(lambda: statuses() == ["SUCCESS"] * 2, seconds=120, what="the run of the check has not succeeded")
        browser.close()
