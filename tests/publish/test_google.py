"""Push and pull of a gs:// address: its conditional PUT compares generations, not ETags."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from niels_cache_assets.publish.check import check
from niels_cache_assets.publish.pull import pull
from niels_cache_assets.publish.push import open_local_build, prune, push
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.remote.record import read_record
from niels_cache_runtime.remote.store import ConflictError, RemoteError, open_store
from niels_cache_runtime.verify import verify_cache
from tests.helpers.remote_caches import Caches, keys_of, letters, record_at

BUCKET = "caches"
ADDRESS = f"gs://{BUCKET}/at/letters"
RECORD = "at/letters/meta.json"
_TIME = "Tue, 24 Nov 2026 00:00:00 GMT"
_META = "x-goog-meta-"


class Object(NamedTuple):
    content: bytes
    generation: int
    meta: dict[str, str]


class LoopbackGcs:
    """The part of Google's storage API that obstore uses: objects with generations, and conditions on these.

    A PUT with `x-goog-if-generation-match` is refused if the object has another generation; 0 stands for no object. Headers of S3's
    conditions are ignored, as Google ignores them for a PUT. `objects` has every object of the bucket by key. `requests` has the method,
    the key and the condition of each request. is_conditional: whether conditions count.
    """

    def __init__(self) -> None:
        pytest.importorskip("obstore", reason="obstore is not installed (the extra remote)")
        self.objects: dict[str, Object] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        self.lock, self.generation = threading.Lock(), 1_000
        self.is_conditional = True
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"gcs": self}))
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        url = f"http://127.0.0.1:{self._server.server_port}"
        account = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        self.env = {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account), "GOOGLE_ALLOW_HTTP": "true"}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


class _Handler(BaseHTTPRequestHandler):
    gcs: LoopbackGcs
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        key = unquote(url.path).removeprefix(f"/{BUCKET}").lstrip("/")
        condition = self.headers.get("x-goog-if-generation-match") if self.gcs.is_conditional else None
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.gcs.lock:
            self.gcs.requests.append((self.command, key, condition))
            found = self.gcs.objects.get(key)
            if self.command == "PUT":
                self._put(key, body, found, condition)
            elif self.command == "DELETE":
                self.gcs.objects.pop(key, None)
                self._answer(204 if found else 404)
            elif not key:
                self._list(parse_qs(url.query))
            elif found is None:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            else:
                self._content(found)

    do_HEAD = do_PUT = do_DELETE = do_GET

    def _put(self, key: str, body: bytes, found: Object | None, condition: str | None) -> None:
        if condition is not None and int(condition) != (found.generation if found else 0):
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        self.gcs.generation += 1
        meta = {name.lower(): value for name, value in self.headers.items() if name.lower().startswith(_META)}
        self.gcs.objects[key] = Object(body, self.gcs.generation, meta)
        self._answer(200, headers=_state_of(self.gcs.objects[key]))

    def _content(self, found: Object) -> None:
        headers = {**_state_of(found), **found.meta, "Last-Modified": _TIME}
        wanted = self.headers.get("Range")
        if wanted is None:
            self._answer(200, found.content, headers)
            return
        start, _, last = wanted.removeprefix("bytes=").partition("-")
        part = found.content[int(start) : int(last) + 1 if last else None]
        place = f"bytes {start}-{int(start) + len(part) - 1}/{len(found.content)}"
        self._answer(206, part, {**headers, "Content-Range": place})

    def _list(self, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-24T00:00:00.000Z</LastModified><ETag>{_e_tag(each.content)}</ETag>"
            f"<Size>{len(each.content)}</Size></Contents>"
            for key, each in sorted(self.gcs.objects.items())
            if key.startswith(prefix)
        )
        self._answer(200, f"<ListBucketResult>{entries}<IsTruncated>false</IsTruncated></ListBucketResult>".encode())

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _e_tag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _state_of(found: Object) -> dict[str, str]:
    return {"ETag": _e_tag(found.content), "x-goog-generation": str(found.generation)}


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackGcs]:
    """An empty bucket. The environment of the test has its endpoint."""
    server = LoopbackGcs()
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    yield server
    server.close()


def test_a_cache_travels_through_google(gcs: LoopbackGcs, caches: Caches, tmp_path: Path) -> None:
    build = letters(caches)
    pushed = push(build, ADDRESS)
    assert (pushed.state, pushed.sent) == ("published", len(build.files))
    assert keys_of(build) | {RECORD} <= gcs.objects.keys()
    assert push(build, ADDRESS).sent == 0
    assert check(ADDRESS, download=True).findings == []
    pulled = pull(ADDRESS, tmp_path)
    assert pulled.meta == build.meta
    assert verify_cache(tmp_path) == []


def test_replace_exchanges_the_generation_that_was_read(gcs: LoopbackGcs, caches: Caches) -> None:
    old, new = letters(caches), open_local_build(caches.other)
    push(old, ADDRESS)
    generation = gcs.objects[RECORD].generation
    gcs.requests.clear()
    assert push(new, ADDRESS, replace_other=True).state == "replaced"
    assert [condition for method, key, condition in gcs.requests if (method, key) == ("PUT", RECORD)] == [str(generation)]
    assert record_at(ADDRESS).previous == (old.record.content_sha256,)
    assert list(prune(ADDRESS).builds) == [old.record.content_sha256]
    assert not keys_of(old) & gcs.objects.keys()
    assert check(ADDRESS, download=True).findings == []


def test_a_record_is_created_once_and_replaced_only_as_it_was_read(gcs: LoopbackGcs, caches: Caches) -> None:
    store, build = open_store(ADDRESS), letters(caches)
    push(build, ADDRESS)
    with pytest.raises(ConflictError):
        store.write_if(META_NAME, b"{}", state=None)
    _, read = read_record(store)
    push(open_local_build(caches.other), ADDRESS, replace_other=True)
    with pytest.raises(ConflictError):
        store.write_if(META_NAME, build.record.content(), state=read)
    assert record_at(ADDRESS).previous == (build.record.content_sha256,)


def test_a_store_that_ignores_generations_is_refused(gcs: LoopbackGcs, caches: Caches) -> None:
    gcs.is_conditional = False
    with pytest.raises(RemoteError, match="conditional PUT"):
        push(letters(caches), ADDRESS)
    assert RECORD not in gcs.objects
