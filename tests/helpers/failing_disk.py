"""A disk that fails at a chosen call. `Disk` counts the changes that this process makes to files below a folder, and breaks one of the
calls.

Only the number of the call decides, so the number is enough to repeat a failure. Changes by C code (a library that opens a path) are not
seen, so writers give Python's files to such libraries.
"""

import errno
import functools
import io
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from unittest import mock

from niels_cache_runtime.format import commit

_BY_PATH = ("mkdir", "rmdir", "unlink", "remove", "truncate")
_BY_TWO_PATHS = ("rename", "replace", "link", "symlink")
_BY_DESCRIPTOR = ("fsync", "fdatasync", "ftruncate", "write", "pwrite")


class Disk:
    """The changes that this process makes below `folder`. Calls are counted from 0, and call `at` is broken.

    fault: "kill" ends the process at this call, as SIGKILL does. An errno makes the call raise this OSError without any change. lasting:
        all later calls of the same kind fail too. calls: "kind path" of every call so far, with paths relative to the folder.
    """

    def __init__(self, folder: Path, *, at: int | None = None, fault: Literal["kill"] | int = "kill", lasting: bool = False) -> None:
        self._folder = os.path.realpath(folder)
        self._at, self._fault, self._lasting = at, fault, lasting
        self._broken: str | None = None
        self.calls: list[str] = []

    @contextmanager
    def installed(self) -> Iterator["Disk"]:
        """Count and break calls in the block."""
        with mock.patch.multiple(os, **self._os_calls()):
            opened = functools.partial(self._open, open)
            with mock.patch("builtins.open", opened), mock.patch.object(io, "open", opened):
                exchange = functools.partial(self._two_paths, "exchange", commit.swap_paths)
                with mock.patch.object(commit, "swap_paths", exchange):
                    yield self

    def _os_calls(self) -> dict[str, Any]:
        calls: dict[str, Any] = {"open": functools.partial(self._os_open, os.open)}
        calls |= {name: functools.partial(self._one_path, name, getattr(os, name)) for name in _BY_PATH}
        calls |= {name: functools.partial(self._two_paths, name, getattr(os, name)) for name in _BY_TWO_PATHS}
        return calls | {name: functools.partial(self._descriptor, name, getattr(os, name)) for name in _BY_DESCRIPTOR}

    def count(self, kind: str, path: str | os.PathLike[str] | bytes, *, folder: int | None = None) -> None:
        """Count a call that changes `path`. Break this call if its number is `at`."""
        whole = os.fsdecode(path) if folder is None else os.path.join(_path_of(folder), os.fsdecode(path))
        real = os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))
        if os.path.commonpath([self._folder, real]) != self._folder:
            return
        number = len(self.calls)
        self.calls.append(f"{kind} {os.path.relpath(real, self._folder)}")
        if number == self._at:
            if self._fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            self._broken = kind
        if number == self._at or (self._lasting and kind == self._broken):
            code = errno.EIO if self._fault == "kill" else self._fault
            raise OSError(code, os.strerror(code), real)

    def _one_path(self, kind: str, call: Callable[..., Any], path: Any, *args: Any, **settings: Any) -> Any:
        if isinstance(path, int):
            return self._descriptor(kind, call, path, *args, **settings)
        self.count(kind, path, folder=settings.get("dir_fd"))
        return call(path, *args, **settings)

    def _two_paths(self, kind: str, call: Callable[..., Any], first: Any, second: Any, *args: Any, **settings: Any) -> Any:
        self.count(kind, second, folder=settings.get("dst_dir_fd"))
        return call(first, second, *args, **settings)

    def _descriptor(self, kind: str, call: Callable[..., Any], descriptor: Any, *args: Any, **settings: Any) -> Any:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        path = _path_of(number)
        if path.startswith("/"):  # no pipe, no socket
            self.count(kind, path)
        return call(descriptor, *args, **settings)

    def _os_open(self, call: Callable[..., int], path: Any, flags: int, *args: Any, **settings: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            self.count("open", path, folder=settings.get("dir_fd"))
        return call(path, flags, *args, **settings)

    def _open(self, call: Callable[..., Any], path: Any, mode: str = "r", *args: Any, **settings: Any) -> Any:
        if not set(mode) & set("wax+"):
            return call(path, mode, *args, **settings)
        named = isinstance(path, str | bytes | os.PathLike)
        if named:
            self.count("open", path)
        return _WrittenFile(call(path, mode, *args, **settings), self, os.fsdecode(path) if named else _path_of(path))


class _WrittenFile:
    """A file open for writing whose calls are counted."""

    def __init__(self, file: Any, disk: Disk, path: str) -> None:
        self._file, self._disk, self._path = file, disk, os.path.abspath(path)

    def write(self, data: Any) -> Any:
        self._disk.count("write", self._path)
        return self._file.write(data)

    def writelines(self, lines: Any) -> None:
        self._disk.count("write", self._path)
        self._file.writelines(lines)

    def truncate(self, size: int | None = None) -> Any:
        self._disk.count("truncate", self._path)
        return self._file.truncate(size)

    def flush(self) -> None:
        self._disk.count("flush", self._path)
        self._file.flush()

    def __getattr__(self, name: str) -> Any:
        if name == "_file":  # not set yet, as in a copy
            raise AttributeError(name)
        return getattr(self._file, name)

    def __enter__(self) -> "_WrittenFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def killed_at(folder: Path, at: int, act: Callable[[], object]) -> bool:
    """Act in a fork of this process, which is killed at the change number `at` below `folder`. Return False if it ends well before."""

    def act_and_die() -> None:
        with Disk(folder, at=at).installed():
            act()

    child = multiprocessing.get_context("fork").Process(target=act_and_die)
    child.start()
    child.join(60)
    assert child.exitcode in (0, -signal.SIGKILL), child.exitcode
    return child.exitcode != 0


def kill_at_each(
    folder: Path, calls: Iterable[int], act: Callable[[], object], *, reset: Callable[[], object], compare: Callable[[], object]
) -> None:
    """For each of these changes below `folder`: put the state of before back, act until this change, and compare what is left."""
    for at in calls:
        reset()
        assert killed_at(folder, at, act), f"it has ended before call {at}"
        compare()
