"""A guard in front of Dagster's web server, so that no web page but the UI's own can start, change or read anything: pure ASGI.

Dagster's server has no login. It executes GraphQL mutations sent by GET, takes `text/plain;application/json` for JSON, and looks at neither
Host nor Origin: every page in the user's browser could launch runs or delete history, on 127.0.0.1 too. What it serves, and what this does:

    POST      /graphql, /report_asset_{materialization,check,observation}/...   application/json only, Origin the UI's or absent
    GET       /graphql                                   the page of the GraphQL editor alone; no query is ever passed on
    GET       /logs, /download_debug, /server_info       only from the UI itself, or typed into the address bar
    GET       /notebook, /dagit/notebook                 refused: they render any notebook file of the machine, scripts included
    GET       every other path: the UI's page, its files from anywhere by a link, but not as part of another page
    websocket /graphql                                   Origin the UI's or absent; Dagster executes subscriptions there, nothing else

Of all: Host is this server's (another one means a name that was pointed at 127.0.0.1: DNS rebinding), Sec-Fetch-Site, where the browser
sends it, is the UI's own; no query string is passed on; the answer may not be framed or embedded. `read_only` refuses every mutation
and report beforehand, whatever Dagster would do with them. Cost: some comparisons per request; a body is parsed once more.

`check_guard` asks a guarded server, before it listens, whether it refuses what web pages of strangers may send and still serves its UI.
That takes part of a second and touches nothing: the mutation that is sent asks for its own type name. It is for the day when an update of
the web server makes the guard not fit; that the guard is right at all, tests/test_web_guard.py shows.

What does not belong here: who may log in. Whoever can open a connection to the port as a program, not as a web page, is let through.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from niels_cache_runtime.errors import NielsCacheError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_GRAPHQL_BYTES = 1 << 20  # of a query's body where the server is read-only; the UI's own are some KB
MAX_BODY_BYTES = 1 << 25  # of any other
_GRAPHQL_KEYS: dict[str, tuple[type, ...]] = {"query": (str,), "variables": (dict, str), "operationName": (str,)}

_READ = frozenset({"GET", "HEAD"})
_GRAPHQL = "graphql"
_REPORTS = frozenset({"report_asset_materialization", "report_asset_check", "report_asset_observation"})
_NOTEBOOKS = frozenset({"notebook", "dagit"})
_NOT_PAGES = frozenset({_GRAPHQL, "logs", "download_debug", "server_info", "dagit_info"}) | _REPORTS | _NOTEBOOKS

# What Dagster's server has been seen to serve. Another route may do what nobody here has thought about: refuse_unknown_routes.
_KNOWN_ROUTES = {
    "/graphql": _READ | {"POST", "WEBSOCKET"},
    **{f"/{report}/{{asset_key:path}}": frozenset({"POST"}) for report in _REPORTS},
    **dict.fromkeys(("/server_info", "/dagit_info", "/logs/{path:path}", "/download_debug/{run_id:str}"), _READ),
    **dict.fromkeys(("/notebook", "/dagit/notebook", "/{path:path}", "/"), _READ),
}
_STATIC = "_static"  # how Dagster names the routes of the UI's own files

_OWN_HEADERS = [
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"frame-ancestors 'none'"),  # beside the app's own policy: browsers hold both
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
]
_REPLACED_HEADERS = frozenset(name for name, _ in _OWN_HEADERS) - {b"content-security-policy"}


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        self.status, self.reason = status, reason


class WebGuard:
    """An ASGI app that hands on to `app` what the UI itself asks for, and refuses the rest with a short page (400, 403, 405, 413 or 415).

    `port` is where the server listens: with 127.0.0.1, localhost and [::1] it makes the names that Host may have. `name` is which of
    them is told to who comes by another.
    """

    def __init__(self, app: App, *, port: int, name: str = "127.0.0.1", read_only: bool = False) -> None:
        self._app, self._read_only = app, read_only
        hosts = [f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")]
        self._hosts = {host.encode() for host in (*hosts, *(host.removesuffix(":80") for host in hosts))}
        self._advice = f"open http://{name}:{port}; through a tunnel keep the port: ssh -L {port}:{name}:{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        try:
            headers = _single_headers(scope)
            self._check_caller(scope, headers)
            if scope["type"] == "websocket":
                if _room(scope) != _GRAPHQL:
                    raise _Refused(403, "no websocket here")
                return await self._app(scope, receive, send)
            self._check_method(scope, headers)
            scope = {**scope, "query_string": b""}  # so that no GET can carry a query, whatever the app would do with it
            if scope["method"] == "POST":
                receive = await _well_formed(receive, _room(scope), read_only=self._read_only)
        except _Refused as refused:
            return await _refuse(scope, send, refused)
        await self._app(scope, receive, _with_own_headers(send))

    def _check_caller(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").lower()
        if host not in self._hosts:
            raise _Refused(403, f"this name (Host) is not the server's; {self._advice}")
        if headers.get(b"origin", b"http://" + host) != b"http://" + host:
            raise _Refused(403, "another web page asked for this (Origin)")
        if any(ord(character) < 32 for character in scope["path"]):  # Starlette takes "/graphql\n" for "/graphql"
            raise _Refused(403, "a path with control characters")
        if ".." in scope["path"].split("/"):  # Dagster refuses it too, with a traceback
            raise _Refused(403, "a path that leads upwards")
        if headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none") and not _is_link(scope, headers):
            raise _Refused(403, "another web page asked for this (Sec-Fetch-Site)")

    def _check_method(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        method, room = scope["method"], _room(scope)
        if room in _NOTEBOOKS:
            raise _Refused(403, "notebooks are not served here")
        if method == "POST" and (room == _GRAPHQL or room in _REPORTS):
            if headers.get(b"content-type", b"").split(b";")[0].strip() != b"application/json":
                raise _Refused(415, "send application/json")
            if self._read_only and room in _REPORTS:
                raise _Refused(403, "this server is read-only")
        elif method not in _READ or room in _REPORTS:
            raise _Refused(405, "no such method here")
        elif room == _GRAPHQL and b"text/html" not in headers.get(b"accept", b""):
            raise _Refused(405, "GraphQL by POST of application/json only")


def refuse_unknown_routes(routes: Iterable[Any]) -> None:
    """Raise NielsCacheError if a Starlette app has routes that this guard was not written for."""
    for route in routes:
        methods = getattr(route, "methods", {"WEBSOCKET"}) or {"ANY"}  # of Starlette's routes only those of websockets have none
        if not (str(route.name).endswith(_STATIC) or methods <= _KNOWN_ROUTES.get(route.path, frozenset())):
            raise NielsCacheError(f"the web server has a route that the guard does not know: {'/'.join(sorted(methods))} {route.path}")


def _single_headers(scope: Scope) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in headers and name in (b"host", b"origin", b"content-type", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"):
            raise _Refused(403, f"more than one {name.decode()} header")
        headers[name] = value
    return headers


def _room(scope: Scope) -> str:
    """The first part of the path, which says what is asked for."""
    room: str = scope["path"].lstrip("/").partition("/")[0].lower()
    return room


def _is_link(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    """Someone followed a link to a page of the UI: it opens on its own, and the page with the link cannot read it."""
    goes_to = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")
    return goes_to == (b"navigate", b"document") and scope.get("method") == "GET" and _room(scope) not in _NOT_PAGES


async def _well_formed(receive: Receive, room: str, *, read_only: bool) -> Receive:
    """The request again, after its body was read and found to be what Dagster's server takes: of other JSON it makes a 500 and a traceback.

    Where it is `read_only`, of queries alone.
    """
    body, more, most = b"", True, MAX_GRAPHQL_BYTES if read_only else MAX_BODY_BYTES
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > most:
            raise _Refused(413, f"more than {most} bytes")
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _Refused(400, "this is not JSON that can be read") from error
    if not isinstance(request, dict):
        raise _Refused(400, f"a JSON {type(request).__name__}; send one object")
    if room == _GRAPHQL:
        for key, forms in _GRAPHQL_KEYS.items():
            if not isinstance(request.get(key), (*forms, type(None))):
                raise _Refused(400, f"{key} is a JSON {type(request[key]).__name__}")
    if read_only:
        _refuse_mutations(request)
        body = json.dumps(request).encode()  # what was judged, not what another parser may see in it
    read = [{"type": "http.request", "body": body}]

    async def receive_again() -> Message:
        return read.pop() if read else await receive()

    return receive_again


def _refuse_mutations(request: dict[str, Any]) -> None:
    from graphql import GraphQLError, OperationDefinitionNode, OperationType, parse

    try:
        operations = [node for node in parse(request["query"]).definitions if isinstance(node, OperationDefinitionNode)]
    except (ValueError, TypeError, LookupError, RecursionError, GraphQLError) as error:
        raise _Refused(403, "this server is read-only, and this is not a GraphQL query") from error
    if any(operation.operation == OperationType.MUTATION for operation in operations):
        raise _Refused(403, "this server is read-only")


def _with_own_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in _REPLACED_HEADERS]
            message = {**message, "headers": kept + _OWN_HEADERS}
        await send(message)

    return send_with_headers


async def _refuse(scope: Scope, send: Send, refused: _Refused) -> None:
    if scope["type"] == "websocket":
        return await send({"type": "websocket.close", "code": 1008, "reason": refused.reason})
    body = f"niels-cache ui: refused: {refused.reason}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers + _OWN_HEADERS})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


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
