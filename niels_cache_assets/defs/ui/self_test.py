"""Whether a guarded web server refuses what web pages of strangers may send, and still serves its UI: asked of it before it listens.

It takes part of a second and touches nothing: the mutation that is sent asks for its own type name. It is for the day when an update of the
web server makes the guard not fit; that the guard is right at all, tests/test_web_guard.py shows.
"""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple
from urllib.parse import urlencode

from niels_cache_assets.defs.ui.guard import App, Message, Scope
from niels_cache_runtime.errors import NielsCacheError

ANSWER_SECONDS = 60
MUTATION = "mutation { __typename }"
JSON = "application/json"


class Request(NamedTuple):
    """An HTTP request, or the opening of a websocket where the method is WEBSOCKET. `headers` may hold a name twice."""

    method: str = "GET"
    path: str = "/graphql"
    headers: tuple[tuple[str, str], ...] = ()
    query: str = ""
    body: str = ""


class Answer(NamedTuple):
    """`status` of a websocket: 101 accepted, 403 refused."""

    status: int
    headers: dict[str, str]
    body: bytes


async def check_guard(app: App, *, port: int, read_only: bool) -> None:
    """Raise NielsCacheError where a request of a stranger is not refused, or one of the UI is not answered."""
    host, own, other = ("host", f"127.0.0.1:{port}"), ("origin", f"http://127.0.0.1:{port}"), ("origin", "http://attacker.example")
    as_json, as_text = ("content-type", JSON), ("content-type", "text/plain;application/json")
    mutation, query = json.dumps({"query": MUTATION}), json.dumps({"query": "{ __typename }"})
    websocket = ("sec-websocket-protocol", "graphql-ws")
    strangers = {
        "a mutation by GET": Request(headers=(host,), query=urlencode({"query": MUTATION})),
        "a mutation that is no JSON": Request("POST", headers=(host, as_text), body=mutation),
        "another Host": Request("POST", headers=(("host", f"attacker.example:{port}"), as_json), body=query),
        "another Origin": Request("POST", headers=(host, other, as_json), body=query),
        "a websocket of another Origin": Request("WEBSOCKET", headers=(host, other, websocket)),
    }
    if read_only:
        strangers["a mutation, read-only"] = Request("POST", headers=(host, own, as_json), body=mutation)
    for what, request in strangers.items():
        answer = await ask(app, request)
        if not 400 <= answer.status < 500:
            raise NielsCacheError(f"the guard let through {what}")
    for what, status, request in (
        ("its page", 200, Request(path="/", headers=(host,))),
        ("a query", 200, Request("POST", headers=(host, own, as_json), body=query)),
        ("a websocket", 101, Request("WEBSOCKET", headers=(host, own, websocket))),
    ):
        answer = await ask(app, request)
        if answer.status != status:
            raise NielsCacheError(f"the web server answers {what} with {answer.status}")


async def ask(app: App, request: Request) -> Answer:
    """What an ASGI app answers, without a network. A websocket is closed again as soon as it was accepted."""
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
