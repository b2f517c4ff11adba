"""The lease of a part in a store: one small object, which only a conditional PUT changes.

The body is a `LeaseHolder` (lease.py). A process takes a lease that has ended by a swap to the next attempt, renews it by a swap to the
present seconds and progress, and gives it back by a swap that says how the attempt has ended. The object is never deleted, so the number
of an attempt is never used twice. The token and the seconds make each body unique: equal bodies would have equal ETags, and a process that
finds its own body after a refusal knows that its request succeeded.

A lease is over when the store's time is more than `lease_seconds` after its last renewal. The store's time is when it wrote an object that
the asker has just sent, so no clock of any machine counts. Stores count whole seconds, so a lease must last much longer.

The lease alone protects nothing, because a frozen process may wake up at any time. It writes under keys of its own, and its next swap of
the record fails, because the next attempt has signed the record (store_attempt.py). Costs: a PUT for each renewal, a GET for each record of
the journal, and two GETs and a PUT every 5 seconds in a process that waits.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from niels_cache_assets.parts.lease import HeldLease, LeaseHolder, Log, StopRequests, stop_stamp
from niels_cache_assets.parts.store import CLOCKS, LEASES, read_small
from niels_cache_assets.project.running import ClusterSettings
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import BusyError, LockOwner
from niels_cache_runtime.remote.store import QUICK_BYTES, ConflictError, SmallObject, Store

_STEP_SECONDS = 1.0  # of the store's clock
_POLL_SECONDS = 5.0  # the longest time between two looks at the lease of another process


class StoreLease(HeldLease):
    """The right to make one attempt to build a part in a store. `hold_store_lease` creates it."""

    def __init__(self, store: Store, key: str, target: Path, holder: LeaseHolder, state: str | None) -> None:
        super().__init__(target, holder)
        self._store, self._key, self._state = store, key, state

    @property
    def folder(self) -> str:
        """The name of the folder in which this attempt alone writes."""
        return f"{self.attempt:05d}-{self._holder.token}"

    @property
    def name(self) -> str:
        return self._store.name_of(self._key)

    def _latest(self) -> LeaseHolder:
        return _decoded(self._store.get(self._key, most_bytes=QUICK_BYTES), self.name)

    def _was_overtaken(self) -> bool:
        return self._latest().token != self._holder.token

    def _find_owner(self) -> LockOwner:
        return self._latest().writer

    def _send(self, record: LeaseHolder) -> None:
        try:
            self._state = self._store.write_if(self._key, record.encoded(), state=self._state)
        except ConflictError:
            found = self._store.get(self._key, most_bytes=QUICK_BYTES)
            self._is_lost = _decoded(found, self.name).token != self._holder.token
            if not self._is_lost:  # an earlier renewal has succeeded, but its answer did not arrive
                self._state = self._store.write_if(self._key, record.encoded(), state=found.state)


def _decoded(found: SmallObject, where: str) -> LeaseHolder:
    holder = LeaseHolder.decoded(found.content)
    if holder is None:
        raise NielsCacheError(f"{where}: is not a lease; remove this object when no process builds the part")
    return holder


@contextmanager
def hold_store_lease(
    store: Store,
    key: str,
    target: Path,
    *,
    times: ClusterSettings,
    wait: bool,
    log: Log,
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
        stops: The requests to stop that apply, which are files beside `target`. By default, those that are created after this call.

    Raises:
        BusyError: If another process builds the part.
        LeaseLostError: From the block, if another process has taken over.
        RemoteError: If the store refuses or does not answer.
    """
    stops = stops or StopRequests(stale=stop_stamp(target))
    lease: StoreLease | None = None
    reported: LockOwner | None = None
    first: str | None = None
    where, clock = store.name_of(key), f"{CLOCKS}{key.removeprefix(LEASES)}"
    while lease is None:
        stops.check(target)
        found = read_small(store, key, most_bytes=QUICK_BYTES)
        holder, state = (None, None) if found is None else (_decoded(found, where), found.state)
        is_over = holder is None or holder.ended is not None
        if found is not None and holder is not None and not is_over:
            silent = (store.now(clock) - found.modified).total_seconds()
            is_over = silent >= times.lease_seconds + _STEP_SECONDS
            if is_over:
                log(f"{holder.writer} has not renewed its lease of {where} for {silent:.0f} s; taking over")
        if is_over:
            new = LeaseHolder.following(holder, 1 if holder is None else holder.attempt + 1)
            with suppress(ConflictError):  # another process was faster, or the holder has renewed
                lease = StoreLease(store, key, target, new, store.write_if(key, new.encoded(), state=state))
            continue
        assert holder is not None
        if not wait and first not in (None, state):
            raise BusyError(target, holder.writer)
        first = first or state
        if holder.writer != reported:
            log(f"waiting for the other build of {where}: {holder.writer}")
            reported = holder.writer
        time.sleep(min(_POLL_SECONDS, times.renew_seconds / 3))
    with lease.renewed(times, stops):
        yield lease
