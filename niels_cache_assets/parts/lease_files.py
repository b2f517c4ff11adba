"""The files of a lease: who makes an attempt, and the request to stop. Nothing here waits or decides; lease.py does."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from niels_cache_assets.disk.attempts import attempt_record, recorded_attempts, stop_path
from niels_cache_assets.processes import Process
from niels_cache_runtime.format.commit import UNKNOWN, Writer

LOCK_SECONDS = 0.5  # a new holder may need so long to get the lock of its own file, because others try it for an instant
_RECORD_BYTES = 2048  # every record has this size, so that it is overwritten in place, and its lock stays

Mark = tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that makes an attempt, as its file says it. count: the number of renewals.

    boot: tells whether the holder runs on this kernel. is_locked: whether the holder holds the lock of the file. is_over: whether the
    attempt has ended in an orderly way. token: differs between any two attempts. overtaken: the process that still held the lock of the
    target when this attempt began, after its own lease had run out.
    """

    attempt: int
    writer: Writer
    token: str
    boot: str
    is_locked: bool = False
    is_over: bool = False
    overtaken: str | None = None
    count: int = 0

    def encoded(self) -> bytes:
        """Return the content of the file, always of the same size."""
        said = {**asdict(self.writer), **{key: value for key, value in asdict(self).items() if key != "writer"}}
        return json.dumps(said).encode().ljust(_RECORD_BYTES - 1) + b"\n"

    @classmethod
    def decoded(cls, content: bytes) -> Holder | None:
        """Return the holder, or None for a file that is not written yet or is damaged."""
        try:
            said: dict[str, Any] = json.loads(content)
            writer = Writer(**{key: said.pop(key) for key in ("pid", "host", "since", "command")})
            return cls(writer=writer, **said)
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The file of the latest attempt. holder: None if the file is not readable."""

    attempt: int
    content: bytes
    holder: Holder | None = field(compare=False)

    @property
    def is_over(self) -> bool:
        """Whether the attempt has ended in an orderly way."""
        return self.holder is not None and self.holder.is_over

    @property
    def writer(self) -> Writer:
        """The process that makes the attempt, as messages name it."""
        return UNKNOWN if self.holder is None else self.holder.writer


def latest(target: Path) -> Seen | None:
    """Return the file of the latest attempt, or None if there is none."""
    attempt = max(recorded_attempts(target), default=0)
    if not attempt:
        return None
    try:
        content = attempt_record(target, attempt).read_bytes()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
        content = b""  # a newer attempt has just replaced it
    return Seen(attempt=attempt, content=content, holder=Holder.decoded(content))


def mark_of_stop(target: Path) -> Mark:
    """Return a value that is different for each `stop`, the request to all processes. Return None without this file."""
    try:
        found = os.stat(stop_path(target))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


@dataclass(frozen=True, kw_only=True)
class Stops:
    """The requests to stop that a process obeys: every `stop` that is newer than the process, and `stop-LAUNCH` of its own launch.

    launch: the launch of the process, if a program has started it. stale: the `stop` that was there when the process began.
    """

    launch: str | None = None
    stale: Mark = None

    def requested(self, target: Path) -> Path | None:
        """Return the file of a request that this process obeys, or None."""
        if self.launch is not None and os.path.lexists(own := stop_path(target, self.launch)):
            return own
        return None if mark_of_stop(target) in (None, self.stale) else stop_path(target)


def holds_lock(target: Path, attempt: int) -> bool | None:
    """Return whether a process holds the lock of the file of an attempt. Return None if this cannot be known."""
    try:
        descriptor = os.open(attempt_record(target, attempt), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def has_died(target: Path, seen: Seen) -> bool:
    """Return whether the holder has certainly died. It has if it ran on this kernel, with a lock, and its lock is free."""
    holder = seen.holder
    is_here = holder is not None and holder.is_locked and holder.boot == Process.here().boot != ""
    return is_here and holds_lock(target, seen.attempt) is False


def take_lock(descriptor: int) -> bool:
    """Take the lock of a file that this process has just created. Return False if the file system has no locks."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        except OSError:
            return False
        else:
            return True
