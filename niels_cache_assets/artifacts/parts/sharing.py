"""The order in which one process builds the parts of a data set, if other processes build parts of it at the same time.

A part that another process builds is passed over, and looked at again later. So several processes that begin with the same list take
different parts. None of them waits while a part is free.

A look at the lock of a part costs nothing, but tells only of processes whose locks this machine sees, and a frozen process keeps its lock.
So a part that stays locked is tried from time to time, and so is a part that was free and still could not be built. A try may leave a
record (a run of Dagster), so tries become less frequent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from niels_cache_assets.artifacts.base import Artifact, Log
from niels_cache_runtime.format.commit import Writer, writer_of

_LOOK_AGAIN_SECONDS = 0.5
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 5.0, 300.0


def build_free_parts_first(parts: Sequence[Artifact], build: Callable[[Artifact], bool], *, log: Log) -> None:
    """Build all parts, and return when each of them was built here or found. `log` gets a line for each part that this process waits for.

    build: builds a part, or finds that it is there. Returns False if another process builds the part.
    """
    left, told = list(parts), set[str]()
    pauses: dict[str, float] = {}  # by key: the seconds between two tries
    next_try: dict[str, float] = {}

    def try_part(part: Artifact) -> bool:
        writer, now = writer_of(part.directory), time.monotonic()
        if writer is not None:
            next_try.setdefault(part.key, now + _LONGEST_PAUSE_SECONDS)
        if now < next_try.get(part.key, now) and (writer is not None or part.key in pauses):
            return False
        if build(part):
            return True
        longer = min(2 * pauses.get(part.key, _FIRST_PAUSE_SECONDS / 2), _LONGEST_PAUSE_SECONDS)
        pauses[part.key] = longer if writer is None else _LONGEST_PAUSE_SECONDS
        next_try[part.key] = time.monotonic() + pauses[part.key]
        return False

    def tell(part: Artifact) -> None:
        if part.key not in told:
            told.add(part.key)
            log(f"waiting for the other build of {part.directory}: {_who(writer_of(part.directory))}")

    while left:
        passed_over = [part for part in left if not try_part(part)]
        if len(passed_over) == len(left):
            for part in passed_over:
                tell(part)
            time.sleep(_LOOK_AGAIN_SECONDS)
        left = passed_over


def _who(writer: Writer | None) -> str:
    return "a process on another machine, or one that has just ended" if writer is None else str(writer)
