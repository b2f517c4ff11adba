"""The lease of a part, which decides which process builds the part, even among machines that share no file locks.

    .part-00017.lease/attempt-00002.json    who makes the latest attempt, how far it is, what it cost, and how it has ended
    .part-00017.lease/stop                  a request to stop, for all processes that build the part or wait for it
    .part-00017.lease/stop-LAUNCH           the same, for processes that were started with this name (cluster/child.py)

The holder increments the count every `renew_seconds`. A process that sees the same bytes for `lease_seconds` takes over: it creates the
file of the next attempt, and only one process can create a file. Each process measures this time with its own clock, and only while it can
read. Clocks of two machines are thus never compared, and an unresponsive file server does not end a lease.

The lock (flock) on the file of an attempt only reveals sooner that a holder on the same kernel has died. A lock that is held proves
nothing, because a frozen process keeps its lock. If possible, the lock of the target (format/commit.py) is also held: for messages, and to
exclude programs that do not know leases.

A holder that was overtaken notices it in its thread, in `check`, or when its staging directory is gone. Costs: one small write every
`renew_seconds`, and one look into a small folder for each record of the journal.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from niels_cache_assets.base.processes import Process, cpu_seconds
from niels_cache_assets.disk.attempts import attempt_record, highest_number, lease_path, recorded_attempts, stop_path
from niels_cache_assets.disk.build_lock import path_stamp
from niels_cache_assets.facts.progress import BuildProgress, SpeedEstimate, SpeedMeter
from niels_cache_assets.project.running import ClusterSettings
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import (
    UNKNOWN,
    BusyError,
    LockOwner,
    LockRefusedError,
    hold_lock,
    is_same_file,
    lock_owner,
    sync,
    try_lock,
)

LOCK_SECONDS = 0.5  # how long a new holder tries to lock its own file, because others try it for an instant
_RECORD_BYTES = 2048  # every record is padded to this size, so it can be overwritten in place and its lock stays
_LONGEST_ERROR = 500  # characters
UNKNOWN_SPEED = SpeedEstimate(None, None)
DONE, STOPPED = "done", "stopped"

Stamp = tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class LeaseHolder:
    """The process that makes an attempt, and the attempt so far, as recorded in the attempt's file.

    Attributes:
        attempt: The number of the attempt.
        writer: The process, as messages name it.
        token: A random value that differs between any two attempts.
        boot: Identifies the kernel on which the holder runs.
        is_locked: Whether the holder holds the lock of the file.
        overtaken: The process that still held the lock of the target when this attempt began, after its own lease had expired.
        log: The file to which stderr of the holder goes, or None.
        earlier_cpu_seconds: The CPU time of earlier attempts: of those that finished, and of all others up to their last renewal.
        seconds: How long the attempt has run, at the last renewal.
        cpu_seconds: The CPU time of the holder in this attempt, with that of its children that have ended.
        counts: What was read or written, by unit.
        share: The finished share from 0 to 1, or None if it is unknown.
        speed: The speed in the last unit of the counts, and the remaining time.
        ended: `done`, `stopped`, or the error with which the attempt failed. None while it runs, and if its process was killed.
    """

    attempt: int
    writer: LockOwner
    token: str
    boot: str
    is_locked: bool = False
    overtaken: str | None = None
    log: str | None = None
    earlier_cpu_seconds: Sequence[float] = (0.0, 0.0)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    share: float | None = None
    speed: SpeedEstimate = UNKNOWN_SPEED
    ended: str | None = None

    @classmethod
    def following(cls, last: LeaseHolder | None, attempt: int, *, overtaken: str | None = None) -> LeaseHolder:
        """Return this process as the one that makes an attempt, after the latest attempt by another."""
        return cls(
            attempt=attempt,
            writer=LockOwner.current(),
            token=secrets.token_hex(8),
            boot=Process.current().boot,
            overtaken=overtaken,
            log=_log_file(),
            earlier_cpu_seconds=(0.0, 0.0) if last is None else last.all_cpu_seconds(),
        )

    def all_cpu_seconds(self) -> tuple[float, float]:
        """Return the CPU time of all attempts: of those that finished, and of all others."""
        finished, lost = self.earlier_cpu_seconds
        return (finished + self.cpu_seconds, lost) if self.ended == DONE else (finished, lost + self.cpu_seconds)

    def encoded(self) -> bytes:
        """Return the content of the file: one line, which almost always has the same size."""
        return json.dumps(asdict(self)).encode().ljust(_RECORD_BYTES - 1) + b"\n"

    @classmethod
    def decoded(cls, content: bytes) -> LeaseHolder | None:
        """Return the holder, or None if the file is not written yet or is damaged."""
        try:
            fields: dict[str, Any] = json.loads(content.partition(b"\n")[0])  # a longer record may have been there before
            return cls(**{**fields, "writer": LockOwner(**fields["writer"]), "speed": SpeedEstimate(*fields["speed"])})
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


class AttemptFile(NamedTuple):
    """The file of the latest attempt.

    Attributes:
        attempt: The number of the attempt, or 0 if there is none.
        content: The bytes of the file.
        holder: The process that makes the attempt, or None if there is no file, or none that can be parsed.
    """

    attempt: int
    content: bytes
    holder: LeaseHolder | None

    @property
    def is_over(self) -> bool:
        """Whether there is no attempt, or it has ended properly."""
        return not self.attempt or (self.holder is not None and self.holder.ended is not None)

    @property
    def writer(self) -> LockOwner:
        """The process that makes the attempt, as messages name it."""
        return UNKNOWN if self.holder is None else self.holder.writer


def latest(target: Path) -> AttemptFile:
    """Return the file of the latest attempt."""
    attempt, content = max(recorded_attempts(target), default=0), b""
    try:
        content = attempt_record(target, attempt).read_bytes() if attempt else b""
    except OSError as error:  # ENOENT, ESTALE: a newer attempt has just replaced it
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
    return AttemptFile(attempt, content, LeaseHolder.decoded(content))


def stop_stamp(target: Path) -> Stamp:
    """Return a value that differs for each `stop`, the request to all processes, or None without this file."""
    return path_stamp(stop_path(Path(os.path.realpath(target))))  # as a lease resolves it


@dataclass(frozen=True, kw_only=True)
class StopRequests:
    """The requests to stop that apply to a process: every `stop` that is newer than the process, and `stop-LAUNCH` of its own launch.

    Attributes:
        launch: The name that the program which started the process gave to it. None if there is none.
        stale: The `stop` that existed when the process began.
        on_stop: Called once, on another thread, if a stop is requested while a lease is held. None: only the checks of the lease raise.
    """

    launch: str | None = None
    stale: Stamp = None
    on_stop: Callable[[], None] | None = None

    def requested(self, target: Path) -> Path | None:
        """Return the file of a request that applies to this process, or None."""
        if self.launch is not None and os.path.lexists(own := stop_path(target, self.launch)):
            return own
        return None if stop_stamp(target) in (None, self.stale) else stop_path(target)

    def check(self, target: Path) -> None:
        """Raise StopRequested if a request applies to this process."""
        if (request := self.requested(target)) is not None:
            raise stop_error(target, request)


def holds_lock(target: Path, attempt: int) -> bool | None:
    """Return whether a process holds the lock of the file of an attempt, or None if this cannot be determined."""
    try:
        descriptor = os.open(attempt_record(target, attempt), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return not try_lock(descriptor, target, fcntl.LOCK_SH)
    except (OSError, LockRefusedError):
        return None
    finally:
        os.close(descriptor)


def has_died(target: Path, seen: AttemptFile) -> bool:
    """Return whether the holder has certainly died: it ran on this kernel and held a lock that is now free."""
    holder = seen.holder
    is_here = holder is not None and holder.is_locked and holder.boot == Process.current().boot != ""
    return is_here and holds_lock(target, seen.attempt) is False


def take_lock(descriptor: int, target: Path) -> bool:
    """Take the lock of a file that this process has just created. Return False if the file system has no locks."""
    deadline = time.monotonic() + LOCK_SECONDS
    with suppress(OSError, LockRefusedError):
        while not (is_taken := try_lock(descriptor, target, fcntl.LOCK_EX)) and time.monotonic() <= deadline:
            time.sleep(0.01)
        return is_taken
    return False


def _log_file() -> str | None:
    """Return the file to which stderr of this process goes, such as the log of a scheduler. None on a terminal, and without /proc."""
    with suppress(OSError):
        path = os.readlink("/proc/self/fd/2")
        return path if os.path.isfile(path) else None
    return None


Log = Callable[[str], None]

_MAX_POLL_SECONDS = 1.0
_WRITE_SECONDS = 1.0  # the end of a lease waits at least this long for a renewal in progress


class LeaseLostError(NielsCacheError):
    """The loss of a lease: another process has taken over the target, because this process did not renew the lease in time."""


class StopRequested(NielsCacheError):
    """A request to the processes that build this target to stop."""


class HeldLease(ABC):
    """The right to make one attempt to build a target, in a folder (`Lease`) or in a store (store_lease.py).

    Attributes:
        target: The target.
        attempt: The number of the attempt, which no other attempt has.
        stored: The StoreAttempt (store_attempt.py) with the files of the attempt in a store, or None if they are in a folder.
    """

    stored: Any = None

    def __init__(self, target: Path, holder: LeaseHolder) -> None:
        self.target, self.attempt = target, holder.attempt
        self._holder = holder
        self._began, self._cpu_before = time.monotonic(), cpu_seconds()
        self._cpu_until: float | None = None  # where the count of CPU time pauses
        self._meter = SpeedMeter()
        self._progress: dict[str, Any] = {}
        self._is_lost = False
        self._stop: Path | None = None  # the latest request that was seen
        self._ended = threading.Event()
        self._writing = threading.Lock()

    @property
    def name(self) -> str:
        """What messages call the target."""
        return str(self.target)

    @abstractmethod
    def _was_overtaken(self) -> bool:
        """Look whether another process has taken over."""

    @abstractmethod
    def _find_owner(self) -> LockOwner:
        """Return the process that makes the latest attempt."""

    @abstractmethod
    def _send(self, record: LeaseHolder) -> None:
        """Replace the record of this attempt, unless another process has taken over, which sets `_is_lost`."""

    def _close(self) -> None:  # noqa: B027  not every lease holds something
        """Release what the lease holds, after its last record."""

    def check(self) -> None:
        """Check that this process still holds the lease. Call this before each record.

        Raises:
            LeaseLostError: If another process has taken over.
            StopRequested: If a stop was requested.
            RemoteError: If a store refuses or does not answer.
        """
        self._is_lost = self._is_lost or self._was_overtaken()
        self.check_quickly()

    def check_quickly(self) -> None:
        """Raise the same errors as `check`, but without a look at the record, from what the latest renewal has seen."""
        if self._is_lost:
            raise self.lost_error()
        if self._stop is not None:
            raise stop_error(self.target, self._stop)

    def lost_error(self) -> LeaseLostError:
        """Return the error for the loss of this lease."""
        who = UNKNOWN
        with suppress(OSError, NielsCacheError):
            who = self._find_owner()
        return LeaseLostError(
            f"{self.name}: {who} has taken over, because this process did not renew its lease in time; "
            f"attempt {self.attempt} stops here, and the other process continues from its last record"
        )

    def is_lost(self) -> bool:
        """Return whether another process has taken over. This never raises."""
        with suppress(OSError, NielsCacheError):
            self._is_lost = self._is_lost or self._was_overtaken()
        return self._is_lost

    def report(self, progress: BuildProgress) -> None:
        """Record the progress of the attempt with the next renewal."""
        speed = self._meter.estimate(progress, time.monotonic())
        self._progress = {"counts": dict(progress.counts), "share": progress.share, "speed": speed}

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave out the CPU time of the block, which takes leases of its own that record it."""
        self._cpu_until = cpu_seconds()
        try:
            yield
        finally:
            self._cpu_before, self._cpu_until = self._cpu_before + cpu_seconds() - self._cpu_until, None

    def _write(self, ended: str | None = None) -> None:
        with self._writing:
            record = replace(
                self._holder,
                **self._progress,
                seconds=time.monotonic() - self._began,  # differs in each record, which shows that this process is alive
                cpu_seconds=(self._cpu_until or cpu_seconds()) - self._cpu_before,
                ended=ended,
            )
            self._send(record)

    @contextmanager
    def renewed(self, times: ClusterSettings, stops: StopRequests) -> Iterator[None]:
        """Renew the lease on a thread, as long as the block runs. Then record how the attempt has ended."""

        def renew() -> None:
            while not self._is_lost and not self._ended.wait(times.renew_seconds):
                # The disk is full, or the store does not answer: the next renewal may succeed, and `check` raises if it was too late.
                with suppress(OSError, NielsCacheError):
                    if self._stop is None:
                        self._stop = stops.requested(self.target)
                        if self._stop is not None and stops.on_stop is not None:
                            stops.on_stop()
                    self._write()

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        ended = DONE
        try:
            yield
        except BaseException as error:
            is_failure = isinstance(error, Exception) and not isinstance(error, StopRequested)
            ended = (str(error) or type(error).__name__).partition("\n")[0][:_LONGEST_ERROR] if is_failure else STOPPED
            raise
        finally:
            self._ended.set()
            thread.join(max(times.renew_seconds, _WRITE_SECONDS))
            if not thread.is_alive():  # otherwise the thread hangs in a stalled write
                if not self._is_lost:
                    with suppress(OSError, NielsCacheError):
                        self._write(ended)  # the next process need not wait
                self._close()


class Lease(HeldLease):
    """The right to make an attempt in a folder. `hold_lease` creates it.

    Attributes:
        waited: Whether the caller had to wait for another process.
    """

    def __init__(self, target: Path, holder: LeaseHolder, descriptor: int, *, waited: bool) -> None:
        super().__init__(target, holder)
        self._descriptor, self.waited = descriptor, waited

    def _was_overtaken(self) -> bool:
        is_latest = max(recorded_attempts(self.target), default=0) == self.attempt
        return not (is_latest and is_same_file(attempt_record(self.target, self.attempt), self._descriptor))

    def _find_owner(self) -> LockOwner:
        return latest(self.target).writer

    def _send(self, record: LeaseHolder) -> None:
        self._is_lost = self._is_lost or self._was_overtaken()
        if not self._is_lost:
            os.pwrite(self._descriptor, record.encoded(), 0)
            os.fsync(self._descriptor)  # other machines see it only after this

    def _close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def hold_lease(
    target: Path,
    *,
    times: ClusterSettings,
    wait: bool,
    log: Log,
    stops: StopRequests | None = None,
    at_once: bool = False,
) -> Iterator[Lease]:
    """Hold the lease of `target`, and renew it during the block.

    Args:
        target: The target, whose parent folder must exist.
        times: When to renew the lease, and when to take over the lease of another process.
        wait: If another process builds the target, log this, and wait until that process ends or its lease expires. Without `wait`,
            BusyError is raised as soon as it is certain that the other process is alive. A lease that may be abandoned is watched until
            this is known.
        log: Called with a line about each wait.
        stops: The requests to stop that apply. By default, every `stop` that is created after this call.
        at_once: Whether to raise BusyError at once if the lease cannot be taken now.

    Raises:
        BusyError: If another process builds the target.
        LeaseLostError: From the block, if another process has taken over.
        StopRequested: If a stop was requested before the lease is taken.
    """
    stops = stops or StopRequests(stale=stop_stamp(target))
    with ExitStack() as stack:
        lease = _Claim(target, times, log, stops).take(stack, wait=wait, at_once=at_once)
        if stops.stale is not None and stop_stamp(target) == stops.stale:
            with suppress(OSError):
                stop_path(target).unlink()
        stack.enter_context(lease.renewed(times, stops))
        try:
            yield lease
        except LeaseLostError:
            raise
        except Exception as error:  # such as an OSError for a staging directory that the next attempt has moved away
            if lease.is_lost():
                raise lease.lost_error() from error
            raise


def lease_owner(target: Path) -> LockOwner | None:
    """Return the process that builds `target` on this machine or, by its lease, on another machine, or None.

    A process on another machine may have died in the meantime; only a process that waits for it finds out.
    """
    writer, seen = lock_owner(target), latest(real := Path(os.path.realpath(target)))
    if writer is not None or seen.is_over or has_died(real, seen):
        return writer
    return seen.writer


def request_stop(target: Path, launch: str | None = None) -> None:
    """Ask processes that build `target`, or wait for it, to stop. They notice it at their next renewal or look.

    Args:
        target: The target.
        launch: Ask only processes that were started with this name, including those that begin later. None asks all.
    """
    path = stop_path(target, launch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    sync(path.parent)


def stop_error(target: Path, request: Path | None = None) -> StopRequested:
    """Return the error for a request to stop.

    Args:
        target: The target.
        request: The file of the request, or None for the request to all processes.
    """
    return StopRequested(f"{target}: stopped by {request or stop_path(target)}; run the same command again to resume")


class _Claim:
    """An attempt to get a lease: it watches the latest attempt until it has ended, its holder has died, or its lease has expired."""

    def __init__(self, target: Path, times: ClusterSettings, log: Log, stops: StopRequests) -> None:
        self._target, self._times, self._log, self._stops = target, times, log, stops
        self._poll_seconds = min(_MAX_POLL_SECONDS, times.renew_seconds / 5)  # between two looks at a lease that another process holds
        self._seen = AttemptFile(0, b"", None)
        self._unchanged_seconds = 0.0
        self._last_look: float | None = None
        self._reported: LockOwner | None = None
        self._has_changed = False

    def take(self, stack: ExitStack, *, wait: bool, at_once: bool) -> Lease:
        """Return the lease as soon as it can be taken. `stack` also gets the lock of the target, if it is free at that time."""
        lease_path(self._target).mkdir(exist_ok=True)
        began, waited = time.monotonic(), False
        while True:
            self._stops.check(self._target)
            locker: LockOwner | None = None
            is_free, reason = self._check_holder()
            if is_free:
                with ExitStack() as attempt_stack:
                    locker = self._lock(attempt_stack)
                    lease = None
                    if locker is None or reason is not None or self._was_overtaken(locker):
                        lease = self._create(waited=waited, reason=reason, locker=locker)
                    if lease is not None:
                        stack.push(attempt_stack.pop_all())
                        return lease
            seen, is_certain = self._seen, time.monotonic() - began >= LOCK_SECONDS
            holder = None if seen.is_over else seen.holder
            who = holder.writer if holder is not None else locker or UNKNOWN
            is_alive = self._has_changed or locker is not None or holds_lock(self._target, seen.attempt) is True
            if at_once or (not wait and is_alive and is_certain):
                raise BusyError(self._target, who)
            if is_certain and who != self._reported:
                self._log(f"waiting for the other build of {self._target}: {who}")
                self._reported = who
            waited = True
            time.sleep(self._poll_seconds)

    def _lock(self, stack: ExitStack) -> LockOwner | None:
        """Take the lock of the target, if it is free and the file system has locks. Otherwise return the process that holds it."""
        try:
            stack.enter_context(hold_lock(self._target, retry_seconds=0))
        except BusyError as busy:
            return busy.writer
        except LockRefusedError as refused:
            if not refused.no_locks:
                raise
        return None

    def _was_overtaken(self, locker: LockOwner) -> bool:
        """Return whether the process that holds the lock of the target is one whose lease has expired. It may be frozen.

        Any other process with the lock is just starting, or is a program that does not know leases.
        """
        return self._seen.holder is not None and self._seen.holder.overtaken == str(locker)

    def _check_holder(self) -> tuple[bool, str | None]:
        """Return whether the next attempt may begin now. If the latest attempt has not ended properly, also return why."""
        seen, now = latest(self._target), time.monotonic()
        if self._last_look is None or seen != self._seen:
            self._has_changed = self._last_look is not None and not seen.is_over
            self._unchanged_seconds, self._seen = 0.0, seen
        else:
            self._unchanged_seconds += min(now - self._last_look, 2 * self._poll_seconds)  # a pause of this process proves nothing
        self._last_look = now
        if seen.is_over:
            return True, None
        who = seen.writer
        if has_died(self._target, seen):
            return True, f"{who} has ended without finishing {self._target}; continuing its work"
        if self._unchanged_seconds >= self._times.lease_seconds:
            return True, f"{who} has not renewed its lease of {self._target} for {self._unchanged_seconds:.0f} s; taking over"
        return False, None

    def _create(self, *, waited: bool, reason: str | None, locker: LockOwner | None = None) -> Lease | None:
        """Create the file of the next attempt. Return None if another process was faster."""
        target, last = self._target, self._seen
        number = last.attempt or highest_number(target)
        if not last.attempt and recorded_attempts(target):
            return None
        holder = LeaseHolder.following(last.holder, number + 1, overtaken=None if locker is None else str(locker))
        path = attempt_record(target, holder.attempt)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return None
        with ExitStack() as undo:
            undo.callback(os.close, descriptor)
            undo.callback(path.unlink, missing_ok=True)
            # The lock is taken before the content is written: a holder that claims to have the lock has it, or has died.
            holder = replace(holder, is_locked=take_lock(descriptor, target))
            lease = Lease(target, holder, descriptor, waited=waited)
            lease._write()
            sync(path.parent)
            attempts = recorded_attempts(target)
            if attempts[-1:] != [holder.attempt]:
                return None  # this process has missed a newer attempt, so the number was used before
            for lower in attempts[:-1]:
                with suppress(OSError):
                    attempt_record(target, lower).unlink()
            if reason is not None:
                self._log(reason)
            undo.pop_all()
            return lease
