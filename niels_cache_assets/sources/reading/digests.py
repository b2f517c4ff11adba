"""The digests of local files, which a command may remember, so that the next command reads only new and changed files.

A remembered digest counts only if the file still has the same size, inode and times. The time of the last change of a file (ctime) cannot
be set, so a file whose content was changed is read again. A file that was changed seconds ago is not remembered.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

from niels_cache_assets.disk.journal import write_atomically

_SETTLED_NS = 10 * 10**9  # some file systems record times in seconds

_KNOWN: ContextVar[dict[str, Any] | None] = ContextVar("known digests", default=None)  # [*stamp, digest] by absolute path


@contextmanager
def remember_digests(path: Path) -> Iterator[None]:
    """Remember the digests of this block in the file `path`, and use those that earlier blocks have remembered there.

    A file that cannot be read or written is ignored, because every digest can be computed again.
    """
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError, TypeError, AttributeError):  # also if the JSON has another shape
        known = {file: [*entry] for file, entry in json.loads(path.read_bytes()).items()}
    before, token = dict(known), _KNOWN.set(known)
    try:
        yield
    finally:
        _KNOWN.reset(token)
        if known != before:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                present = {file: entry for file, entry in known.items() if os.path.exists(file)}
                write_atomically(path, json.dumps(present).encode(), spare=f"new-{os.getpid()}")


def content_digest(path: str) -> str:
    """Return the sha256 of a local file. It is read once in a process, and again only if it has changed."""
    return _digest(os.path.abspath(path), _stamp(path))


def _stamp(path: str) -> tuple[int, ...]:
    """Return numbers of a file that change if its content does."""
    state = os.stat(path)
    return state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns


@lru_cache(maxsize=100_000)
def _digest(path: str, stamp: tuple[int, ...]) -> str:
    known = _KNOWN.get()
    if known is not None and known.get(path, ())[:-1] == [*stamp]:
        return str(known[path][-1])
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if known is not None and time.time_ns() - max(stamp[2:]) > _SETTLED_NS and _stamp(path) == stamp:
        known[path] = [*stamp, digest]
    return digest
