"""The content of a remote file, piece by piece, or a range of it.

After a failure, only the rest is requested again, with growing waits.
"""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from niels_cache_runtime.remote.record import RemoteFile
from niels_cache_runtime.remote.store import STALL_BYTES, MissingError, ObjectRange, RemoteError, Store

_MAX_FAILURES = 6  # without STALL_BYTES between them
_RETRY_SECONDS = 600.0  # without STALL_BYTES
_FIRST_WAIT_SECONDS = 0.1
_BLOCK_BYTES = 1 << 22


class WrongContentError(RemoteError):
    """Content whose sha256 differs from the recorded one."""


class ObjectSource(Protocol):
    """An origin of remote files, such as a store."""

    def name_of(self, key: str) -> str:
        """Return the address of a file, for messages."""

    def stream(self, key: str, *, start: int = 0) -> Iterator[memoryview]:
        """Yield the content of a file from byte `start` on."""


class ByteCounter(Protocol):
    """A count of transferred bytes. Both methods raise an exception if the work must stop."""

    def add(self, count: int) -> None:
        """Count bytes."""
        return

    def wait(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class _Uncounted(ByteCounter):
    """A count that nobody reads."""


UNCOUNTED = _Uncounted()


@contextmanager
def explain_missing(source: ObjectSource, file: RemoteFile) -> Iterator[None]:
    """Raise MissingError with an explanation if the file of a build that has been opened is missing: the build has been pruned since."""
    try:
        yield
    except MissingError:
        raise MissingError(f"{source.name_of(file.key)}: is gone; somebody has pruned this build; run again") from None


def stream_with_retries(source: ObjectSource, file: RemoteFile, *, start: int = 0, tally: ByteCounter = UNCOUNTED) -> Iterator[memoryview]:
    """Yield the content of a file from byte `start` on, at most up to `file.size`.

    Args:
        source: Where the file is.
        file: The file, with its recorded size.
        start: The first byte to yield.
        tally: Counts the bytes that were yielded.

    Raises:
        MissingError: If the file is missing.
        RemoteError: If the file has more bytes than recorded, or if the source refuses or fails repeatedly.
    """
    size = counted = start
    failures, progressed = 0, time.monotonic()
    while size < file.size:
        failure: RemoteError | None = None
        try:
            with explain_missing(source, file):
                for piece in source.stream(file.key, start=size):
                    size += len(piece)
                    if size > file.size:
                        raise RemoteError(f"{source.name_of(file.key)}: has more than {file.size} bytes; push the cache again")
                    yield piece
                    tally.add(len(piece))
        except RemoteError as error:
            if not error.is_transient:
                raise
            failure = error
        failures += 1
        if size - counted >= STALL_BYTES:
            failures, counted, progressed = 0, size, time.monotonic()
        if size < file.size:
            if failures > _MAX_FAILURES or time.monotonic() - progressed > _RETRY_SECONDS:
                raise failure or RemoteError(f"{source.name_of(file.key)}: ends after {size} of {file.size} bytes; push the cache again")
            tally.wait(_FIRST_WAIT_SECONDS * 2**failures)


def append_file(source: ObjectSource, file: RemoteFile, path: Path) -> None:
    """Append the content of a file to the file `path`.

    Raises:
        WrongContentError: If the content has another sha256 than recorded.
    """
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as opened:
        for piece in stream_with_retries(source, file):
            opened.write(piece)
            digest.update(piece)
    if digest.hexdigest() != file.sha256:
        raise WrongContentError(f"{source.name_of(file.key)}: its content has another sha256 than recorded; build it again")


def complete_download(opened: BinaryIO, source: ObjectSource, file: RemoteFile, *, tally: ByteCounter = UNCOUNTED) -> int:
    """Download the part of a remote file that an open file lacks. If the sha256 is then wrong, download the whole file once more.

    Args:
        opened: The file to complete. It may already contain the first bytes.
        source: Where the remote file is.
        file: The remote file, with its recorded size and sha256.
        tally: Counts all bytes of the file, including those that were there before.

    Returns:
        The number of bytes that were downloaded.

    Raises:
        WrongContentError: If the second sha256 is wrong, too. The open file is then empty.
        MissingError: If the remote file is missing.
        RemoteError: If the remote file has more bytes than recorded, or if the source refuses or fails repeatedly.
    """
    fetched = 0
    for _ in range(2):  # the network may have changed a byte
        digest, size = hashlib.sha256(), opened.seek(0, os.SEEK_END)
        if size > file.size:
            opened.truncate(size := 0)
        opened.seek(0)
        while block := opened.read(_BLOCK_BYTES):
            digest.update(block)
        tally.add(size)
        for piece in stream_with_retries(source, file, start=size, tally=tally):
            opened.write(piece)
            digest.update(piece)
            fetched += len(piece)
        opened.flush()
        if digest.hexdigest() == file.sha256:
            return fetched
        opened.truncate(0)
        tally.add(-file.size)
    raise WrongContentError(f"{source.name_of(file.key)}: its content has another sha256 than recorded; push it again with --repair")


def read_range(store: Store, file: RemoteFile, length: int, *, start: int = 0) -> ObjectRange:
    """Return a range of a file as `Store.read_range` does, with retries.

    Raises:
        MissingError: If the file is missing.
        RemoteError: If another object is stored under its key, or if the store refuses or fails repeatedly.
    """
    failures = 0
    while True:
        try:
            with explain_missing(store, file):
                found = store.read_range(file.key, length, start=start)
            if found.size != file.size or found.sha256 not in (None, file.sha256) or len(found.content) != length:
                raise changed_object_error(store, file)
            return found
        except RemoteError as error:
            if not error.is_transient or failures == _MAX_FAILURES:
                raise
        time.sleep(_FIRST_WAIT_SECONDS * 2**failures)
        failures += 1


def changed_object_error(store: Store, file: RemoteFile) -> RemoteError:
    """Return the error for an object that is not the recorded one."""
    return RemoteError(f"{store.name_of(file.key)}: is another object than the one that meta.json lists; push it again with --repair")
