"""Folders that appear whole or not at all.

One writer holds a lock, writes to a staging folder beside the target, and exchanges the two folders in one step.

    .NAME.lock       lies beside NAME and stays; flock shows whether a process writes, and the kernel frees it when its owner dies
    .NAME.partial    the staging folder of NAME
    .NAME.old        the previous folder, for an instant, if the system cannot exchange two folders in one step

Builds of caches and indices of blends commit in this way. Readers need no lock. The lock file says who holds the lock, where and since
when. This is for messages, and is used only while the lock is held. This module does not depend on what is built.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import shutil
import stat
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from niels_cache_runtime.errors import NielsCacheError

_NO_LOCK_SUPPORT = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_RETRY_SECONDS = 0.5  # a new owner may not have written its name yet, and `lock_owner` takes the lock for an instant
_POLL_SECONDS = 0.02
_COMMAND_WIDTH = 80
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class BusyError(NielsCacheError):
    """The error when another build of `target` holds its lock."""

    def __init__(self, target: Path, writer: LockOwner) -> None:
        super().__init__(f"{target}: another build is writing it now: {writer}; wait until it ends (build-all --wait does), or stop it")
        self.target, self.writer = target, writer


class LockRefusedError(NielsCacheError):
    """The error when a file system refuses a lock or the lock file.

    Attributes:
        refusal: The OSError of the file system.
        no_locks: Whether the file system supports no locks at all.
    """

    def __init__(self, message: str, refusal: OSError, *, no_locks: bool) -> None:
        super().__init__(message)
        self.refusal, self.no_locks = refusal, no_locks


@dataclass(frozen=True, kw_only=True)
class LockOwner:
    """The owner of a lock.

    Attributes:
        pid: The number of its process.
        host: The name of its machine.
        since: The time when the owner took the lock, UTC, in ISO 8601 to the second.
        command: Its command line, cut to 80 characters, or what it does.
    """

    pid: int
    host: str
    since: str
    command: str

    def __str__(self) -> str:
        if self == UNKNOWN:
            return "an unknown process"
        return f"process {self.pid} on {self.host} since {self.since} ({self.command})"

    @classmethod
    def current(cls, doing: str | None = None) -> LockOwner:
        """Return the LockOwner for this process.

        Args:
            doing: A text that replaces the command line.
        """
        command = doing or " ".join([Path(sys.argv[0]).name or "python", *sys.argv[1:]])
        return cls(
            pid=os.getpid(),
            host=os.uname().nodename,
            since=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            command=textwrap.shorten(command, _COMMAND_WIDTH, placeholder=" ..."),
        )


UNKNOWN = LockOwner(pid=0, host="", since="", command="")


def lock_path(target: Path) -> Path:
    """Return the path of the file that is locked while `target` is written."""
    return target.parent / f".{target.name}.lock"


def partial_path(target: Path) -> Path:
    """Return the path of the folder in which `target` is built."""
    return target.parent / f".{target.name}.partial"


def old_path(target: Path) -> Path:
    """Return the path of the old folder during the exchange. It is used only if the system cannot exchange two folders in one step."""
    return target.parent / f".{target.name}.old"


@contextmanager
def hold_lock(
    target: Path, *, doing: str | None = None, retry_seconds: float = _RETRY_SECONDS, wait: Callable[[LockOwner], None] | None = None
) -> Iterator[None]:
    """Hold the lock of `target`, whose parent folder must exist.

    Args:
        target: The folder that is written.
        doing: What messages about the owner of the lock show. None means the command line.
        retry_seconds: For how many seconds to try before the lock counts as held by another process.
        wait: Called with the owner while another process holds the lock. When it returns, the lock is tried again.

    Raises:
        BusyError: If another process holds the lock and `wait` is None.
        LockRefusedError: If the file system has no locks, or if the lock file cannot be written.
    """
    descriptor = _acquire(target, retry_seconds, wait)
    try:
        with suppress(OSError):  # on a full disk, the lock is held without its owner's name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(LockOwner.current(doing))).encode(), 0)
        yield
    finally:
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        release_lock(descriptor)


def lock_owner(target: Path) -> LockOwner | None:
    """Return the process that writes `target` now, or None if the lock is free.

    Return UNKNOWN if the lock is held but its owner is not recorded. A file system without locks has no held locks, so return None there.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        descriptor = os.open(lock_path(target), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        is_free = not stat.S_ISREG(os.fstat(descriptor).st_mode) or try_lock(descriptor, target, fcntl.LOCK_SH)
        return None if is_free else _owner(descriptor) or UNKNOWN
    except LockRefusedError:
        return None
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, target: Path, kind: int) -> bool:
    """Take a lock (LOCK_EX or LOCK_SH) if it is free.

    Raises:
        LockRefusedError: If the file system of `target` supports no locks.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCK_SUPPORT:
            raise
        raise LockRefusedError(
            f"{target.parent}: its file system supports no locks ({error.strerror}), so two processes could write at once; "
            "write to a local disk and copy from there, or mount it with locks",
            error,
            no_locks=True,
        ) from error
    return True


def release_lock(descriptor: int) -> None:
    """Release a lock, and close its file. Closing alone would leave the lock to a forked process with the same descriptor."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _acquire(target: Path, retry_seconds: float, wait: Callable[[LockOwner], None] | None) -> int:
    path = lock_path(target)
    deadline = time.monotonic() + retry_seconds
    while True:
        descriptor = _open(path)
        owner: LockOwner | None = None
        try:
            if try_lock(descriptor, target, fcntl.LOCK_EX):
                if is_same_file(path, descriptor):
                    acquired, descriptor = descriptor, -1
                    return acquired
            else:
                owner = _owner(descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        if time.monotonic() <= deadline:
            time.sleep(_POLL_SECONDS)
        elif wait is None:
            raise BusyError(target, owner or UNKNOWN)
        else:
            wait(owner or UNKNOWN)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise LockRefusedError(
            f"{path.parent}: cannot write there: {error.strerror}; choose another cache directory", error, no_locks=False
        ) from error


def is_same_file(path: Path, descriptor: int) -> bool:
    """Return whether the locked file is still the file at `path`.

    Another process may have deleted the file. Then a new file at this path could be locked too.
    """
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> LockOwner | None:
    """Return the owner that the file of a held lock names, or None if it names no owner, or certainly names a previous owner."""
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        owner = LockOwner(**{key: found[key] for key in ("pid", "host", "since", "command")})  # a later version may write more
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    is_readable = all(isinstance(text, str) and text.isprintable() for text in (owner.host, owner.since, owner.command))
    if not is_readable or type(owner.pid) is not int or owner.pid <= 0:
        return None
    return owner if owner.host != os.uname().nodename or _is_alive(owner.pid) else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # the process belongs to another user
    return True


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is an error, and not a wait for its writer
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_folder(partial: Path, target: Path) -> None:
    """Put `partial` in the place of `target`, in one step if the system can.

    The previous folder is then at `partial`, or has been removed.
    """
    if not target.exists():
        os.rename(partial, target)
    elif not swap_paths(partial, target):
        aside = old_path(target)
        try:
            os.rename(target, aside)
            os.rename(partial, target)
        except BaseException:
            if not target.exists():
                os.rename(aside, target)
            raise
        with suppress(OSError):
            remove(aside)


def swap_paths(first: Path, second: Path) -> bool:
    """Swap two paths in one step. Return False if the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(second))


def can_exchange(folder: Path) -> bool:
    """Return whether two folders in `folder` can be exchanged in one step. To test this, two folders are made there and then removed."""
    first, second = folder / "first", folder / "second"
    try:
        first.mkdir()
        second.mkdir()
        return swap_paths(first, second)
    finally:
        remove(first)
        remove(second)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with everything in it. Do nothing if there is no such path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
