"""The progress of parts in words, and the progress of a build whose lease is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from niels_cache_assets.disk.journal import JOURNAL_NAME, partial_directory
from niels_cache_assets.parts.lease import Lease, builder_of
from niels_cache_runtime.format.layout import META_NAME


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
