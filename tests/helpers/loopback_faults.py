"""The faults in answers of the loopback hub. Each fault has a name, and `Faults` decides when it occurs.

A fault changes one answer. The next answer to the same request is right, unless a fault is due for that request too.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler

import torch

Headers = dict[str, str]
_NUMBERS = itertools.count()  # all wrong answers differ


class Faults:
    """Faults in the order of requests. `turns` gives the fault of each request whose method and path `matching` accepts, or None for a
    right answer.
    """

    def __init__(self, turns: Iterable[str | None] = (), *, matching: Callable[[str, str], bool] = lambda method, path: True) -> None:
        self._turns: Iterator[str | None] = iter(turns)
        self._matching = matching
        self._lock = threading.Lock()
        self.made: list[tuple[str, str, str]] = []

    def next(self, method: str, path: str) -> str | None:
        with self._lock:
            fault = next(self._turns, None) if self._matching(method, path) else None
            if fault is not None:
                self.made.append((fault, method, path))
            return fault


class ByName(Faults):
    """Faults for the repositories of each owner, or the files of each folder, as {name: faults}."""

    def __init__(self, faults: dict[str, Faults]) -> None:
        super().__init__()
        self._faults = faults

    def next(self, method: str, path: str) -> str | None:
        return next((faults.next(method, path) for name, faults in self._faults.items() if f"/{name}/" in path), None)


def at_random(share: float, seed: int) -> Iterator[str | None]:
    """Random faults that go away after another try, for this share of all requests."""
    generator = torch.Generator().manual_seed(seed)
    names = sorted({*BEFORE_ANSWERS, *IN_ANSWERS, "whole"} - {"429 for an hour"})
    while True:
        chance, which = torch.rand(2, generator=generator).tolist()
        yield names[int(which * len(names))] if chance < share else None


def _reset(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def _silence(handler: BaseHTTPRequestHandler) -> None:
    """Send no answer until the client gives up."""
    handler.close_connection = True
    handler.connection.settimeout(30)
    handler.connection.recv(1)


def _status(status: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": "0", **{name.replace("_", "-"): value for name, value in headers.items()}}.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


BEFORE_ANSWERS: dict[str | None, Callable[[BaseHTTPRequestHandler], None]] = {
    "reset": _reset,
    "silence": _silence,
    "408": _status(408),
    "429": _status(429, Retry_After="0"),
    "429 for a second": _status(429, Retry_After="1"),
    "429 for an hour": _status(429, Retry_After="3600"),
    **{str(status): _status(status) for status in (500, 502, 503, 504)},
}


def _cut(handler: BaseHTTPRequestHandler, headers: Headers, body: bytes) -> tuple[Headers, list[bytes]]:
    handler.close_connection = True
    return headers, [body[: len(body) // 2]]


def _without_length(handler: BaseHTTPRequestHandler, headers: Headers, body: bytes) -> tuple[Headers, list[bytes]]:
    """Cut the body at a place that looks like its end."""
    handler.close_connection = True
    return {name: value for name, value in headers.items() if name != "Content-Length"}, [body[: len(body) // 2]]


def _reset_within(handler: BaseHTTPRequestHandler, headers: Headers, body: bytes) -> tuple[Headers, Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        yield body[: len(body) // 2]
        time.sleep(0.01)  # a reset that arrives before the bytes would be the other fault
        _reset(handler)

    return headers, pieces()


def _dripping(handler: BaseHTTPRequestHandler, headers: Headers, body: bytes) -> tuple[Headers, Iterator[bytes]]:
    """Send a few bytes at a time, each before the timeout, and never end."""
    handler.close_connection = True

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(body) - 1):
            yield body[start : start + 1]
            time.sleep(0.02)

    return headers, pieces()


def _too_short(handler: BaseHTTPRequestHandler, headers: Headers, body: bytes) -> tuple[Headers, list[bytes]]:
    """Send a Content-Length that leaves out the end of the body."""
    handler.close_connection = True
    missing = 1 + next(_NUMBERS) % 50
    return {**headers, "Content-Length": str(max(0, int(headers["Content-Length"]) - missing))}, [body[: max(0, len(body) - missing)]]


def _too_long(handler: BaseHTTPRequestHandler, headers: Headers, body: bytes) -> tuple[Headers, list[bytes]]:
    handler.close_connection = True
    return {**headers, "Content-Length": str(int(headers["Content-Length"]) + 1 + next(_NUMBERS) % 50)}, [body]


def _another_version(handler: BaseHTTPRequestHandler, headers: Headers, body: bytes) -> tuple[Headers, list[bytes]]:
    """Send other bytes, with their ETag (or time). If the answer has neither, cut it."""
    names = [name for name in ("ETag", "X-Linked-ETag", "Last-Modified") if name in headers]
    if not names:
        return _too_short(handler, headers, body)
    return {**headers, **dict.fromkeys(names, f'"version {next(_NUMBERS)}"')}, [bytes(byte ^ 1 for byte in body)]


def _another_commit(handler: BaseHTTPRequestHandler, headers: Headers, body: bytes) -> tuple[Headers, list[bytes]]:
    if "X-Repo-Commit" not in headers:
        return _another_version(handler, headers, body)
    return {**headers, "X-Repo-Commit": "0" * 40}, [bytes(byte ^ 1 for byte in body)]


def _other_bytes(handler: BaseHTTPRequestHandler, headers: Headers, body: bytes) -> tuple[Headers, list[bytes]]:
    """Send a Content-Range that was not requested. If the answer has none, cut it."""
    if "Content-Range" in headers:
        return {**headers, "Content-Range": f"bytes 1-{len(body)}/{len(body) + 1}"}, [body[::-1]]
    return _too_short(handler, headers, body)


IN_ANSWERS: dict[str | None, Callable[[BaseHTTPRequestHandler, Headers, bytes], tuple[Headers, Iterable[bytes]]]] = {
    "cut": _cut,
    "ends without a length": _without_length,
    "reset within": _reset_within,
    "drip": _dripping,
    "too short": _too_short,
    "too long": _too_long,
    "another version": _another_version,
    "another commit": _another_commit,
    "other bytes": _other_bytes,
}
