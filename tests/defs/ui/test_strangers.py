"""A page of a stranger in a real browser, against Dagster's web server with and without the guard.

Without the guard, nearly every attempt of the page changes the instance. This shows that the page is an attack.
"""

import asyncio
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest
import uvicorn
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster_webserver.app import create_app_from_workspace_process_context
from starlette.types import ASGIApp

from niels_cache_assets.defs.ui.guard import WebGuard
from tests.helpers.ui.browser import IN_A_BROWSER, browser_page
from tests.helpers.ui.running import wait_until

pytestmark = IN_A_BROWSER

# Each try carries its own name to the server, which keeps it as the key of a limit. `done` is when the last answer is there.
ATTACK = """
const mutation = name => `mutation { setConcurrencyLimit(concurrencyKey: "${name}", limit: 1) }`;
const address = name => `${ui}/graphql?query=${encodeURIComponent(mutation(name))}`;
const body = name => JSON.stringify({query: mutation(name)});
const element = (tag, settings, parent = document.body) => parent.appendChild(Object.assign(document.createElement(tag), settings));
const post = (name, type, mode, url = `${ui}/graphql`) =>
  fetch(url, {method: "POST", mode, headers: {"Content-Type": type}, body: body(name)}).catch(() => null);

async function attack() {
  element("img", {src: address("image")});
  element("script", {src: address("script")});
  element("link", {rel: "stylesheet", href: address("stylesheet")});
  for (const type of ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"]) {
    const target = element("iframe", {name: type}).name;
    element("form", {method: "POST", enctype: type, action: address(`form ${type}`), target}).submit();
  }
  navigator.sendBeacon(address("beacon"), "x");
  await fetch(address("get"), {mode: "no-cors"}).catch(() => null);
  await fetch(`${ui}/graphql%0A?query=${encodeURIComponent(mutation("newline"))}`, {mode: "no-cors"}).catch(() => null);
  await post("text", "text/plain;application/json", "no-cors");
  await post("json", "application/json", "cors");
  const opened = await new Promise(done => {
    const socket = new WebSocket(`${ui.replace("http", "ws")}/graphql`, "graphql-ws");
    socket.onopen = () => done(true);
    socket.onerror = () => done(false);
  });
  const read = await fetch(`${ui}/server_info`).then(() => true, () => false);
  return {opened, read};
}
"""
SUCCEED_WITHOUT_A_GUARD = {
    *("image", "script", "stylesheet", "beacon", "get", "newline", "text", "rebinding"),
    *("form application/x-www-form-urlencoded", "form multipart/form-data", "form text/plain"),
}


@contextmanager
def served(app: ASGIApp, listener: socket.socket) -> Iterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        wait_until(lambda: server.started, seconds=30, what="the server has not started")
        yield
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


@pytest.fixture
def strangers_port() -> Iterator[int]:
    """Run a web server of the attacker on 127.0.0.1. Its pages are empty, and the test runs their scripts."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>kittens</title><body></body>")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_strangers_page_changes_nothing_behind_the_guard(is_guarded: bool, instance: dg.DagsterInstance, strangers_port: int) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    ui, stranger = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{strangers_port}"
    rebound = f"http://evil.localhost:{port}"  # for a name that first led to the attacker's machine, and then to this one

    with WorkspaceProcessContext(instance, workspace_load_target=EmptyWorkspaceTarget(), version="") as context:
        app = create_app_from_workspace_process_context(context)
        with served(WebGuard(app, port=port) if is_guarded else app, listener), browser_page() as page:
            page.goto(stranger)
            seen = page.evaluate(f"() => {{ const ui = {json.dumps(ui)}; {ATTACK} return attack(); }}")
            page.wait_for_load_state("networkidle")

            page.goto(stranger)
            page.evaluate(f"() => {{ const ui = {json.dumps(ui)}; {ATTACK} location = address('link'); }}")
            page.wait_for_url(f"{ui}/**")

            page.route(f"{rebound}/", lambda route: route.fulfill(body="<title>kittens</title>", content_type="text/html"))
            page.goto(rebound)
            page.evaluate(
                f"() => {{ const ui = {json.dumps(rebound)}; {ATTACK} return post('rebinding', 'application/json', 'same-origin'); }}"
            )

            page.goto(stranger)
            page.set_content(f'<iframe name="ui" src="{ui}/overview"></iframe>')
            page.wait_for_load_state("networkidle")
            framed = page.frame("ui")
            is_framed = framed is not None and framed.url.startswith(ui)

            page.goto(stranger)
            page.set_content(f'<a href="{ui}/overview">look at my runs</a>')
            page.get_by_text("look at my runs").click()
            page.wait_for_url(f"{ui}/overview**")
            page.get_by_text("Runs").first.wait_for()
            own = "() => { const ui = location.origin; " + ATTACK + " return post('own', 'application/json', 'same-origin'); }"
            page.evaluate(own)
    changed = set(instance.event_log_storage.get_concurrency_keys())
    assert "own" in changed, "the UI's own page could not do it either"
    assert changed - {"own"} == (set() if is_guarded else SUCCEED_WITHOUT_A_GUARD)
    assert (seen["opened"], is_framed) == (not is_guarded, not is_guarded)
    assert seen["read"] is False
