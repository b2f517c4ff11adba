"""The common part of the val part and of the parts of caches and corpora: they are built under a lease, so that machines can share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, Held, Log
from niels_cache_assets.artifacts.parts.of_plan import OfPlan
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.disk.journal import real_path
from niels_cache_assets.disk.space import refusal
from niels_cache_assets.disk.staging import require_target
from niels_cache_assets.parts.attempts import staged_attempt, sweep_attempts
from niels_cache_assets.parts.lease import Lease, Times, leased
from niels_cache_assets.parts.lease_files import Stops
from niels_cache_runtime.errors import NielsCacheError


@dataclass(frozen=True, kw_only=True)
class UnderLease(Artifact):
    """An artifact that one process builds at a time, on whichever machine.

    on_stop: called by another thread if somebody asks the build to stop. Without it, the build stops at its next batch.
    stops: the requests to stop that count; None takes those after the lease is asked for.
    """

    registry: Registry
    on_stop: Callable[[], None] | None = field(default=None, compare=False)
    stops: Stops | None = field(default=None, compare=False)

    @contextmanager
    def lock(self, *, wait: bool, log: Log) -> Iterator[Held]:
        target = real_path(self.directory)
        with ExitStack() as held:
            try:
                require_target(target, self.owns)
                times = times_of(self.registry)
                lease = held.enter_context(leased(target, times=times, wait=wait, log=log, on_stop=self.on_stop, stops=self.stops))
            except OSError as error:
                raise NielsCacheError(f"{refusal(error, target)}; the last good part, if there is one, is unchanged: {target}") from error
            yield Held(waited=lease.waited, lease=lease)

    def stage(self, held: Held, *, log: Log) -> AbstractContextManager[Path]:
        assert held.lease is not None
        return staged_attempt(held.lease, log=log)

    def sweep(self, *, resumable: bool) -> None:
        if not resumable:  # otherwise the next attempt removes what it cannot use
            sweep_attempts(self.directory)


@dataclass(frozen=True, kw_only=True)
class Leased(UnderLease, OfPlan):
    """A cache of a plan that is built under a lease."""


def times_of(registry: Registry) -> Times:
    """Return the times of leases that [cluster] sets."""
    return Times(renew_seconds=registry.cluster.renew_seconds, lease_seconds=registry.cluster.lease_seconds)


def checked(lease: Lease | None, progress: Callable[[Any], None] | None) -> Callable[[Any], None]:
    """Return a function that passes progress on, and raises LeaseLost or Stopped as soon as a renewal of the lease has found a reason."""

    def progressed(told: Any) -> None:
        if lease is not None:
            lease.check_quickly()
        if progress is not None:
            progress(told)

    return progressed
