"""An S3 API on 127.0.0.1: the application of moto, behind a server that logs requests and makes faults.

`decide` gets the method and the key of each request, and returns the name of a fault, or None to pass the request on. `decide_of` has the
functions for requests with other session tokens.
"""

from __future__ import annotations

import io
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import certifi
import pytest

BUCKET = "caches"
SECRETS = {
    "AWS_ACCESS_KEY_ID": "PLANTEDKEYID0001",
    "AWS_SECRET_ACCESS_KEY": "planted/secret+key=0002",
    "AWS_SESSION_TOKEN": "planted-session-token-0003",
}
_SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"  # moto checks the form
_CONDITIONS = ("if-match", "if-none-match")
_HOP = ("connection", "transfer-encoding", "keep-alive", "content-length", "date", "server")

Decide = Callable[[str, str], str | None]
CODES = {"expired": (400, "ExpiredToken"), "denied": (403, "AccessDenied"), "unknown key": (403, "InvalidAccessKeyId")}
CODES |= {"skewed": (403, "RequestTimeTooSkewed")}
CODES |= {"500": (500, "InternalError"), "503": (503, "SlowDown"), "not implemented": (501, "NotImplemented")}
PASSING = ("500", "503", "reset", "lost", "cut")  # another try may succeed


class LoopbackS3:
    """The server. `requests` has the method and the key of every request, with `?` and the query if there is no key. `whole` has the keys
    of the GET requests without a range.
    """

    def __init__(self) -> None:
        moto = pytest.importorskip("moto.moto_server.werkzeug_app", reason="moto is not installed (the extra dev)")
        pytest.importorskip("obstore", reason="obstore is not installed (the extra remote)")
        # The server of moto would look at each of moto's 200 folders to find the application of a request.
        self._store, self._control = map(moto.create_backend_app, ("s3", "moto_api"))
        self.requests: list[tuple[str, str]] = []
        self.whole: list[str] = []
        self.one_put = threading.Lock()
        self.decide: Decide = lambda method, key: None
        self.decide_of: dict[str, Decide] = {}
        self._proxy = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"s3": self}))
        threading.Thread(target=self._proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._proxy.server_port}"
        self._trusted = tempfile.TemporaryDirectory()
        self.env = {**SECRETS, "AWS_ENDPOINT": self.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        self.env |= _trust_one(self._trusted.name)

    def reset(self) -> None:
        """Make an empty bucket, and forget faults and requests."""
        self.decide = lambda method, key: None
        self.decide_of.clear()
        self.ask("POST", "/moto-api/reset")
        self.ask("PUT", f"/{BUCKET}")
        self.requests.clear()
        self.whole.clear()

    def puts(self) -> list[str]:
        """Return the keys of all PUT requests."""
        return [key for method, key in self.requests if method == "PUT"]

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
        """Give a request to moto itself. Return the status, the headers and the body of the answer."""
        url, answered = urlsplit(path), list[Any]()
        given = {"Authorization": _SIGNED, "Host": "127.0.0.1:80", "Content-Length": str(len(body)), **(headers or {})}
        environ = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in given.items()}
        environ |= {name: environ.pop(f"HTTP_{name}", "") for name in ("CONTENT_TYPE", "CONTENT_LENGTH")}
        environ |= {"REQUEST_METHOD": method, "SCRIPT_NAME": "", "QUERY_STRING": url.query, "SERVER_PROTOCOL": "HTTP/1.1"}
        environ |= {"PATH_INFO": unquote(url.path).encode().decode("latin-1"), "REQUEST_URI": path, "RAW_URI": path}
        environ |= {"SERVER_NAME": "127.0.0.1", "SERVER_PORT": "80", "REMOTE_ADDR": "127.0.0.1", "wsgi.url_scheme": "http"}
        streams = {"wsgi.input": io.BytesIO(body), "wsgi.errors": sys.stderr, "wsgi.version": (1, 0)}
        several = {"wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False}
        application = self._control if url.path.startswith("/moto-api/") else self._store
        try:
            with closing(application({**environ, **streams, **several}, lambda *begin: answered.extend(begin))) as content:
                return int(answered[0].split()[0]), dict(answered[1]), b"".join(content)
        except Exception:  # of moto, for which its server answers so too
            traceback.print_exc()
            return 500, {}, b""

    def content(self, key: str) -> bytes | None:
        """Return the content of an object, or None."""
        status, _, body = self.ask("GET", f"/{BUCKET}/{key}")
        return body if status == 200 else None

    def close(self) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()
        self._trusted.cleanup()


def _trust_one(folder: str) -> dict[str, str]:
    """Return variables that name one certificate. A client of obstore reads all of the system, for 10 ms, also if it needs none."""
    authority = Path(folder, "authority.pem")
    first, end, _ = certifi.contents().partition("-----END CERTIFICATE-----\n")
    authority.write_text(first + end, encoding="utf-8")
    return {"SSL_CERT_FILE": str(authority), "SSL_CERT_DIR": folder}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None: ...  # clients are killed here


class _Handler(BaseHTTPRequestHandler):
    s3: LoopbackS3
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        key = unquote(url.path).removeprefix(f"/{BUCKET}").lstrip("/") or f"?{url.query}"
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.s3.requests.append((self.command, key))
        if self.command == "GET" and "Range" not in self.headers:
            self.s3.whole.append(key)
        fault = self.s3.decide_of.get(self.headers.get("x-amz-security-token", ""), self.s3.decide)(self.command, key)
        if fault in CODES:
            return self._error(*CODES[fault])
        if fault == "reset":
            return self._break()
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "authorization")}
        if fault is not None and fault.startswith("unconditional"):  # with names: only these conditions are ignored
            headers = {name: value for name, value in headers.items() if name.lower() not in (fault.split()[1:] or _CONDITIONS)}
        with self.s3.one_put if self.command == "PUT" else nullcontext():  # moto looks at a condition and writes in two steps
            status, answered, content = self.s3.ask(self.command, self.path, body, headers)
        if fault == "lost":
            return self._break()
        if fault == "flip":
            content = bytes([content[0] ^ 1]) + content[1:]
        self.send_response(status)
        for name, value in answered.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        length = next((value for name, value in answered.items() if name.lower() == "content-length"), str(len(content)))
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if fault == "drip":
            return self._drip(content)
        if fault == "cut":
            self.wfile.write(content[: len(content) // 2])
            return self._break()
        self.wfile.write(content)
        return None

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _error(self, status: int, code: str) -> None:
        """Answer with an error that quotes the credentials, as some stores do."""
        quoted = f"<AWSAccessKeyId>{SECRETS['AWS_ACCESS_KEY_ID']}</AWSAccessKeyId><Token>{SECRETS['AWS_SESSION_TOKEN']}</Token>"
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>refused</Message>{quoted}</Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/xml")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _drip(self, content: bytes) -> None:
        """Send a byte now and then, and never end."""
        self.close_connection = True
        try:
            for start in range(len(content) - 1):
                self.wfile.write(content[start : start + 1])
                time.sleep(0.02)
        except OSError:  # the client has given up
            self.connection.close()

    def _break(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
