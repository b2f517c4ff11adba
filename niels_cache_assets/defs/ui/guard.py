"""A guard (a filter of requests) in front of Dagster's web server, which lets only the UI's own pages start, change or read anything.

The guard is pure ASGI. Dagster's server has no login. It executes GraphQL mutations sent by GET, accepts `text/plain;application/json` as
JSON, and checks neither Host nor Origin. Without a guard, every page in the user's browser could launch runs or delete history, even on
127.0.0.1. These are the routes of the server and the rules of the guard:

    POST      /graphql, /report_asset_{materialization,check,observation}/...   application/json only, Origin the UI's or absent
    GET       /graphql                                   only the page of the GraphQL editor; no query is ever passed on
    GET       /logs, /download_debug, /server_info       only from the UI itself, or typed into the address bar
    GET       /notebook, /dagit/notebook                 refused: they render any notebook file of the machine, scripts included
    GET       /search/...                                our own pages about caches, with their query; only from the UI itself, or typed
    GET       every other path: the UI's page and its files; links from other pages work, embedding does not
    websocket /graphql                                   Origin the UI's or absent; Dagster executes only subscriptions there

These rules hold for all requests. Host must be a name of this server. (A different Host means DNS rebinding, where a foreign name points at
127.0.0.1.) If the browser sends Sec-Fetch-Site, the header must show that the request comes from the UI. Dagster gets no query string. The
answer cannot be framed or embedded. With `read_only`, the guard refuses every mutation and report before Dagster sees them. Each request
costs a few comparisons, and one more parse of its body.

tests/defs/ui/test_guard.py tests the rules against the installed server. `refuse_unknown_routes` refuses a server with a route that has no
rule here, for example after an update.

The guard does not decide who may log in. A program (not a web page) that can connect to the port is let through.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_GRAPHQL_BYTES = 1 << 20  # limit in bytes for a query to a read-only server; the UI's own queries have a few KB
MAX_BODY_BYTES = 1 << 25  # limit for every other body
_GRAPHQL_KEYS: dict[str, tuple[type, ...]] = {"query": (str,), "variables": (dict, str), "operationName": (str,)}

_READ = frozenset({"GET", "HEAD"})
_GRAPHQL = "graphql"
_REPORTS = frozenset({"report_asset_materialization", "report_asset_check", "report_asset_observation"})
_NOTEBOOKS = frozenset({"notebook", "dagit"})
_SEARCH = "search"
_NOT_PAGES = frozenset({_GRAPHQL, _SEARCH, "logs", "download_debug", "server_info", "dagit_info"}) | _REPORTS | _NOTEBOOKS

# The known routes of Dagster's server. An unknown route may be unsafe (see refuse_unknown_routes).
_KNOWN_ROUTES = {
    "/graphql": _READ | {"POST", "WEBSOCKET"},
    **{f"/{report}/{{asset_key:path}}": frozenset({"POST"}) for report in _REPORTS},
    **dict.fromkeys(("/server_info", "/dagit_info", "/logs/{path:path}", "/download_debug/{run_id:str}"), _READ),
    **dict.fromkeys(("/notebook", "/dagit/notebook", "/{path:path}", "/"), _READ),
}
_STATIC = "_static"  # suffix of the names of Dagster's routes for the UI's own files

_OWN_HEADERS = [
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"frame-ancestors 'none'"),  # in addition to the app's own policy; browsers apply both
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
]
_REPLACED_HEADERS = frozenset(name for name, _ in _OWN_HEADERS) - {b"content-security-policy"}


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        self.status, self.reason = status, reason


class WebGuard:
    """An ASGI app that passes the UI's own requests to `app`. All other requests get a short error page (400, 403, 405, 413 or 415).

    Args:
        app: The ASGI app of Dagster's web server.
        port: Port of the server. Host may be 127.0.0.1, localhost or [::1] with this port.
        name: Host name that the message of a refusal recommends; by default 127.0.0.1.
        read_only: Whether to refuse every mutation and report; by default no.
        search: The ASGI app of /search, or None.
    """

    def __init__(self, app: ASGIApp, *, port: int, name: str = "127.0.0.1", read_only: bool = False, search: ASGIApp | None = None) -> None:
        self._app, self._read_only, self._search = app, read_only, search
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
                if _first_path_part(scope) != _GRAPHQL:
                    raise _Refused(403, "no websocket here")
                return await self._app(scope, receive, send)
            self._check_method(scope, headers)
            if self._search is not None and _first_path_part(scope) == _SEARCH:
                return await self._search(scope, receive, _with_own_headers(send))
            scope = {**scope, "query_string": b""}  # so that no GET can carry a query to the app
            if scope["method"] == "POST":
                receive = await _check_body(receive, _first_path_part(scope), read_only=self._read_only)
        except _Refused as refused:
            return await _refuse(scope, receive, send, refused)
        await self._app(scope, receive, _with_own_headers(send))

    def _check_caller(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").lower()
        if host not in self._hosts:
            raise _Refused(403, f"this name (Host) is not the server's; {self._advice}")
        if headers.get(b"origin", b"http://" + host) != b"http://" + host:
            raise _Refused(403, "another web page asked for this (Origin)")
        if any(ord(character) < 32 for character in scope["path"]):  # Starlette treats "/graphql\n" as "/graphql"
            raise _Refused(403, "a path with control characters")
        if ".." in scope["path"].split("/"):  # Dagster also refuses such a path, but with a traceback
            raise _Refused(403, "a path that leads upwards")
        if headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none") and not _is_link(scope, headers):
            raise _Refused(403, "another web page asked for this (Sec-Fetch-Site)")

    def _check_method(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        method, route = scope["method"], _first_path_part(scope)
        if route in _NOTEBOOKS:
            raise _Refused(403, "notebooks are not served here")
        if method == "POST" and (route == _GRAPHQL or route in _REPORTS):
            if headers.get(b"content-type", b"").split(b";")[0].strip() != b"application/json":
                raise _Refused(415, "send application/json")
            if self._read_only and route in _REPORTS:
                raise _Refused(403, "this server is read-only")
        elif method not in _READ or route in _REPORTS:
            raise _Refused(405, "no such method here")
        elif route == _GRAPHQL and b"text/html" not in headers.get(b"accept", b""):
            raise _Refused(405, "GraphQL by POST of application/json only")


def refuse_unknown_routes(routes: Iterable[Any]) -> None:
    """Check that this guard covers all routes of a Starlette app.

    Raises:
        NielsCacheError: If it does not.
    """
    for route in routes:
        methods = getattr(route, "methods", {"WEBSOCKET"}) or {"ANY"}  # among Starlette's routes only websockets have no methods
        if not (str(route.name).endswith(_STATIC) or methods <= _KNOWN_ROUTES.get(route.path, frozenset())):
            raise NielsCacheError(f"the web server has a route that the guard does not cover: {'/'.join(sorted(methods))} {route.path}")


def _single_headers(scope: Scope) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in headers and name in (b"host", b"origin", b"content-type", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"):
            raise _Refused(403, f"more than one {name.decode()} header")
        headers[name] = value
    return headers


def _first_path_part(scope: Scope) -> str:
    """Return the first part of the path, which selects the rule for the request."""
    return scope["path"].lstrip("/").partition("/")[0].lower()


def _is_link(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    """Return whether someone followed a link to a page of the UI.

    A link opens the page of the UI as a separate document, so that the page with the link cannot read it.
    """
    goes_to = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")
    return goes_to == (b"navigate", b"document") and scope.get("method") == "GET" and _first_path_part(scope) not in _NOT_PAGES


async def _check_body(receive: Receive, route: str, *, read_only: bool) -> Receive:
    """Check the body of a request, and return a receive function that returns this body again.

    Without this check, Dagster's server would answer unexpected JSON with status 500 and a traceback. With `read_only`, only queries are
    accepted.
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
        raise _Refused(400, "this is not readable JSON") from error
    if not isinstance(request, dict):
        raise _Refused(400, f"a JSON {type(request).__name__}; send one object")
    if route == _GRAPHQL:
        for key, forms in _GRAPHQL_KEYS.items():
            if not isinstance(request.get(key), (*forms, type(None))):
                raise _Refused(400, f"{key} is a JSON {type(request[key]).__name__}")
    if read_only:
        _refuse_mutations(request)
        body = json.dumps(request).encode()  # send exactly the checked request, because a different parser may read the body differently
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


async def _refuse(scope: Scope, receive: Receive, send: Send, refused: _Refused) -> None:
    from starlette.responses import PlainTextResponse
    from starlette.websockets import WebSocketClose

    if scope["type"] == "websocket":
        return await WebSocketClose(1008, refused.reason)(scope, receive, send)
    answer = PlainTextResponse(f"niels-cache ui: refused: {refused.reason}\n", refused.status, {"connection": "close"})
    await answer(scope, receive, _with_own_headers(send))
