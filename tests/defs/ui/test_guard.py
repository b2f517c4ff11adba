"""The guard in front of Dagster's web server. Requests of a stranger's page never reach the server, and requests of the UI do.

Every request of a stranger first does its harm on the server without the guard. A request that the server itself refuses would prove
nothing.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlencode

import dagster as dg
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster_webserver.app import create_app_from_workspace_process_context
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from niels_cache_assets.defs.ui import guard as web_guard
from niels_cache_assets.defs.ui.guard import WebGuard, refuse_unknown_routes
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.messages import missing

PORT = 3000
HOST = ("host", "127.0.0.1:3000")
JSON = ("content-type", "application/json")
# Changes the state of the instance, by the only mutation that needs no code location and no run.
MUTATION = "mutation { setNuxSeen }"
AS_JSON = json.dumps({"query": MUTATION})
AS_QUERY = urlencode({"query": MUTATION})
REPORT = "/report_asset_materialization/tokenizer"
SAME_SITE = ("sec-fetch-site", "same-site")  # a page on another port of the same name
LINK = (("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"))


ANSWER_SECONDS = 60


class Request(NamedTuple):
    """An HTTP request, or the opening of a websocket if the method is WEBSOCKET. `headers` may hold the same name twice."""

    method: str = "GET"
    path: str = "/graphql"
    headers: tuple[tuple[str, str], ...] = ()
    query: str = ""
    body: str = ""


class Answer(NamedTuple):
    """The answer to a request. For a websocket, `status` is 101 if it was accepted and 403 if it was refused."""

    status: int
    headers: dict[str, str]
    body: bytes


async def ask(app: ASGIApp, request: Request) -> Answer:
    """Return the answer of an ASGI app, without using a network. A websocket is closed as soon as the app accepts it."""
    is_websocket = request.method == "WEBSOCKET"
    scope: Scope = {
        "type": "websocket" if is_websocket else "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "ws" if is_websocket else "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "root_path": "",
        "query_string": request.query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in request.headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 1),
        "subprotocols": ["graphql-ws"],
    }
    incoming: list[Message] = (
        [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]
        if is_websocket
        else [{"type": "http.request", "body": request.body.encode()}, {"type": "http.disconnect"}]
    )
    sent: list[Message] = []

    async def receive() -> Message:
        return incoming.pop(0) if len(incoming) > 1 else incoming[0]

    async def send(message: Message) -> None:
        sent.append(message)

    await asyncio.wait_for(app(scope, receive, send), ANSWER_SECONDS)
    if is_websocket:
        return Answer(101 if sent and sent[0]["type"] == "websocket.accept" else 403, {}, b"")
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("home"))) as instance:
        yield instance


@pytest.fixture(scope="module")
def server(instance: dg.DagsterInstance) -> Iterator[Starlette]:
    """Dagster's own web server, without the guard."""
    with WorkspaceProcessContext(instance, workspace_load_target=EmptyWorkspaceTarget(), version="") as context:
        yield create_app_from_workspace_process_context(context)


def answer(app: ASGIApp, request: Request) -> Answer:
    return asyncio.run(ask(app, request))


def is_executed(app: ASGIApp, request: Request, instance: dg.DagsterInstance) -> bool:
    """Whether a request with MUTATION, or a report on the asset `tokenizer`, did what it says."""
    if request.path == REPORT:
        instance.wipe_assets([dg.AssetKey("tokenizer")])
        answer(app, request)
        return instance.get_latest_materialization_event(dg.AssetKey("tokenizer")) is not None
    return b'"setNuxSeen"' in answer(app, request).body


STRANGERS = {
    "a link or an image": Request(headers=(HOST,), query=AS_QUERY),
    "a path that is taken for another": Request(path="/graphql\n", headers=(HOST,), query=AS_QUERY),
    "a form": Request("POST", headers=(HOST, ("content-type", "application/x-www-form-urlencoded")), query=AS_QUERY),
    "a form of plain text": Request("POST", headers=(HOST, ("content-type", "text/plain")), query=AS_QUERY),
    "no content type": Request("POST", headers=(HOST,), query=AS_QUERY),
    "plain text that is called JSON": Request("POST", headers=(HOST, ("content-type", "text/plain;application/json")), body=AS_JSON),
    "a query as text": Request("POST", headers=(HOST, ("content-type", "application/graphql")), body=MUTATION),
    "a page on another port": Request("POST", headers=(HOST, JSON, ("origin", "http://127.0.0.1:3001")), body=AS_JSON),
    "a page on another name of this machine": Request("POST", headers=(HOST, JSON, ("origin", "http://localhost:3000")), body=AS_JSON),
    "a page from a file, or in a sandbox": Request("POST", headers=(HOST, JSON, ("origin", "null")), body=AS_JSON),
    "a page that hides its origin": Request("POST", headers=(HOST, JSON, ("origin", "")), body=AS_JSON),
    "two origins": Request("POST", headers=(HOST, JSON, ("origin", "http://evil"), ("origin", "http://127.0.0.1:3000")), body=AS_JSON),
    "a site without an origin": Request("POST", headers=(HOST, JSON, ("sec-fetch-site", "cross-site")), body=AS_JSON),
    "another port without an origin": Request("POST", headers=(HOST, JSON, SAME_SITE), body=AS_JSON),
    "a name that now points here": Request(
        "POST", headers=(("host", "evil.example:3000"), JSON, ("origin", "http://evil.example:3000")), body=AS_JSON
    ),
    "a name that begins like ours": Request("POST", headers=(("host", "127.0.0.1:3000.evil.example"), JSON), body=AS_JSON),
    "an address that reaches this machine": Request("POST", headers=(("host", "0.0.0.0:3000"), JSON), body=AS_JSON),
    "no host": Request("POST", headers=(JSON,), body=AS_JSON),
    "two hosts": Request("POST", headers=(("host", "evil.example:3000"), HOST, JSON), body=AS_JSON),
    "a report without a type": Request("POST", REPORT, headers=(HOST,)),
    "a report of another origin": Request("POST", REPORT, headers=(HOST, JSON, ("origin", "http://evil.example")), body="{}"),
}


@pytest.mark.parametrize("what", STRANGERS)
def test_what_a_strangers_page_sends_is_executed_by_the_server_and_not_behind_the_guard(
    what: str, server: Starlette, instance: dg.DagsterInstance
) -> None:
    request = STRANGERS[what]
    assert is_executed(server, request, instance), "refused by the server itself: this shows nothing"
    assert not is_executed(WebGuard(server, port=PORT), request, instance)
    refused = answer(WebGuard(server, port=PORT), request)
    assert refused.status in (403, 405, 415)
    assert refused.body.startswith(b"niels-cache ui: refused: ")
    assert len(refused.body) < 250


@pytest.mark.parametrize("name", ["127.0.0.1:3000", "localhost:3000", "LOCALHOST:3000", "[::1]:3000"])
@pytest.mark.parametrize("site", [(), (("sec-fetch-site", "same-origin"),)])
@pytest.mark.parametrize("has_origin", [True, False])
def test_the_ui_under_each_of_its_names_is_served(
    name: str, site: tuple[tuple[str, str], ...], has_origin: bool, server: Starlette, instance: dg.DagsterInstance
) -> None:
    origin = (("origin", f"http://{name.lower()}"),) if has_origin else ()
    charset = ("content-type", "application/json; charset=utf-8")
    request = Request("POST", headers=(("host", name), charset, *origin, *site), body=AS_JSON)
    assert is_executed(WebGuard(server, port=PORT), request, instance)


def test_programs_may_report_and_read_only_servers_take_no_report(server: Starlette, instance: dg.DagsterInstance) -> None:
    request = Request("POST", REPORT, headers=(HOST, JSON), body='{"description": "made elsewhere"}')
    assert is_executed(WebGuard(server, port=PORT), request, instance)
    assert not is_executed(WebGuard(server, port=PORT, read_only=True), request, instance)


@pytest.mark.parametrize("path", ["/", "/assets/pretrain/meta_json", "/runs/0123", "/favicon.ico"])
def test_a_link_opens_a_page_of_the_ui_and_no_page_shows_it_as_its_own(path: str, server: Starlette) -> None:
    guard = WebGuard(server, port=PORT)
    assert answer(guard, Request(path=path, headers=(HOST, *LINK))).status == 200
    for embedded in ("iframe", "embed", "object"):
        assert answer(guard, Request(path=path, headers=(HOST, *LINK[:2], ("sec-fetch-dest", embedded)))).status == 403
    assert answer(guard, Request(path=path, headers=(HOST, SAME_SITE, ("sec-fetch-mode", "no-cors")))).status == 403
    headers = answer(guard, Request(path=path, headers=(HOST,))).headers
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_a_path_that_leads_upwards_is_refused_before_the_app_sees_it(server: Starlette) -> None:
    refused = answer(WebGuard(server, port=PORT), Request(path="/logs/../../../etc/passwd", headers=(HOST,)))
    assert (refused.status, b"leads upwards" in refused.body) == (403, True)


@pytest.mark.parametrize("path", ["/graphql", "//graphql", "/GraphQL/", "/logs/1/stdout", "/download_debug/1", "/server_info", REPORT])
def test_a_link_opens_nothing_but_pages(path: str, server: Starlette) -> None:
    request = Request(path=path, headers=(HOST, *LINK, ("accept", "text/html")))
    assert answer(WebGuard(server, port=PORT), request).status in (403, 405)


def test_no_query_string_reaches_the_server() -> None:
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["query_string"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    for request in (Request(path="/x"), Request(path="/server_info"), Request("POST", headers=(JSON,), body="{}"), Request("HEAD", "/")):
        answer(WebGuard(app, port=PORT), request._replace(headers=(HOST, *request.headers), query=AS_QUERY))
    assert seen == [b""] * 4


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_other_methods_are_refused_so_that_no_preflight_succeeds(method: str, server: Starlette) -> None:
    request = Request(method, headers=(HOST, ("origin", "http://127.0.0.1:3000"), ("access-control-request-method", "POST"), JSON))
    refused = answer(WebGuard(server, port=PORT), request)
    assert refused.status == 405
    assert not [name for name in refused.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((HOST, ("origin", "http://127.0.0.1:3000")), 101),
        ((HOST,), 101),
        ((HOST, ("origin", "http://127.0.0.1:3001")), 403),
        ((HOST, ("origin", "null")), 403),
        ((HOST, SAME_SITE), 403),
        ((HOST, *LINK), 403),
        ((("host", "evil.example:3000"), ("origin", "http://evil.example:3000")), 403),
    ],
)
def test_a_websocket_is_for_the_ui_alone(headers: tuple[tuple[str, str], ...], status: int, server: Starlette) -> None:
    request = Request("WEBSOCKET", headers=headers)
    assert answer(server, request).status == 101
    assert answer(WebGuard(server, port=PORT), request).status == status


def test_websockets_are_for_graphql_alone(server: Starlette) -> None:
    assert answer(WebGuard(server, port=PORT), Request("WEBSOCKET", "/", headers=(HOST,))).status == 403


def test_a_websocket_executes_no_mutation(server: Starlette) -> None:
    """Which the guard relies on: it looks at who opens a websocket, not at what is said there."""

    async def talk() -> list[Message]:
        incoming = [
            {"type": "websocket.connect"},
            *({"type": "websocket.receive", "text": json.dumps(message)} for message in (
                {"type": "connection_init"},
                {"type": "start", "id": "1", "payload": {"query": MUTATION}},
                {"type": "start", "id": "2", "payload": {"query": "{ version }"}},
            )),
            {"type": "websocket.disconnect", "code": 1000},
        ]  # fmt: skip
        sent: list[Message] = []

        async def receive() -> Message:
            return incoming.pop(0)

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "websocket", "path": "/graphql", "root_path": "", "query_string": b"", "headers": [], "subprotocols": []}
        await server(scope, receive, send)
        return sent

    answers = [json.loads(message["text"]) for message in asyncio.run(talk()) if message["type"] == "websocket.send"]
    assert [message["type"] for message in answers] == ["connection_ack", "error", "error"]


MALFORMED = {
    "cut": '{"query": "{ver',
    "nothing": "",
    "a number": "7",
    "a list": "[[]]",
    "a deep list": "[" * 100_000,
    "an endless number": '{"query": "{ version }", "variables": {"a": ' + "9" * 5_000 + "}}",
}
MALFORMED_QUERIES = {
    "a query that is no text": '{"query": 7}',
    "variables that are a number": '{"query": "{ version }", "variables": 7}',
    "variables that are a list": '{"query": "{ version }", "variables": [1]}',
}


@pytest.mark.parametrize("what", [*MALFORMED, *MALFORMED_QUERIES])
def test_a_malformed_body_is_refused_before_the_server_fails_at_it(what: str, server: Starlette) -> None:
    for path, bodies in (("/graphql", MALFORMED | MALFORMED_QUERIES), (REPORT, MALFORMED)):
        if what in bodies:
            refused = answer(WebGuard(server, port=PORT), Request("POST", path, headers=(HOST, JSON), body=bodies[what]))
            assert refused.status == 400
            assert refused.body.startswith(b"niels-cache ui: refused: ")


READ_ONLY = {
    "a mutation": {"query": MUTATION},
    "one of several": {"query": "query A { version } mutation B { setNuxSeen }", "operationName": "A"},
    "a document without a query": {"query": "fragment F on Query { version }", "variables": {}},
    "no text": {"query": 7},
    "nothing": {},
    "a list": [{"query": MUTATION}],
    "no GraphQL": {"query": "mutation {"},
    "a deep one": {"query": "{a" * 10_000},
}


@pytest.mark.parametrize("what", READ_ONLY)
def test_a_read_only_server_takes_queries_alone(what: str, server: Starlette) -> None:
    guard = WebGuard(server, port=PORT, read_only=True)
    refused = answer(guard, Request("POST", headers=(HOST, JSON), body=json.dumps(READ_ONLY[what])))
    assert refused.status in (400, 403)
    assert b"setNuxSeen" not in refused.body
    for query in ("{ version }", "query Version { version } # mutation { setNuxSeen }"):
        taken = answer(guard, Request("POST", headers=(HOST, JSON), body=json.dumps({"query": query, "variables": None})))
        assert (taken.status, b'"version"' in taken.body) == (200, True)


def test_a_read_only_server_hands_on_what_it_judged() -> None:
    """Of a key that stands there twice one parser may take the first, another the last."""
    handed_on = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        handed_on.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})

    body = f'{{"query": "{MUTATION}", "query": "{{ version }}"}}'
    answer(WebGuard(app, port=PORT, read_only=True), Request("POST", headers=(HOST, JSON), body=body))
    assert handed_on == [{"type": "http.request", "body": b'{"query": "{ version }"}'}]


def test_a_read_only_server_reads_no_body_without_end(server: Starlette, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_guard, "MAX_GRAPHQL_BYTES", 100)
    body = json.dumps({"query": "{ version }" + " " * 100})
    assert answer(WebGuard(server, port=PORT, read_only=True), Request("POST", headers=(HOST, JSON), body=body)).status == 413


def test_who_comes_by_another_name_is_told_where_the_server_listens(server: Starlette) -> None:
    refused = answer(WebGuard(server, port=PORT, name="[::1]"), Request(headers=(("host", "here:3000"),)))
    assert missing(refused.body.decode(), "http://[::1]:3000", "tunnel", "ssh -L 3000:[::1]:3000") == []


def test_every_route_of_the_installed_server_is_known_and_another_is_refused(server: Starlette) -> None:
    assert len(server.routes) > 10
    refuse_unknown_routes(server.routes)
    for route in (Route("/run_anything", print, methods=["GET"]), Route("/graphql", print, methods=["PUT"]), Route("/graphql", print)):
        with pytest.raises(NielsCacheError, match=r"not cover: (GET/HEAD /run_anything|(PUT|ANY) /graphql)$"):
            refuse_unknown_routes([*server.routes, route])
