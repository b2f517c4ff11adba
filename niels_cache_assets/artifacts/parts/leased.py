"""The common part of everything that is built under a lease, so that machines can share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from niels_cache_assets.artifacts.base import Artifact, Held, Log
from niels_cache_assets.artifacts.parts.under_lease import under_lease
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.disk.attempts import staged_attempts
from niels_cache_assets.disk.journal import JOURNAL_NAME, partial_directory, real_path
from niels_cache_assets.parts.attempts import staged_attempt, sweep_attempts
from niels_cache_assets.parts.lease import Lease, builder_of
from niels_cache_assets.parts.lease_files import Stops
from niels_cache_runtime.format.commit import partial_path
from niels_cache_runtime.format.layout import META_NAME


@dataclass(frozen=True, kw_only=True)
class UnderLease(Artifact):
    """An artifact that one process builds at a time, on whichever machine.

    option: the option of `niels-cache part` that builds this kind.
    on_stop: called by another thread if somebody asks the build to stop. Without it, the build stops at its next batch.
    stops: the requests to stop that count; None takes those after the lease is asked for.
    """

    option: ClassVar[str | None] = None

    registry: Registry
    on_stop: Callable[[], None] | None = field(default=None, compare=False)
    stops: Stops | None = field(default=None, compare=False)

    def lock(self, *, wait: bool, log: Log) -> AbstractContextManager[Held]:
        return under_lease(self.directory, self.registry, owns=self.owns, wait=wait, log=log, on_stop=self.on_stop, stops=self.stops)

    def stage(self, held: Held, *, log: Log) -> AbstractContextManager[Path]:
        assert held.lease is not None
        return staged_attempt(held.lease, log=log)

    def sweep(self, *, resumable: bool) -> None:
        if not resumable:  # otherwise the next attempt removes what it cannot use
            sweep_attempts(self.directory)


@dataclass(frozen=True, kw_only=True)
class AfreshUnderLease(Artifact):
    """An artifact that one process builds at a time, on whichever machine, and that is never resumed: it begins afresh."""

    registry: Registry

    def lock(self, *, wait: bool, log: Log) -> AbstractContextManager[Held]:
        return under_lease(self.directory, self.registry, owns=self.owns, wait=wait, log=log)

    def stage(self, held: Held, *, log: Log) -> AbstractContextManager[Path]:
        assert held.lease is not None
        return staged_attempt(held.lease, log=log, resumable=False)

    def sweep(self, *, resumable: bool) -> None:
        super().sweep(resumable=resumable)
        target = real_path(self.directory)
        if set(staged_attempts(target)) - {partial_path(target)}:  # of killed builds
            sweep_attempts(target)


def told_of_parts(folders: Sequence[Path], *, stale: int) -> str:
    """Return how many parts are built, stale, unfinished, and being built, in words. Costs a few small reads for each part.

    stale: how many of the finished parts have other settings or are damaged.
    """
    there = sum((folder / META_NAME).exists() for folder in folders)
    running = [folder for folder in folders if builder_of(folder) is not None]
    unfinished = sum((partial_directory(folder) / JOURNAL_NAME).exists() for folder in folders if folder not in running)
    told = {"have other settings or are damaged": stale, "are being built": len(running), "are unfinished": unfinished}
    more = "".join(f", {count} {what}" for what, count in told.items() if count)
    return f"{there - stale} of {len(folders)} parts are built{more}"


def checked(lease: Lease | None, progress: Callable[[Any], None] | None) -> Callable[[Any], None]:
    """Return a function that passes progress on, and raises LeaseLost or Stopped as soon as a renewal of the lease has found a reason."""

    def progressed(told: Any) -> None:
        if lease is not None:
            lease.check_quickly()
        if progress is not None:
            progress(told)

    return progressed
