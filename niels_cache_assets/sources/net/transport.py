"""The HTTP transport below huggingface_hub and our http(s) files, which retries where useful and returns no byte that may be wrong.

It retries connections that fail, end early, stall or are very slow (the rule of niels_cache_runtime.remote.store), and HTTP 408, 429 and
5xx (after Retry-After). It also retries answers that do not match the request: wrong bytes for the Range, a commit that differs from the
address, an ETag or size that differs from the file, or invalid JSON from an API.

If a body breaks, or ends before the size that any answer gave, the transport requests the rest of the body from this byte on. If the server
does not support ranges, it reads the body again up to this byte. All other answers (401, 403, 404, redirects) go to the caller. Each file
of the hub costs one HEAD request. A body of up to 32 MiB is held in memory until it is complete.

An answer that fails a check raises BrokenResponseError, and another try may succeed. The functions that check one answer are at the end.

`install` puts the transport into the hub's library and into fsspec. Importing this module imports huggingface_hub, so import it inside
functions.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, NoReturn

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from huggingface_hub.utils import httpx

from niels_cache_assets.sources.errors import SourceUnavailableError, describe_error, without_credentials
from niels_cache_assets.sources.net.retries import ANSWERED, RequestRetries
from niels_cache_assets.sources.reading.compressed import IteratorStream
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.remote.store import STALL_BYTES, RemoteError, raise_if_stalled

READ_SECONDS = 30.0  # maximum time without a byte, if the caller sets no timeout
WHOLE_BYTES = 32 << 20
EXPLANATION_BYTES = 1 << 16
CHANGED_TRIES = 5  # after this many changed answers, the file itself must be changing

_HUB_FILE = re.compile(r"/resolve/([0-9a-f]{40})/")
_NUMBER = re.compile("[0-9]{1,18}")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/(?:[0-9]{1,18}|\*)")
_RATE_LIMIT = re.compile(r"\br=0;\s*t=([0-9]{1,18})")  # the form of the hub's RateLimit header
_LENGTHS = ("content-length", "transfer-encoding")
_FAILURES = (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError)


@lru_cache(maxsize=1)
def install() -> None:
    """Make the hub's library, and fsspec for http(s) addresses, use this transport.

    Listings of the hub are read page by page in the calling thread, because threads of the library would delay an interrupt.
    """
    from huggingface_hub.utils import _http, set_client_factory

    factory = _http._GLOBAL_CLIENT_FACTORY
    set_client_factory(lambda: with_retries(factory()))
    for scheme in ("http", "https"):
        fsspec.register_implementation(scheme, HttpFiles, clobber=True)
    fsspec.config.conf.setdefault("hf", {}).setdefault("max_workers", 1)


def with_retries(client: httpx.Client) -> httpx.Client:
    """Wrap the transports of the client, including the transports for proxies, and return the client."""
    client._transport = RetryTransport(client._transport)
    client._mounts = {pattern: transport and RetryTransport(transport) for pattern, transport in client._mounts.items()}
    return client


class RetryTransport(httpx.BaseTransport):
    """A transport that retries.

    It understands these request extensions:

    * `validator`: the version that the answer must have.
    * `headers_only`: neither body nor Range matters.
    * `may_begin_again`: the whole file may answer a Range.
    """

    def __init__(self, inner: httpx.BaseTransport) -> None:
        self._inner = inner
        self._hub_files: dict[str, tuple[FileVersion, bool]] = {}  # path -> version of the file, and whether two answers agree on it
        self._linked: dict[str, FileVersion] = {}  # address that the hub redirected to -> version of the file

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        timeouts = request.extensions.get("timeout") or {}
        timeouts = {kind: timeouts.get(kind) or READ_SECONDS for kind in ("connect", "read", "write", "pool")}
        request.extensions = {**request.extensions, "timeout": timeouts}
        request.headers["Accept-Encoding"] = "identity"  # so that lengths and offsets refer to the file itself
        if linked := self._linked.pop(str(request.url), None):
            request.extensions["linked"] = linked
        tries = RequestRetries(str(request.url))
        while True:
            response = self._answer(request, tries)
            if request.method == "GET" and "X-Linked-ETag" in response.headers and (location := response.headers.get("Location")):
                self._linked[str(request.url.join(location))] = validator_of(response)
            if request.method == "HEAD" or response.status_code not in (200, 206) or "headers_only" in request.extensions:
                tries.reset()
                return response if response.status_code < 300 or request.method == "HEAD" else _with_short_body(response)
            body = _Body(self, request, response, tries)
            try:
                body.wait_for_head()
            except BrokenResponseError as error:
                response.close()
                tries.wait_after_failure(str(error))
                continue
            return httpx.Response(response.status_code, headers=response.headers, stream=body, extensions=response.extensions)

    def close(self) -> None:
        self._inner.close()

    def size_of_body(self, request: httpx.Request, response: httpx.Response) -> int | None:
        """Return the length of the answer's body, or None if it is unknown.

        If the answer does not give the length, it comes from known facts about the file.
        """
        if response.status_code == 206:
            part = part_of(response)
            return part[1] - part[0] + 1 if part else None
        known = (validator_of(response), request.extensions.get("validator"), self._hub_files.get(request.url.path, (None,))[0])
        return next((validator.size for validator in known if validator is not None and validator.size is not None), None)

    def _answer(self, request: httpx.Request, tries: RequestRetries) -> httpx.Response:
        """Return an answer with the right status and headers, or an answer that the caller must handle, such as 404."""
        changes = 0
        path = request.url.path
        commit = commit_of(path)
        while True:
            try:
                if request.method in ("GET", "HEAD") and commit is not None and path not in self._hub_files:
                    head = httpx.Request("HEAD", request.url, headers=_without_range(request), extensions=request.extensions)
                    response = self._checked(head, commit)
                    if response.status_code >= 400 and request.method == "HEAD":
                        return response
                    response.close()
                    if response.status_code < 400:
                        self._hub_files[path] = validator_of(response), False
                return self._checked(request, commit)
            except BrokenResponseError as error:
                changes = changes + 1 if error.changed else 0
                if changes >= CHANGED_TRIES:
                    raise NielsCacheError(
                        f"{without_credentials(str(request.url))}: the file changed while it was read; run the build again"
                    ) from error
                tries.wait_after_failure(str(error), error.retry_after)

    def _checked(self, request: httpx.Request, commit: str | None) -> httpx.Response:
        try:
            response = self._inner.handle_request(request)
        except _FAILURES as error:
            if isinstance(error.__cause__ and error.__cause__.__cause__, ssl.SSLCertVerificationError):
                raise NielsCacheError(
                    f"{without_credentials(str(request.url))}: its certificate is not trusted ({error}); check the address"
                ) from error
            raise BrokenResponseError(describe_error(error)) from error
        ANSWERED.add(request.url.netloc.decode())
        try:
            self._check(request, response, commit)
        except BrokenResponseError:
            response.close()
            raise
        return response

    def _check(self, request: httpx.Request, response: httpx.Response, commit: str | None) -> None:
        status, validator = response.status_code, validator_of(response)
        if status in (408, 429) or status >= 500:
            raise BrokenResponseError(f"HTTP {status}", retry_after=retry_after(response))
        if status >= 400:
            return
        path = request.url.path
        if commit is not None:
            if response.headers.get("X-Repo-Commit", commit) != commit:
                raise BrokenResponseError("the answer is of another commit")
            known, sure = self._hub_files.get(path, (validator, False))
            if known.differs(validator):
                if not sure:
                    self._hub_files.pop(path, None)  # further answers show which of the two is wrong
                raise BrokenResponseError("the answer is of another version of the file")
            if path in self._hub_files:
                self._hub_files[path] = known, True
        linked = request.extensions.get("linked")
        if linked is not None and linked.size not in (validator.size, None):
            raise BrokenResponseError("the answer is of another version of the file")
        expected = request.extensions.get("validator")
        if expected is not None and expected.differs(validator):
            raise BrokenResponseError("the answer is of another version of the file", changed=True)
        check_part(request, response, allow_whole=bool({"headers_only", "may_begin_again"} & set(request.extensions)))


class _Body(httpx.SyncByteStream):
    """The bytes of a body, in order, read from as many answers as needed. Only `wait_for_head` may raise BrokenResponseError."""

    def __init__(self, transport: RetryTransport, request: httpx.Request, response: httpx.Response, tries: RequestRetries) -> None:
        self._transport, self._request, self._response, self._tries = transport, request, response, tries
        self._first = response
        self._delivered = 0
        self._chunks = self._all()
        self._head: list[bytes] = []
        self._restartable = True

    def wait_for_head(self) -> None:
        """Read up to 32 MiB of the body into memory.

        If the body is complete then, check it as far as the headers of the answer allow.
        """
        waiting = 0
        for chunk in self._chunks:
            self._head.append(chunk)
            waiting += len(chunk)
            if waiting > WHOLE_BYTES:
                self._restartable = False
                return
        check_content(self._request, self._first, b"".join(self._head))
        self._tries.reset()

    def __iter__(self) -> Iterator[bytes]:
        return chain(self._head, self._chunks)

    def close(self) -> None:
        self._chunks.close()
        self._response.close()

    def _all(self) -> Any:
        skip = counted = 0
        while True:
            size = self._transport.size_of_body(self._request, self._first)
            try:
                for chunk in _chunks(self._response):
                    passed_over = min(skip, len(chunk))
                    skip -= passed_over
                    if passed_over < len(chunk):
                        self._delivered += len(chunk) - passed_over
                        if size is not None and self._delivered > size:
                            raise BrokenResponseError(f"the answer holds more than the {size} bytes of the file", spoilt=True)
                        yield chunk[passed_over:]
                if size is not None and self._delivered < size:
                    raise BrokenResponseError(f"the answer ends after {self._delivered} of {size} bytes")
                return
            except BrokenResponseError as error:
                self._response.close()
                if self._delivered == size:
                    return  # the last bytes came late, and there is no rest to request
                ranges = self._first.status_code == 206 or self._first.headers.get("Accept-Ranges") == "bytes"
                problem = self._resume_problem(error)
                if self._restartable and (problem or not ranges):
                    raise
                if problem:
                    raise SourceUnavailableError(
                        f"{without_credentials(str(self._request.url))}: {error} in the middle, and {problem}"
                    ) from error
                if self._delivered - counted >= STALL_BYTES:  # bytes that are read again do not count as progress
                    counted = self._delivered
                    self._tries.reset()
                self._tries.wait_after_failure(str(error))
            self._response = self._transport._answer(self._rest(), self._tries)
            if self._response.status_code not in (200, 206):
                raise httpx.ReadError(f"HTTP {self._response.status_code} in the middle of the file")
            skip = self._delivered if self._response.status_code == 200 else 0

    def _resume_problem(self, error: BrokenResponseError) -> str:
        """Return why the rest of the body cannot be requested, or an empty string."""
        if validator_of(self._first).tag is None:
            return "the server gives no version to resume with"
        if "Range" in self._request.headers and range_of(self._request) is None:
            return "the rest of such a range cannot be requested"
        return "the bytes before may be wrong too" if error.spoilt else ""

    def _rest(self) -> httpx.Request:
        first, last = range_of(self._request) or (0, None)
        headers = {**_without_range(self._request), "Range": f"bytes={first + self._delivered}-{'' if last is None else last}"}
        extensions = {"validator": validator_of(self._first), **self._request.extensions}
        if "linked" in extensions:
            del extensions["validator"]  # each server of a store may have its own tags; the address itself identifies the content
        if self._first.status_code == 200:  # even for an answer to a Range that starts at the first byte
            extensions["may_begin_again"] = True
        return httpx.Request(self._request.method, self._request.url, headers=headers, extensions=extensions)


def _chunks(response: httpx.Response) -> Iterator[bytes]:
    try:
        for chunk in raise_if_stalled(response.stream, "the server"):  # type: ignore[arg-type]
            yield chunk.obj  # type: ignore[misc]
    except RemoteError as error:
        raise BrokenResponseError(str(error).partition(";")[0]) from error
    except _FAILURES as error:
        raise BrokenResponseError(describe_error(error)) from error
    response.close()


def _with_short_body(response: httpx.Response) -> httpx.Response:
    """Return a redirect or error with the part of its body that arrived, because the body may explain the problem."""
    content = b""
    with suppress(BrokenResponseError):
        for chunk in _chunks(response):
            content += chunk
            if len(content) > EXPLANATION_BYTES:
                break
    response.close()
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _LENGTHS]
    return httpx.Response(response.status_code, headers=headers, stream=httpx.ByteStream(content), extensions=response.extensions)


def _without_range(request: httpx.Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name.lower() != "range"}


class FileVersion(NamedTuple):
    """One version of a file.

    Attributes:
        tag: Its ETag or modification time, or None if the server does not give it.
        size: Its size in bytes, or None if the server does not give it.
    """

    tag: str | None
    size: int | None

    def differs(self, other: FileVersion) -> bool:
        return any(mine != theirs for mine, theirs in zip(self, other, strict=True) if mine is not None and theirs is not None)


class BrokenResponseError(Exception):
    """An answer that must be requested again.

    Attributes:
        retry_after: The seconds that the server asks to wait, or None.
        changed: Whether the file may have changed.
        spoilt: Whether the bytes received so far may be wrong too.
    """

    def __init__(self, problem: str, *, retry_after: float | None = None, changed: bool = False, spoilt: bool = False) -> None:
        super().__init__(problem)
        self.retry_after = retry_after
        self.changed = changed
        self.spoilt = spoilt


def validator_of(response: httpx.Response) -> FileVersion:
    """Return the version of the file in an answer, which may also be a part of a file, or the hub's redirect to a file."""
    headers = response.headers
    tag = headers.get("X-Linked-ETag") or headers.get("ETag") or headers.get("Last-Modified")
    size = headers.get("X-Linked-Size")
    if size is None and response.status_code == 200:
        size = headers.get("Content-Length")
    elif size is None:
        size = headers.get("Content-Range", "").rpartition("/")[2]
    return FileVersion(tag.removeprefix("W/").strip('"') if tag else None, int(size) if size and _NUMBER.fullmatch(size) else None)


def commit_of(path: str) -> str | None:
    """Return the commit in the path of a hub file, or None."""
    found = _HUB_FILE.search(path)
    return found[1] if found else None


def range_of(request: httpx.Request) -> tuple[int, int | None] | None:
    """Return the first and last byte in a Range header. The last byte is None if the range ends with the file.

    None if there is no such header, or if it has a form other than bytes=FIRST-[LAST].
    """
    requested = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    return (int(requested[1]), int(requested[2]) if requested[2] else None) if requested else None


def part_of(response: httpx.Response) -> tuple[int, int] | None:
    """Return the first and last byte in the Content-Range of a partial answer, or None if there is no valid Content-Range."""
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return (int(found[1]), int(found[2])) if found else None


def check_part(request: httpx.Request, response: httpx.Response, *, allow_whole: bool) -> None:
    """Check that the answer holds the requested bytes of the file.

    Args:
        request: The request.
        response: The answer.
        allow_whole: Whether the whole file may answer a request for a part.

    Raises:
        BrokenResponseError: If the answer holds wrong bytes.
    """
    requested = range_of(request)
    if response.status_code == 206 and requested is not None:
        first, last = part_of(response) or (-1, -1)
        length = response.headers.get("Content-Length", str(last - first + 1))
        if first != requested[0] or requested[1] not in (None, last) or length != str(last - first + 1):
            raise BrokenResponseError("the answer holds other bytes than requested")
    elif response.status_code == 206 and "Range" not in request.headers:
        raise BrokenResponseError("the answer holds a part of the file, but the request was for the whole")
    elif response.status_code == 200 and "Range" in request.headers and requested != (0, None) and not allow_whole:
        raise BrokenResponseError("the answer holds the whole file instead of the requested bytes")


def check_content(request: httpx.Request, response: httpx.Response, content: bytes) -> None:
    """Check a whole body.

    The hub's ETag is the sha256 of a large file, and git's sha1 of a small file. JSON from an API must be valid. The content of a JSON file
    is not checked this way, because servers give JSON Lines files the same media type, and a part of a file is not valid JSON.

    Raises:
        BrokenResponseError: If the content is damaged.
    """
    linked = request.extensions.get("linked")
    tag, size = validator_of(response)
    if linked is not None and linked.tag and len(linked.tag) == 64 and len(content) == linked.size:
        intact = hashlib.sha256(content).hexdigest() == linked.tag
    elif "X-Repo-Commit" in response.headers and re.fullmatch("[0-9a-f]{40}", tag or "") and len(content) == size:
        intact = hashlib.sha1(b"blob %d\0" % size + content).hexdigest() == tag
    elif _is_api_json(request, response) and "Content-Encoding" not in response.headers:
        intact = _is_json(content)
    else:
        intact = True
    if not intact:
        raise BrokenResponseError("the content is damaged")


def _is_api_json(request: httpx.Request, response: httpx.Response) -> bool:
    """Return whether this is a whole JSON answer of an API, and not the content of a file."""
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    of_a_file = bool({"validator", "linked"} & set(request.extensions)) or commit_of(request.url.path) is not None
    return response.status_code == 200 and media_type == "application/json" and not of_a_file


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True


def retry_after(response: httpx.Response) -> float | None:
    """Return the seconds that the server asks to wait, or None.

    Retry-After, in both forms, takes precedence over the hub's rate limit.
    """
    value = response.headers.get("Retry-After", "").strip()
    if _NUMBER.fullmatch(value):
        return float(value)
    try:
        when = parsedate_to_datetime(value)
        return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        reset = _RATE_LIMIT.search(response.headers.get("RateLimit", "")) if response.status_code == 429 else None
        return float(reset[1]) if reset else None


class HttpFiles(AbstractFileSystem):
    """A read-only file system. It accepts the settings of fsspec's own http(s) file system, and ignores them."""

    protocol = ("http", "https")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def unstrip_protocol(self, name: str) -> str:
        return name

    def glob(self, path: str, *, detail: bool = False, **settings: Any) -> Any:
        return {path: self.info(path)} if detail else [path]

    def isdir(self, path: str) -> bool:
        return False

    def info(self, path: str, **settings: Any) -> dict[str, Any]:
        """Return the size and version of a file.

        Two answers must agree on both values, because all reads are checked against them, and a single answer may be wrong.

        Raises:
            FileNotFoundError: If there is no such file.
            NielsCacheError: If access is refused, or the file changes with each answer.
        """
        answers = [_probe(path)]
        while answers.count(answers[-1]) < 2:
            if len(answers) > CHANGED_TRIES:
                raise NielsCacheError(f"{without_credentials(path)}: the server gives another version in each answer; download the file")
            answers.append(_probe(path))
        return answers[-1]

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **settings: Any) -> Any:
        info = self.info(path)
        validator = FileVersion(info["ETag"], info["size"])
        if not info["ranges"]:
            return io.BufferedReader(_SequentialFile(path, validator), 1 << 18)
        return _HttpFile(self, path, mode, block_size or "default", size=info["size"], validator=validator)


def _probe(path: str) -> dict[str, Any]:
    """Return the size and version of the file at `path`, and whether the server supports ranges, from the headers of one answer."""
    with _client(os.getpid()).stream("GET", path, headers={"Range": "bytes=0-0"}, extensions={"headers_only": True}) as answer:
        if answer.status_code == 416 and answer.headers.get("Content-Range", "bytes */0") == "bytes */0":  # an empty file
            return {"name": path, "type": "file", "size": 0, "ETag": None, "ranges": True}
        _refuse_errors(answer)
        tag, size = validator_of(answer)
        return {"name": path, "type": "file", "size": size, "ETag": tag, "ranges": answer.status_code == 206 and size is not None}


class _HttpFile(AbstractBufferedFile):
    """A file that is read in blocks. fsspec keeps a few blocks in memory."""

    def __init__(self, *args: Any, validator: FileVersion, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._validator = validator

    def _fetch_range(self, start: int, end: int) -> bytes:
        headers, extensions = {"Range": f"bytes={start}-{end - 1}"}, {"validator": self._validator}
        with _client(os.getpid()).stream("GET", self.path, headers=headers, extensions=extensions) as answer:
            _refuse_errors(answer)
            return b"".join(answer.iter_raw())


class _SequentialFile(IteratorStream):
    """A file that is read once from beginning to end."""

    def __init__(self, url: str, validator: FileVersion) -> None:
        client = _client(os.getpid())
        answer = client.send(client.build_request("GET", url, extensions={"validator": validator}), stream=True)
        _refuse_errors(answer)
        super().__init__(answer.iter_raw(), answer)
        self._url = url

    def seek(self, *args: Any) -> NoReturn:
        raise NielsCacheError(
            f"{without_credentials(self._url)}: the server does not support HTTP ranges, which this file needs; download the file"
        )


@lru_cache(maxsize=1)
def _client(process: int) -> httpx.Client:
    """Return the client of this process. Each process needs its own client, because connections do not survive a fork."""
    return with_retries(httpx.Client(follow_redirects=True, timeout=None))  # the transport sets its own timeout


def _refuse_errors(answer: httpx.Response) -> None:
    where, status = without_credentials(str(answer.url)), answer.status_code
    if status in (404, 410):
        raise FileNotFoundError(2, "no such file on the server", where)
    if status in (401, 403):
        raise NielsCacheError(f"{where}: the server refuses access (HTTP {status}); check the address, and that it needs no login")
    if status >= 400:
        raise NielsCacheError(f"{where}: the server answers HTTP {status}; check the address")
