"""A record of every step of a search for duplicates, for tests that resume from each of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from niels_cache_assets.dedup.ranges import Steps


def recorded_steps(folder: Path) -> tuple[list[Steps], Callable[[Steps, list[Path]], bool]]:
    """Return a list of steps, and the function that records a step in it. The files of step N are copied to `folder`/N."""
    steps: list[Steps] = []

    def record(done: Steps, files: list[Path]) -> bool:
        kept = folder / str(len(steps))
        kept.mkdir()
        for file in files:
            shutil.copy(file, kept)
        steps.append(done)
        return True

    return steps, record
