"""A bucket or a folder behind an address such as `s3://bucket/prefix`: the only module that imports obstore.

obstore is imported when a store is opened, not before. It takes the endpoint and the credentials from the environment. A message names the
address, the object, and the code of the store's answer. It never quotes an answer or an address with a password, because both may contain
credentials. For the same reason, obstore's errors are never set as the cause of an error.

A request that fails for a short time is repeated with growing waits, and so is a request whose answer brings almost nothing for some time
(`raise_if_stalled`). Memory: `put` maps one file, or holds a few pieces of a large one; `stream` holds one chunk. `record` defines the
objects.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast
from urllib.parse import unquote

from niels_cache_runtime.errors import NielsCacheError, NotWrittenError, PanicError, panics_as_errors
from niels_cache_runtime.format.commit import hold_lock
from niels_cache_runtime.format.meta import MAX_META_BYTES, sha256_file
from niels_cache_runtime.format.safe_open import name_problem

SCHEMES = ("s3", "gs", "az", "file")
STALL_SECONDS, STALL_BYTES = 30.0, 30_000  # a body with fewer bytes in this time is requested again
QUICK_BYTES, QUICK_SECONDS = 1 << 20, 10  # a smaller object that leases depend on is asked for again after this time
SINGLE_PUT_BYTES = 1 << 30  # a larger file is sent in parts
_MAX_PARTS = 9_000  # S3 allows 10,000
_MIN_PART_BYTES = 16 << 20
_VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}  # prefixes of obstore's environment variables
_CLIENT_KEYS = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "timeout",
    "read_timeout",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
)
_HASH_KEY = "sha256"
_RETRIES, _HASTY_RETRIES = 8, 3
_WAITS = (0.2, 1.0, 5.0)  # seconds before another try of a conditional PUT
_PROBE = "conditional-put.txt"
_State = Literal["e_tag", "version"]
_Refusals = tuple[type[Exception], ...]
_process: int | None = None  # the process that uses obstore; its threads do not survive a fork

_CODES = {  # by message: the codes in a store's answer, and the classes of obstore's errors
    "the credentials have expired; renew them, and run the same command again": (
        "ExpiredToken ExpiredTokenException TokenRefreshRequired RequestExpired"
    ),
    "the store does not accept the credentials; check the variables of the environment that hold them": (
        "InvalidAccessKeyId InvalidToken InvalidClientTokenId SignatureDoesNotMatch AuthFailure UnauthenticatedError"
    ),
    "access is denied; check the rights of these credentials": "AccessDenied AllAccessDisabled PermissionDeniedError",
    "there is no such bucket or container; check the address": "NoSuchBucket ContainerNotFound",
    "the bucket is in another region; set its region in the environment": "PermanentRedirect AuthorizationHeaderMalformed",
    "the clock of this machine is wrong; set it, and run the same command again": "RequestTimeTooSkewed",
    "the quota of the store is used up; raise it, or make room": "QuotaExceeded",
    "the store does not support this request": "NotImplementedError NotSupportedError",
}
_MESSAGES = {code: message for message, codes in _CODES.items() for code in codes.split()}
_MESSAGES_BY_TEXT = (
    ("scheme is not allowed", "the endpoint begins with http://; set AWS_ALLOW_HTTP=true to allow requests without encryption"),
    ("BadScheme", "the endpoint begins with http://; set AWS_ALLOW_HTTP=true to allow requests without encryption"),
    ("169.254.169.254", "no credentials were found; set them in the environment, as the store's documentation says"),
    ("metadata endpoint", "no credentials were found; set them in the environment, as the store's documentation says"),
    ("Region", "the region of the bucket is unknown; set it in the environment"),
    ("timed out", "the store does not answer; check the endpoint and the network"),
    ("error sending request", "the store cannot be reached; check the endpoint and the network"),
    ("connect", "the store cannot be reached; check the endpoint and the network"),
)


class RemoteError(NotWrittenError):
    """A request that a store refused or did not answer. The message contains no credentials.

    Attributes:
        code: The code in the store's answer, or its HTTP status, or an empty string.
        is_transient: Whether the same request may succeed later.
    """

    def __init__(self, message: str, *, code: str = "", is_transient: bool = False) -> None:
        super().__init__(message)
        self.code, self.is_transient = code, is_transient


class MissingError(RemoteError):
    """A missing object or bucket."""


class ConflictError(RemoteError):
    """A PUT whose condition was not met: the object already exists, or has changed since the caller read it."""


class ObjectRange(NamedTuple):
    """A part of an object.

    Attributes:
        content: The bytes of the part.
        size: The size in bytes of the whole object.
        e_tag: The ETag of the object, or None.
        sha256: The recorded hash of the whole content, or None.
    """

    content: bytes
    size: int
    e_tag: str | None
    sha256: str | None


class SmallObject(NamedTuple):
    """A small object.

    Attributes:
        content: Its bytes.
        state: What `write_if` compares.
        modified: When it was written, by the clock of the store.
    """

    content: bytes
    state: str | None
    modified: datetime


class ListedObject(NamedTuple):
    """An object in a listing.

    Attributes:
        key: Its key.
        size: Its size in bytes.
        modified: When it last changed, by the clock of the store.
        e_tag: A value that differs for each content.
    """

    key: str
    size: int
    modified: datetime
    e_tag: str | None


def is_address(text: str) -> bool:
    """Return whether a text is meant as an address (`s3://bucket/prefix`), not as a path or a name."""
    return "://" in text


def check_address(text: str) -> str:
    """Return an address without a trailing slash.

    Raises:
        NielsCacheError: If no store can have this address, or if it contains a user name, a password, a query or a fragment; such an
            address is not quoted.
    """
    scheme, _, rest = text.partition("://")
    bucket, _, prefix = rest.rstrip("/").partition("/")
    if "@" in bucket or "?" in text or "#" in text:
        raise NielsCacheError(
            "the address holds a user name, a password or a query; give SCHEME://BUCKET/PREFIX, and set credentials in the environment"
        )
    if scheme not in SCHEMES:
        raise NielsCacheError(f"{text!r:.200}: is no address of a store; it begins with {', '.join(f'{each}://' for each in SCHEMES)}")
    if scheme == "file" and bucket:
        raise NielsCacheError(f"{text}: is not an absolute path; give file:///PATH")
    if scheme != "file" and not bucket:
        raise NielsCacheError(f"{text}: has no bucket; give {scheme}://BUCKET/PREFIX")
    if not prefix:
        raise NielsCacheError(f"{text}: has no prefix; give {scheme}://BUCKET/PREFIX, so that the bucket can hold more than one cache")
    if problem := name_problem(unquote(prefix)):
        raise NielsCacheError(f"{text!r:.200}: its prefix {problem}; give {scheme}://BUCKET/PREFIX")
    return text.rstrip("/")


def open_store(address: str, *, make: bool = False, is_hasty: bool = False) -> Store:
    """Open the store of an address. No request is sent.

    Args:
        address: The address.
        make: Whether to create the folder of a file:// address.
        is_hasty: Whether to give up after a few seconds if the store does not answer.

    Raises:
        NielsCacheError: If the address is invalid, or if obstore is not installed.
    """
    address = check_address(address)
    try:
        import obstore
        from obstore import exceptions as errors
        from obstore import store as stores
    except ImportError as error:
        raise NielsCacheError(f'{address}: needs obstore; install it: pip install "niels-cache[remote]"') from error
    global _process
    _process = _process or os.getpid()
    _check_process(address)
    refusals = (errors.BaseError, PanicError, FileNotFoundError)  # the last one is for a missing object or bucket
    if address.startswith("file://"):
        folder = Path("/" + unquote(address.removeprefix("file://")).lstrip("/"))
        if not make and not folder.is_dir():
            raise MissingError(f"{address}: there is no such folder; check the address")
        with _as_remote_errors(address, refusals):
            return FolderStore(address, obstore, refusals, stores.LocalStore(folder, mkdir=True), folder=folder)

    prefix, open_any = _VARIABLES[address.partition("://")[0]], cast(Any, stores.from_url)
    # The limit of obstore itself, 30 seconds for a request, is too short for a shard.
    client = {"timeout": "6 hours", "read_timeout": "2 minutes", "connect_timeout": "3 seconds" if is_hasty else "20 seconds"}
    client |= {key: value for key in _CLIENT_KEYS if (value := os.environ.get(prefix + key.upper()))}  # `client` hides these variables

    def connect(retries: int, **changes: str) -> Any:
        waits = {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=20), "base": 2}
        retry = {"max_retries": retries, "backoff": waits, "retry_timeout": timedelta(minutes=10)}
        return open_any(address, retry_config=retry, client_options=client | changes)

    with _as_remote_errors(address, refusals):
        retries = _HASTY_RETRIES if is_hasty else _RETRIES
        short = connect(retries, timeout="5 minutes")  # obstore buffers these answers
        state: _State = "version" if address.startswith("gs://") else "e_tag"
        quick = connect(_HASTY_RETRIES, timeout=f"{QUICK_SECONDS} seconds")
        return Store(address, obstore, refusals, (connect(retries), short, quick), state=state)


class Store:
    """The objects below one address. Keys are relative to the address, with slashes.

    Every method raises RemoteError if the store refuses a request or does not answer. Several threads may use one store. The state of an
    object is what a conditional PUT compares. With Google it is the number of the generation, which obstore calls the version; with all
    others it is the ETag.
    """

    def __init__(self, address: str, obstore: Any, refusals: _Refusals, clients: Sequence[Any], *, state: _State = "e_tag") -> None:
        self.address, self._obstore, self._refusals, self._state = address, obstore, refusals, state
        self._remote, self._short, self._quick = clients

    def name_of(self, key: str) -> str:
        """Return the address of one object, for messages."""
        return f"{self.address}/{key}"

    def recorded_sha256(self, key: str) -> str | None:
        """Return the recorded hash of an object, or None if there is none.

        Raises:
            MissingError: If there is no such object.
        """
        with self._as_remote_errors(key):
            recorded: str | None = self._obstore.get(self._short, key, options={"head": True}).attributes.get(_HASH_KEY)
            return recorded

    def get(self, key: str, *, most_bytes: int) -> SmallObject:
        """Return a small object, within seconds or not at all if it may have at most QUICK_BYTES.

        Raises:
            MissingError: If there is no such object.
        """
        with self._as_remote_errors(key):
            for ignored in (self._refusals, ()):  # obstore gives up a body if this process was frozen while it came
                result = self._obstore.get(self._quick if most_bytes <= QUICK_BYTES else self._remote, key)
                if result.meta["size"] > most_bytes:
                    raise RemoteError(f"{self.name_of(key)}: has {result.meta['size']} bytes, more than {most_bytes}; give another address")
                with suppress(*ignored):
                    return SmallObject(self._content(key, result), result.meta[self._state], result.meta["last_modified"])
        raise AssertionError("the last try returns or raises")

    def stream(self, key: str, *, start: int = 0) -> Iterator[memoryview]:
        """Yield the content of an object from byte `start` on, in pieces.

        Raises:
            MissingError: If there is no such object.
        """
        options = {"range": {"offset": start}} if start else {}
        with self._as_remote_errors(key):
            # as the chunks come, about 400 kB each: waiting for more of them would hide a store that sends almost nothing
            chunks = self._obstore.get(self._remote, key, options=options).stream(min_chunk_size=1)
            yield from raise_if_stalled(chunks, f"{self.name_of(key)}: the store")

    def read_range(self, key: str, length: int, *, start: int = 0) -> ObjectRange:
        """Return the content of an object from byte `start` to `start` + `length` - 1, with one request.

        Raises:
            MissingError: If there is no such object.
        """
        with self._as_remote_errors(key):
            result = self._obstore.get(self._remote, key, options={"range": (start, start + length)})
            return ObjectRange(self._content(key, result), result.meta["size"], result.meta["e_tag"], result.attributes.get(_HASH_KEY))

    def _content(self, key: str, result: Any) -> bytes:
        return b"".join(raise_if_stalled(result.stream(min_chunk_size=1), f"{self.name_of(key)}: the store"))

    def put(self, key: str, file: BinaryIO, content: memoryview, *, sha256: str) -> None:
        """Write an open file as one object, with its sha256 in the metadata. The object appears as a whole or not at all.

        Args:
            key: The key of the object.
            file: The open file.
            content: The content of the same file, `mapped`. At most SINGLE_PUT_BYTES are sent in one request.
            sha256: The sha256 of the content.

        Raises:
            OSError: If the file cannot be read.
        """
        with self._as_remote_errors(key):
            if len(content) <= SINGLE_PUT_BYTES:
                self._put(key, content, attributes=self._attributes(sha256), use_multipart=False)
            else:
                part = max(_MIN_PART_BYTES, -(-len(content) // _MAX_PARTS))
                self._put(key, file, attributes=self._attributes(sha256), use_multipart=True, chunk_size=part, max_concurrency=2)

    def write_if(self, key: str, content: bytes, *, state: str | None) -> str | None:
        """Write a small object if it is still in a state, and return its new state.

        A refused or lost request may have succeeded before, so the object is read back: if it has this content, it was this call.

        Args:
            key: The key of the object.
            content: Its content, which no other process writes.
            state: The state to replace, or None to create the object.

        Raises:
            ConflictError: If another process has written or deleted the object.
        """
        for seconds in (*_WAITS, None):  # obstore does not repeat a PUT with conditions
            try:
                with self._as_remote_errors(key):
                    return self._write_once(key, content, state)
            except RemoteError as error:
                is_deleted = isinstance(error, MissingError) and state is not None
                if not isinstance(error, ConflictError) and not is_deleted and not error.is_transient:
                    raise
                with suppress(RemoteError):  # the next try may succeed
                    found = self.get(key, most_bytes=len(content))
                    if found.content == content:
                        return found.state
                if is_deleted:
                    raise ConflictError(f"{self.name_of(key)}: was deleted in the meantime") from None
                if isinstance(error, ConflictError) or seconds is None:
                    raise
            time.sleep(seconds)
        raise AssertionError("the last try returns or raises")

    def _write_once(self, key: str, content: bytes, state: str | None) -> str | None:
        mode: Any = "create" if state is None else {self._state: state}
        return self._put(key, content, mode=mode, use_multipart=False, attributes=self._attributes(hashlib.sha256(content).hexdigest()))

    def now(self, key: str) -> datetime:
        """Return the time by the clock of the store, which is when it wrote this object. Stores count whole seconds."""
        with self._as_remote_errors(key):
            self._put(key, secrets.token_bytes(8), use_multipart=False)
        return self.get(key, most_bytes=QUICK_BYTES).modified

    def list(self, folder: str = "") -> Iterator[ListedObject]:
        """Yield the objects in a folder and its subfolders."""
        with self._as_remote_errors(folder):
            for chunk in self._obstore.list(self._short, folder or None, chunk_size=1000):
                for each in chunk:
                    yield ListedObject(each["path"], each["size"], each["last_modified"], each["e_tag"])

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. An object that does not exist counts as deleted."""
        with suppress(MissingError), self._as_remote_errors(keys[0]):
            self._obstore.delete(self._remote, list(keys))

    def require_conditional_put(self) -> None:
        """Check that the store supports a PUT with conditions: it must refuse to create an object twice, and to replace a changed one.

        This takes up to eight requests with a small object. The object stays, because simultaneous checks would disturb each other by
        deleting it.

        Raises:
            RemoteError: If the store refuses or ignores the conditions. The message names the one that it ignored.
        """
        if self._is_written(None) and self._is_written(None):
            raise self._conditional_put_error("If-None-Match")
        stale = self.get(_PROBE, most_bytes=MAX_META_BYTES).state
        self.now(_PROBE)
        if self._is_written(stale):
            raise self._conditional_put_error("If-Match")

    def _is_written(self, state: str | None) -> bool:
        try:
            self.write_if(_PROBE, secrets.token_bytes(8), state=state)  # never an equal ETag
        except ConflictError:
            return False
        except RemoteError as error:
            if error.code in ("NotImplemented", "501", "InvalidArgument", "InvalidRequest"):
                raise self._conditional_put_error("If-None-Match" if state is None else "If-Match") from None
            raise
        return True

    def _conditional_put_error(self, ignored: str) -> RemoteError:
        return RemoteError(
            f"{self.address}: this bucket does not support conditional PUT (it ignores {ignored}), so two writers could mix; "
            "choose a bucket that supports it"
        )

    def _put(self, key: str, content: Any, **options: Any) -> str | None:
        remote = self._quick if isinstance(content, bytes) and len(content) <= QUICK_BYTES else self._remote
        return self._obstore.put(remote, key, content, **options)[self._state]

    def _attributes(self, sha256: str) -> dict[str, str]:
        return {_HASH_KEY: sha256}

    def _as_remote_errors(self, key: str) -> AbstractContextManager[None]:
        return _as_remote_errors(self.name_of(key) if key else self.address, self._refusals)


class FolderStore(Store):
    """A folder behind a file:// address. Files have no metadata, so `recorded_sha256` reads and hashes a file."""

    def __init__(self, address: str, obstore: Any, refusals: _Refusals, remote: Any, *, folder: Path) -> None:
        super().__init__(address, obstore, refusals, [remote] * 3)
        self._folder = folder

    def recorded_sha256(self, key: str) -> str | None:
        return super().recorded_sha256(key) or sha256_file(self._folder / key)

    def _write_once(self, key: str, content: bytes, state: str | None) -> str | None:
        if state is None:
            return super()._write_once(key, content, state)
        with hold_lock(self._folder / key, doing="push"):
            if self.get(key, most_bytes=sys.maxsize).state != state:
                raise ConflictError(f"{self.name_of(key)}: changed since it was read")
            return self._put(key, content, use_multipart=False)

    def require_conditional_put(self) -> None:
        """Do nothing: `write_if` is safe in a folder on every file system with locks."""

    def _attributes(self, sha256: str) -> dict[str, str]:
        return {}


def raise_if_stalled(chunks: Iterable[Any], sender: str) -> Iterator[memoryview]:
    """Yield the chunks of a body, as long as it is not too slow.

    Args:
        chunks: The chunks.
        sender: What sends them, for the message.

    Raises:
        RemoteError: If fewer than STALL_BYTES arrive in STALL_SECONDS of waiting for the sender.
    """
    size, waited, stream = 0, 0.0, iter(chunks)
    while True:
        began = time.monotonic()
        if (chunk := next(stream, None)) is None:
            return
        size, waited = size + len(chunk), waited + time.monotonic() - began
        yield memoryview(chunk)
        if waited >= STALL_SECONDS:
            if size < STALL_BYTES:
                raise RemoteError(f"{sender} sent only {size:,} bytes in {waited:.0f} seconds; try again", is_transient=True)
            size, waited = 0, 0.0


def _check_process(name: str) -> None:
    """Raise NielsCacheError in a forked process, where a request would wait forever. `name` is the address, for the message."""
    if _process != os.getpid():
        raise NielsCacheError(
            f"{name}: obstore cannot be used in a forked process if its parent has used it; start this process by spawn or forkserver "
            "(for a DataLoader: multiprocessing_context='spawn')"
        )


@contextmanager
def _as_remote_errors(name: str, refusals: _Refusals) -> Iterator[None]:
    """Raise RemoteError for an error of obstore in the block. `name` is the address, for the message."""
    _check_process(name)
    try:
        with panics_as_errors():
            yield
    except refusals as error:
        raise _remote_error(name, error) from None


def _remote_error(name: str, error: Exception) -> RemoteError:
    """Return the error to raise. Only the code and known words are taken from obstore's text, which may contain credentials."""
    kind, text = type(error).__name__, str(error)
    code: str = [*re.findall(r"<Code>(\w{1,64})</Code>", text), *re.findall(r"status code: (\d{3})\b", text), ""][0]
    if kind in ("AlreadyExistsError", "PreconditionError"):
        return ConflictError(f"{name}: another process wrote this object in the meantime", code=code)
    missing = "NoSuchKey" in text or (kind in ("FileNotFoundError", "NotFoundError") and code not in ("NoSuchBucket", "ContainerNotFound"))
    if missing:
        return MissingError(f"{name}: there is no such object; check the address", code=code)
    known = _MESSAGES.get(code) or _MESSAGES.get(kind)
    reason = known or next((reason for words, reason in _MESSAGES_BY_TEXT if words in text), "the store refused, or the connection broke")
    return RemoteError(f"{name}: {reason}{f' ({code})' if code else ''}", code=code, is_transient=known is None)
