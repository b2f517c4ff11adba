"""Signals and child processes: records of running processes, delayed signals, and children that end with their parent.

    lock_record, read_record, claim_record, is_locked    record which process does a job, in a file that it locks until it ends
    delay_signals                                        delay SIGINT and SIGTERM until a block has ended
    stop_on_signals                                      end a block with `InterruptRequested` on a signal, despite Dagster's handlers
    end_with_parent                                      in a child of multiprocessing: end when the parent has ended
    when_closed                                          call a function when the other end of a pipe closes
    python -m niels_cache_assets.base.processes FD MODULE [ARGUMENT ...]    run a module until the process that started it is gone

The lock of a record shows whether the recorded process is alive. It is released whenever the process ends, even by SIGKILL. It also works
between containers of one machine, and if another process has since been given the same process id. The record names the machine on which
the lock is valid, and the process to end if necessary. The callers define the job.
"""

import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_POLL_SECONDS = 0.05
_PARENT_SECONDS = 0.5
STOP_SECONDS = 1.7  # the time that a block has to end after a signal
_GRACE_SECONDS = 5.0  # the time between SIGINT or SIGTERM and SIGKILL


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process on a machine. If the system has no /proc, `boot` and `namespace` are "" and `start` is 0.

    Attributes:
        machine: The name and the id of the machine.
        boot: An id that changes with each boot, and is the same in all containers of the machine.
        namespace: The namespace in which `pid` is valid.
        pid: The process id.
        start: The start time in ticks after the boot. A later process with the same id has a different start time.
        file: The inode of the record. A copy of the record, in a folder that was copied or restored, has a different inode.
    """

    machine: str
    boot: str
    namespace: str
    pid: int
    start: int
    file: int = 0

    @classmethod
    def current(cls) -> "Process":
        try:
            namespace = os.readlink("/proc/self/ns/pid")
        except OSError:
            namespace = ""
        machine = f"{os.uname().nodename}/{_text('/etc/machine-id')}"
        boot, pid = _text("/proc/sys/kernel/random/boot_id"), os.getpid()
        return cls(machine=machine, boot=boot, namespace=namespace, pid=pid, start=_start_of(pid))

    def is_of(self, other: "Process") -> bool:
        """Return whether a lock that `other` takes is valid for this process: both are on one kernel or one machine."""
        return self.machine == other.machine or (self.boot == other.boot != "")

    def end(self) -> None:
        """End the process with SIGTERM, or with SIGKILL if it is still running after 5 seconds.

        Do nothing if the process id is not valid here.
        """
        here = Process.current()
        if (self.boot, self.namespace) != (here.boot, here.namespace) or not self.start:
            return
        deadline = time.monotonic() + _GRACE_SECONDS
        with suppress(ProcessLookupError, PermissionError):
            if self._runs():
                os.kill(self.pid, signal.SIGTERM)
            while self._runs() and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            if self._runs():
                os.kill(self.pid, signal.SIGKILL)
            while self._runs() and time.monotonic() < deadline + _GRACE_SECONDS:
                time.sleep(_POLL_SECONDS)

    def _runs(self) -> bool:
        return _start_of(self.pid) == self.start


def cpu_seconds() -> float:
    """Return the CPU time of this process, with that of its children that have ended."""
    return sum(os.times()[:4])


def lock_record(path: Path) -> int:
    """Record this process at `path`, and return the descriptor that holds the lock. Closing the descriptor releases the lock."""
    path.parent.mkdir(exist_ok=True)
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(spare, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        process = replace(Process.current(), file=os.fstat(descriptor).st_ino)
        os.write(descriptor, json.dumps(asdict(process)).encode())
        os.fsync(descriptor)
        os.replace(spare, path)  # so the record is already locked when it appears at `path`
    except BaseException:
        os.close(descriptor)
        spare.unlink(missing_ok=True)
        raise
    return descriptor


def read_record(path: Path) -> Process | None:
    """Return the process that is recorded at `path`, or None."""
    try:
        values = json.loads(path.read_bytes())
        process = Process(**values)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return process if type(process.pid) is int and process.pid > 0 and type(process.start) is int else None


@contextmanager
def claim_record(path: Path, *, copies: bool) -> Iterator[bool]:
    """Hold the lock of the record and yield True if the recorded process has ended. Otherwise yield False.

    The result is also False if the process is on another machine or is not recorded. If several processes claim a record at the same time,
    one of them gets True.

    Args:
        path: The record.
        copies: A copy of a record has no lock. With True, its process counts as ended; with False, as a process on another machine.
    """
    process = read_record(path)
    descriptor = None if process is None else open_to_lock(path)
    if process is None or descriptor is None:
        yield False
        return
    try:
        is_copy = os.fstat(descriptor).st_ino != process.file
        yield (copies if is_copy else process.is_of(Process.current())) and _lock(descriptor)
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of an existing file."""
    descriptor = open_to_lock(path)
    if descriptor is None:
        return False
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)


def end_with_parent() -> None:
    """End this child of multiprocessing when its parent has ended, with SIGTERM and then with SIGKILL."""
    import multiprocessing  # slow to import; a child of multiprocessing has imported it already

    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == parent.pid:
            time.sleep(_PARENT_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end with the parent", daemon=True).start()


def when_closed(pipe: "int | Connection", end: Callable[[], None]) -> None:
    """Call `end` on a thread when the other end of a pipe closes.

    Only one process holds the other end. It closes when that process closes it or ends, in whatever way.
    """

    def watch() -> None:
        descriptor = pipe if isinstance(pipe, int) else pipe.fileno()
        with suppress(OSError):
            os.read(descriptor, 1)
        end()

    threading.Thread(target=watch, name="end with the other end of a pipe", daemon=True).start()


def open_to_lock(path: Path) -> int | None:
    """Return a descriptor of an existing file, open for writing if permitted, or None if the file cannot be opened."""
    for access in (os.O_RDWR, os.O_RDONLY):  # NFS grants exclusive locks only on files open for writing
        try:
            return os.open(path, access | os.O_CLOEXEC)
        except OSError:
            continue
    return None


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process holds the lock, or the file system has no locks; in both cases the caller ends no process
        return False
    return True


def _start_of(pid: int) -> int:
    """Return the start time of a process, or 0 if it has ended, even if its parent has not collected the exit code yet."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if fields and fields[0] not in "ZX" else 0


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()  # the name of a process may contain any bytes
    except OSError:
        return ""


_SIGNALS = {int(signal.SIGINT): "interrupted", int(signal.SIGTERM): "terminated"}
_may_end = threading.Event()  # cleared while a block of `delay_signals` runs
_may_end.set()
_read_signals = threading.Event()  # set while a block of `stop_on_signals` runs


def are_signals_read() -> bool:
    """Return whether `stop_on_signals` is reading Python's wakeup descriptor.

    Other code must not set the descriptor then, because a signal that comes before it is restored would be lost.
    """
    return _read_signals.is_set()


@contextmanager
def delay_signals() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the block has ended.

    This replaces the signal handlers. Blocking the signals in this thread would not be enough: another thread would receive the signal, and
    Python would run the handler in this thread. During the block, `stop_on_signals` does not end the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread
        return
    received: list[int] = []

    is_inner = not _may_end.is_set()
    handlers = {number: handler for number in _SIGNALS if (handler := signal.getsignal(number)) is not None}
    try:
        _may_end.clear()
        for number in handlers:
            signal.signal(number, lambda number, _: received.append(number))
        yield
    finally:
        if not is_inner:
            _may_end.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in received[:1]:
            signal.raise_signal(number)


class InterruptRequested(KeyboardInterrupt):
    """A request to stop, from the user (SIGINT) or the system (SIGTERM)."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{_SIGNALS[number]}; finished caches are unchanged; run the same command again to resume")
        self.exit_code = 128 + number


@contextmanager
def no_resume() -> Iterator[None]:
    """Say in `InterruptRequested` that the command starts from the beginning."""
    try:
        yield
    except InterruptRequested as interrupt:
        interrupt.args = (f"{_SIGNALS[interrupt.exit_code - 128]}; no file is half written; the same command starts from the beginning",)
        raise


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise `InterruptRequested` from the block on SIGINT or SIGTERM, even if the code inside handles the signal differently.

    Dagster sets its own handlers while a step runs, and raises the same exception for both signals. The signal is therefore read from
    Python's wakeup descriptor, which receives every signal. If the block takes longer than `STOP_SECONDS` to end (for example during a slow
    read in C code), the process ends at once. That is as safe as a kill, because a new cache replaces the old one in one step, and the next
    build resumes an unfinished build.
    """
    import logging

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    received: list[int] = []
    finished = threading.Event()
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)

    def watch() -> None:
        for number in iter(lambda: os.read(read_end, 1), b""):
            if number[0] in _SIGNALS:
                received.append(number[0])
                _may_end.wait()
                if not finished.wait(STOP_SECONDS):
                    os.write(2, f"niels-cache: {InterruptRequested(number[0])}\n".encode())
                    os._exit(128 + number[0])

    def stop(number: int, frame: FrameType | None) -> None:
        raise InterruptRequested(number)

    # If a signal comes while SQLAlchemy closes a connection, SQLAlchemy would log a traceback, and raise the exception too.
    pool = logging.getLogger("sqlalchemy.pool")
    old_level = pool.level
    pool.setLevel(logging.CRITICAL)
    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    old_handlers = {number: signal.signal(number, stop) for number in _SIGNALS}
    old_descriptor = signal.set_wakeup_fd(write_end)
    is_inner = are_signals_read()
    _read_signals.set()
    watcher.start()
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
    finally:
        finished.set()
        signal.set_wakeup_fd(old_descriptor)
        if not is_inner:
            _read_signals.clear()
        os.close(write_end)  # ends the watcher
        watcher.join()
        os.close(read_end)
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        pool.setLevel(old_level)
    if received:
        raise InterruptRequested(received[0]) from failure
    if failure is not None:
        raise failure


def attended_command(pipe: int, module: str, *arguments: str) -> list[str]:
    """Return the command that runs a Python module as a child which ends with this process.

    Args:
        pipe: The read end of a pipe that the child inherits, and whose write end only this process holds.
        module: The module.
        *arguments: The arguments of the module.
    """
    return [sys.executable, "-m", __name__, str(pipe), module, *arguments]


def run_attended() -> None:
    """Run the module that the command line names, until the process that started this process is gone.

    FD is the read end of a pipe. Only the process that started this process holds the other end, which closes when that process ends, even
    by SIGKILL. This process and all its children then get SIGINT, as if the user had pressed Ctrl-C, and SIGKILL if they are still running
    5 seconds later. This works only if this process leads its own session (`start_new_session`). In its own session, it does not get Ctrl-C
    from the terminal, and the parent decides when it ends.
    """
    import runpy

    descriptor, module, *arguments = sys.argv[1:]
    assert os.getpgrp() == os.getpid(), "start it with start_new_session: it ends its whole process group"

    def end() -> None:
        os.killpg(os.getpid(), signal.SIGINT)
        time.sleep(_GRACE_SECONDS)
        os.killpg(os.getpid(), signal.SIGKILL)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background processes with SIGINT ignored
    when_closed(int(descriptor), end)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:  # the module is still loading; a traceback would not help
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    run_attended()
