"""One writer per directory: a lock beside it that the kernel gives back when its owner dies.

`.NAME.lock` lies beside NAME and stays. Whether somebody writes is what flock says; what the file says (who, where, since when) is for
messages, and believed only while the lock is held. Readers need no lock. What is built under one is not known here.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from niels_cache_runtime.errors import NielsCacheError

Result = TypeVar("Result")

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_PATIENCE_SECONDS = 0.5  # for an owner that has not written its name yet, and for those who only look: what is written may be of one before
_POLL_SECONDS = 0.02
_WAIT_SECONDS = 0.2
_COMMAND_WIDTH = 80


class Busy(NielsCacheError):
    """Another build of `target` holds its lock."""

    def __init__(self, target: Path, writer: Writer) -> None:
        super().__init__(f"{target}: another build is writing it now: {writer}; wait for it to end (build-all --wait does), or stop it")
        self.target, self.writer = target, writer


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Who holds a lock. `since`: when it was taken, UTC, as ISO 8601 has it to the second."""

    pid: int
    host: str
    since: str
    command: str

    def __str__(self) -> str:
        if self == UNKNOWN:
            return "a process that has not said which it is"
        return f"process {self.pid} on {self.host} since {self.since} ({self.command})"

    @classmethod
    def here(cls, doing: str | None = None) -> Writer:
        command = doing or " ".join([Path(sys.argv[0]).name or "python", *sys.argv[1:]])
        return cls(
            pid=os.getpid(),
            host=os.uname().nodename,
            since=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            command=textwrap.shorten(command, _COMMAND_WIDTH, placeholder=" ..."),
        )


UNKNOWN = Writer(pid=0, host="", since="", command="")


def lock_path(target: Path) -> Path:
    return target.parent / f".{target.name}.lock"


@contextmanager
def writer_lock(target: Path, *, doing: str | None = None, patience: float = _PATIENCE_SECONDS) -> Iterator[None]:
    """Hold the lock of `target`, whose parent exists. `doing` stands for the command in what others are told of its owner.

    Raises Busy with who holds it, NielsCacheError where the file system has no locks or the lock's file cannot be written.
    """
    descriptor = _acquire(target, patience)
    try:
        with suppress(OSError):  # a full disk: the lock holds without its owner's name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(Writer.here(doing))).encode(), 0)
        yield
    finally:
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone would leave it to a fork that has the descriptor too
        os.close(descriptor)


def writer_of(target: Path) -> Writer | None:
    """Who writes `target` now, None where nobody does; UNKNOWN where somebody does who has not said who."""
    try:
        descriptor = os.open(
            lock_path(target), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )  # a pipe would wait for its writer
    except OSError:
        return None
    try:
        return (
            None
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) or try_lock(descriptor, target, fcntl.LOCK_SH)
            else _owner(descriptor) or UNKNOWN
        )
    finally:
        os.close(descriptor)


def when_free(attempt: Callable[[], Result], *, wait: bool, log: Callable[[str], None]) -> Result:
    """What `attempt` returns. Where another build is in its way it is made again when that has ended, if `wait`; else that is an error.

    The other one may have made what was wanted: for `attempt` to see. `log` is told for whom it waits.
    """
    while True:
        try:
            return attempt()
        except Busy as busy:
            if not wait:
                raise
            _wait_until_free(busy.target, log)


def _wait_until_free(target: Path, log: Callable[[str], None]) -> None:
    told: Writer | None = None
    while (writer := writer_of(target)) is not None:
        if writer != told:
            log(f"waiting for the other build of {target}: {writer}")
            told = writer
        time.sleep(_WAIT_SECONDS)


def _acquire(target: Path, patience: float) -> int:
    """A descriptor of the lock's file that holds the lock."""
    path = lock_path(target)
    deadline = time.monotonic() + patience
    while True:
        descriptor = _open(path)
        writer: Writer | None = None
        try:
            if try_lock(descriptor, target, fcntl.LOCK_EX):
                if _is_still(path, descriptor):
                    held, descriptor = descriptor, -1
                    return held
            else:
                writer = _owner(descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        if time.monotonic() > deadline:
            raise Busy(target, writer or UNKNOWN)
        time.sleep(_POLL_SECONDS)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise NielsCacheError(f"{path.parent}: cannot write there: {error.strerror}; choose another cache directory") from error


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the file that is locked is the one that others would lock: someone may have deleted it."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def try_lock(descriptor: int, target: Path, kind: int) -> bool:
    """Take a lock (LOCK_EX or LOCK_SH) if it is free. Raises NielsCacheError where the file system of `target` has none."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise NielsCacheError(
            f"{target.parent}: its file system has no locks ({error.strerror}), so two processes could write at once; write to a "
            "local disk and copy from there, or mount it with locks"
        ) from error
    return True


def _owner(descriptor: int) -> Writer | None:
    """What the file of a lock that is held says, unless that is surely of an owner before."""
    try:
        said = json.loads(os.pread(descriptor, 4096, 0))
        writer = Writer(pid=said["pid"], host=said["host"], since=said["since"], command=said["command"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    named = all(isinstance(text, str) and text.isprintable() for text in (writer.host, writer.since, writer.command))
    if not named or type(writer.pid) is not int or writer.pid <= 0:
        return None
    return writer if writer.host != os.uname().nodename or _is_alive(writer.pid) else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's
    return True
