"""The part of the Hugging Face hub's HTTP API that data sets and tokenizers need, on 127.0.0.1, so that tests run the real loading code.

`HF_ENDPOINT` is read when huggingface_hub is imported, so code under test runs in a child process with `hub.env`. (`LoopbackHub` handles
HTTP only. The test decides the content of the repositories, and `loopback_faults` has the faults.)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from email.utils import formatdate
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.helpers.loopback_faults import BEFORE_ANSWERS, IN_ANSWERS, Faults

Repositories = dict[str, dict[str, bytes]]
_API = re.compile(r"/api/(?:datasets|models)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?")
_RESOLVE = re.compile(r"/(?:datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class LoopbackHub:
    """A server of {repository: {path: content}}. `requests` logs (method, path, Range header) of every request, and `served` counts the
    bytes of the answers.

    Replace `repositories[name]` to publish a new commit (requested commits stay). Add names to `gated`, or set `down` to answer everything
    with HTTP 503. If the name of a file ends in one of `large`, the answer is a redirect, as for the large file storage of the hub. `plain`
    files are served at /files/NAME as by any web server, and files in a folder `solid` without ranges. `faults` may change each answer.
    """

    def __init__(self, repositories: Repositories, hf_home: Path) -> None:
        self.repositories = repositories
        self.commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.down = False
        self.refused: dict[str, int] = {}  # repository -> HTTP status for its files
        self.large: tuple[str, ...] = ()
        self.plain: dict[str, bytes] = {}
        self.faults = Faults()
        self.requests: list[tuple[str, str, str | None]] = []
        self.served: list[int] = []
        self.tokens: set[tuple[str, str | None]] = set()  # (path, Authorization header) of each request
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self.env = {
            **inherited,
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(hf_home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": "1",
            "HF_HUB_ETAG_TIMEOUT": "1",
            "NIELS_CACHE_NETWORK_PATIENCE": "0",
        }

    def commit(self, repository: str) -> str:
        """Return the commit sha of the present content of the repository."""
        files = self.repositories[repository]
        sha = _oid(repr([(path, _oid(content)) for path, content in sorted(files.items())]).encode())
        self.commits[repository, sha] = files
        return sha

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    fault: str | None = None
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self.hub.tokens.add((self.path, self.headers.get("Authorization")))
        self.hub.requests.append((self.command, unquote(self.path), self.headers.get("Range")))
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(url.path)
        self.fault = self.hub.faults.next(self.command, path)
        if self.fault in BEFORE_ANSWERS:
            BEFORE_ANSWERS[self.fault](self)
        elif self.hub.down:
            self._send(503, b"down")
        elif path.startswith("/files/"):
            self._plain(path.removeprefix("/files/"))
        elif path.startswith("/large/"):  # <repository>/<commit>/<file>, signed
            repository, commit, name = re.fullmatch(r"/large/([^/]+/[^/]+)/([^/]+)/(.+)", path).groups()  # type: ignore[union-attr]
            self._content(self.hub.commits[repository, commit][name], {"ETag": '"of the store"'})
        elif match := _RESOLVE.fullmatch(path):
            self._resolve(*match.groups())
        elif match := _API.fullmatch(path):
            self._api(*match.groups(), recursive="recursive=true" in url.query.lower(), body=body)
        else:
            self._error(404, "EntryNotFound")

    do_HEAD = do_POST = do_GET

    def _files(self, repository: str, revision: str | None) -> dict[str, bytes] | None:
        """Return the repository's files. If there is no such repository or revision, send the hub's answer for this, and return None."""
        if repository not in self.hub.repositories:
            self._error(401, None, "Invalid username or password.")
        else:
            newest = self.hub.commit(repository)
            files = self.hub.commits.get((repository, newest if revision in (None, "main") else str(revision)))
            if files is None:
                self._error(404, "RevisionNotFound")
            return files
        return None

    def _api(self, repository: str, what: str | None, revision: str | None, path: str | None, *, recursive: bool, body: bytes) -> None:
        files = self._files(repository, revision)
        if files is None:
            return
        if what in (None, "revision"):
            siblings = [{"rfilename": name} for name in sorted(files)]
            gated = "manual" if repository in self.hub.gated else False
            flags = {"private": False, "gated": gated, "disabled": False, "downloads": 0, "likes": 0, "tags": []}
            sha = next(sha for (name, sha), held in self.hub.commits.items() if name == repository and held is files)
            self._json({"id": repository, "sha": sha, "siblings": siblings, **flags})
        elif what == "paths-info":
            asked = parse_qs(body.decode()).get("paths") or json.loads(body or b"{}").get("paths", [])
            self._json([entry for entry in _entries(files, "", True) if entry["path"] in asked])
        else:
            found = _entries(files, path or "", recursive)
            self._json(found) if found else self._error(404, "EntryNotFound")

    def _resolve(self, repository: str, revision: str, name: str) -> None:
        files = self._files(repository, revision)
        if files is None:
            return
        if repository in self.hub.gated:
            return self._error(403, "GatedRepo")
        if repository in self.hub.refused:
            return self._error(self.hub.refused[repository], None, "refused")
        if name not in files:
            return self._error(404, "EntryNotFound")
        content, commit = files[name], next(sha for (_, sha), held in self.hub.commits.items() if held is files)
        if name.endswith(self.hub.large):
            linked = {"X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Linked-Size": str(len(content))}
            location = f"{self.hub.url}/large/{repository}/{commit}/{name}?Signature=hf_signaturesignature"
            return self._send(302, b"", {"Location": location, "X-Repo-Commit": commit, **linked})
        return self._content(content, {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": commit})

    def _plain(self, name: str) -> None:
        content = self.hub.plain.get(name)
        if content is None:
            return self._send(404, b"not here")
        return self._content(content, {"Last-Modified": _time_of(content)}, ranges=not name.startswith("solid/"))

    def _content(self, content: bytes, headers: dict[str, str], *, ranges: bool = True) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        headers |= {"Accept-Ranges": "bytes"} if ranges else {}
        if not ranges or asked is None or self.fault == "whole":
            return self._send(200, content, headers)
        start, stop = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1) + 1
        if start >= len(content):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        return self._send(206, content[start:stop], headers)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str | None, message: str = "not found") -> None:
        self._send(status, b"{}", {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        all_headers = {**(headers or {}), "Content-Length": str(len(body))}
        pieces = [body]
        if self.fault in IN_ANSWERS and status < 400:
            all_headers, pieces = IN_ANSWERS[self.fault](self, all_headers, body)
        self.send_response(status)
        for name, value in all_headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            for piece in pieces:
                self.hub.served.append(len(piece))
                self.wfile.write(piece)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None: ...  # some tests need clients that give up


@lru_cache
def _oid(content: bytes) -> str:
    """Return git's name for a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@lru_cache
def _time_of(content: bytes) -> str:
    """Return a time of last change, which differs for other content."""
    return formatdate(int(_oid(content)[:7], 16), usegmt=True)


def _entries(files: dict[str, bytes], folder: str, recursive: bool) -> list[dict[str, Any]]:
    """Return files and folders below a folder, as the tree API lists them."""
    prefix = f"{folder}/" if folder else ""
    found: dict[str, dict[str, Any]] = {}
    for path, content in sorted(files.items()):
        if not path.startswith(prefix):
            continue
        parts = path[len(prefix) :].split("/")
        for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
            above = prefix + "/".join(parts[:depth])
            found[above] = {"type": "directory", "path": above, "size": 0, "oid": _oid(above.encode())}
        if recursive or len(parts) == 1:
            found[path] = {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}
    return list(found.values())
