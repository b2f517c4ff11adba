"""The order in which one process builds the parts of a data set, if other processes build parts of it at the same time.

A part that another process builds is passed over, and looked at again later. So several processes that begin with the same list take
different parts. None of them waits while a part is free.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from niels_cache_assets.artifacts.base import Artifact, Log
from niels_cache_runtime.format.commit import writer_of

_LOOK_AGAIN_SECONDS = 0.5


def build_free_parts_first(parts: Sequence[Artifact], build: Callable[[Artifact], bool], *, log: Log) -> None:
    """Build all parts, and return when each of them was built here or found. `log` gets a line for each part that this process waits for.

    build: builds a part, or finds that it is there. Returns False if another process has begun to build the part meanwhile.
    """
    left, told = list(parts), set[str]()
    while left:
        passed_over = [part for part in left if writer_of(part.directory) is not None or not build(part)]
        if len(passed_over) == len(left):
            for part in passed_over:
                if part.key not in told:
                    log(f"waiting for the other build of {part.directory}: {writer_of(part.directory) or 'it has just ended'}")
                    told.add(part.key)
            time.sleep(_LOOK_AGAIN_SECONDS)
        left = passed_over
