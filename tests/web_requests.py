"""Requests to an ASGI app without a network."""

import asyncio
from typing import NamedTuple

from niels_cache_assets.defs.ui.guard import App, Message, Scope

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


async def ask(app: App, request: Request) -> Answer:
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
