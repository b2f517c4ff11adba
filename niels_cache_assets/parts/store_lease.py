"""The lease of a part in a store: one small object, which only a conditional PUT changes.

    parts/part-00017/lease.json    nonce, epoch, count, is_free, and the process that makes this attempt

A process takes a free lease by a swap to the next epoch, renews it by a swap to the next count, and gives it back by a swap to free. It is
never deleted, so an epoch is never used twice. The nonce makes each body unique: equal bodies would have equal ETags, and a process that
finds its own body after a refusal knows that its request succeeded.

A lease is over when the store's time is more than `lease_seconds` after its last renewal. The store's time is when it wrote an object that
the asker has just sent, so no clock of any machine counts. Stores count whole seconds, so a lease must last much longer.

The lease alone protects nothing, because a frozen process may wake up at any time. It writes under keys of its own epoch, its next swap of
the journal fails, and the record of a part can only be created once (store_attempt.py). Costs: a PUT for each renewal, and a GET for each
record of the journal.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from niels_cache_assets.facts.progress import BuildProgress
from niels_cache_assets.parts.held_lease import StoredFiles
from niels_cache_assets.parts.lease import LeaseLostError, LeaseTimes, Log, StopRequests, stop_error
from niels_cache_assets.parts.store import CLOCK_NAME, read_small, write_if
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import UNKNOWN, BusyError, LockOwner
from niels_cache_runtime.remote.store import ConflictError, RemoteError, SmallObject, Store

_STEP_SECONDS = 1.0  # of the store's clock
_POLL_SECONDS = 5.0  # the longest time between two looks at the lease of another process


@dataclass(frozen=True, kw_only=True)
class _Body:
    """The content of a lease, with the progress of the attempt at its last renewal."""

    epoch: int
    nonce: str
    writer: LockOwner
    count: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    share: float | None = None
    is_free: bool = False

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, found: SmallObject, where: str) -> "_Body":
        try:
            fields: dict[str, Any] = json.loads(found.content)
            return cls(**{**fields, "writer": LockOwner(**fields["writer"])})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise NielsCacheError(f"{where}: is not a lease; remove this object when no process builds the part") from error


class StoreLease:
    """The right to make one attempt to build a part in a store. `hold_store_lease` creates it.

    Attributes:
        target: The folder of the part on this machine, for messages.
        attempt: The epoch of the lease, which no other attempt has.
        nonce: A random value that no other attempt has.
        waited: Whether the caller had to wait for another process.
        stored: The files of the attempt, once it has begun.
    """

    stored: StoredFiles | None = None

    def __init__(self, store: Store, key: str, target: Path, body: _Body, state: str | None, *, waited: bool) -> None:
        self.target, self.attempt, self.nonce, self.waited = target, body.epoch, body.nonce, waited
        self._store, self._key, self._body, self._state = store, key, body, state
        self._progress: dict[str, Any] = {}
        self._is_lost = False
        self._stop: Path | None = None
        self._ended = threading.Event()

    @property
    def folder(self) -> str:
        """The name of the folder in which this attempt alone writes."""
        return f"{self.attempt:05d}-{self.nonce}"

    def check(self) -> None:
        """Check that this process still holds the lease. Call this before each record.

        Raises:
            LeaseLostError: If another process has taken over.
            StopRequested: If a stop was requested.
            RemoteError: If the store refuses or does not answer.
        """
        found = read_small(self._store, self._key)
        self._is_lost = self._is_lost or found is None or _Body.decoded(found, self._store.name_of(self._key)).nonce != self.nonce
        self.check_quickly()

    def check_quickly(self) -> None:
        """Raise the errors of `check` without a request, from what the latest renewal has seen."""
        if self._is_lost:
            raise self.lost_error()
        if self._stop is not None:
            raise stop_error(self.target, self._stop)

    def report(self, progress: BuildProgress) -> None:
        """Record the progress of the attempt with the next renewal."""
        self._progress = {"counts": dict(progress.counts), "share": progress.share}

    def lost_error(self) -> LeaseLostError:
        """Return the error for the loss of this lease."""
        who = UNKNOWN
        with suppress(NielsCacheError):
            if (found := read_small(self._store, self._key)) is not None:
                who = _Body.decoded(found, self._key).writer
        return LeaseLostError(
            f"{self._store.name_of(self._key)}: {who} has taken over, because this process did not renew its lease in time; "
            f"attempt {self.attempt} stops here, and the other process continues from its last record"
        )

    def is_lost(self) -> bool:
        """Return whether another process has taken over. This never raises."""
        with suppress(NielsCacheError):
            self.check()
        return self._is_lost

    def _write(self, **changes: Any) -> None:
        body = replace(self._body, count=self._body.count + 1, **self._progress, **changes)
        try:
            self._state = write_if(self._store, self._key, body.encoded(), state=self._state)
            self._body = body
        except ConflictError:
            self._is_lost = True

    @contextmanager
    def renewed(self, times: LeaseTimes, stops: StopRequests, on_stop: Callable[[], None] | None) -> Iterator[None]:
        """Renew the lease on a thread, as long as the block runs. Then give it back."""

        def renew() -> None:
            while not self._is_lost and not self._ended.wait(times.renew_seconds):
                if self._stop is None and (request := stops.requested(self.target)) is not None:
                    self._stop = request
                    if on_stop is not None:
                        on_stop()
                with suppress(RemoteError):  # the next renewal may succeed, and `check` raises if it was too late
                    self._write()

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(times.renew_seconds)
            if not thread.is_alive() and not self._is_lost:
                with suppress(RemoteError):  # the lease then ends by itself
                    self._write(is_free=True)


@contextmanager
def hold_store_lease(
    store: Store,
    key: str,
    target: Path,
    *,
    times: LeaseTimes,
    wait: bool,
    log: Log,
    on_stop: Callable[[], None] | None = None,
    stops: StopRequests | None = None,
) -> Iterator[StoreLease]:
    """Hold a lease in a store, and renew it during the block.

    Args:
        store: The store.
        key: The key of the lease.
        target: The folder of the part on this machine, for messages and for requests to stop.
        times: When to renew the lease, and when to take over the lease of another process.
        wait: Whether to wait until another process ends or its lease is over. Without `wait`, BusyError is raised as soon as it is certain
            that the other process is alive.
        log: Called with a line about each wait.
        on_stop: Called once, on another thread, if a stop is requested while the lease is held.
        stops: The requests to stop that apply, which are files beside `target`.

    Raises:
        BusyError: If another process builds the part.
        LeaseLostError: From the block, if another process has taken over.
        RemoteError: If the store refuses or does not answer.
    """
    stops = stops or StopRequests()
    lease = _take(store, key, target, times=times, wait=wait, log=log, stops=stops)
    with lease.renewed(times, stops, on_stop):
        yield lease


def _take(store: Store, key: str, target: Path, *, times: LeaseTimes, wait: bool, log: Log, stops: StopRequests) -> StoreLease:
    reported: LockOwner | None = None
    first: str | None = None
    asked: float | None = None
    waited = False
    where, clock = store.name_of(key), f"{key.rpartition('/')[0]}/{CLOCK_NAME}"
    while True:
        if (request := stops.requested(target)) is not None:
            raise stop_error(target, request)
        found = read_small(store, key)
        body = None if found is None else _Body.decoded(found, where)
        is_over, state = body is None or body.is_free, None if found is None else found.state
        if found is not None and body is not None and not is_over and (asked is None or time.monotonic() - asked >= times.renew_seconds):
            silent, asked = (store.now(clock) - found.modified).total_seconds(), time.monotonic()
            is_over = silent >= times.lease_seconds + _STEP_SECONDS
            if is_over:
                log(f"{body.writer} has not renewed its lease of {where} for {silent:.0f} s; taking over")
        if is_over:
            new = _Body(epoch=1 if body is None else body.epoch + 1, nonce=secrets.token_hex(8), writer=LockOwner.current())
            with suppress(ConflictError):  # another process was faster, or the holder has renewed
                return StoreLease(store, key, target, new, write_if(store, key, new.encoded(), state=state), waited=waited)
            continue
        assert body is not None
        if not wait and first not in (None, state):
            raise BusyError(target, body.writer)
        first = first or state
        if body.writer != reported:
            log(f"waiting for the other build of {where}: {body.writer}")
            reported = body.writer
        waited = True
        time.sleep(min(_POLL_SECONDS, times.renew_seconds / 3))
