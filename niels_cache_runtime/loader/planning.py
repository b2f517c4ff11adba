"""Where the rows of the next batches are: steps of a rank to places in sources, located for thousands of samples at once.

What a batch of its own would pay in calls, thousands share; a run that just resumed waits for one batch only. Reads no token.
"""

from collections.abc import Iterator

import numpy as np

from niels_cache_runtime.loader.mixture import Located, Mixture
from niels_cache_runtime.loader.steps import Position, Steps

_PLANNED_SAMPLES = 4096


def plan_batches(mixture: Mixture, steps: Steps, position: Position, *, worker: int, workers: int, done: int) -> Iterator[Located]:
    """Every `workers`-th batch of the pass from the `worker`-th after `position` on, without the first `done` of them."""
    full, last = steps.full(position), steps.last(position)
    rows, own = steps.B * steps.world_size, steps.rank * steps.B + np.arange(steps.B)
    index, block = worker + done * workers, 1
    while full is None or index < full:
        count = block if full is None else min(block, -(-(full - index) // workers))
        batches = index + workers * np.arange(count)
        located = mixture.locate((position.samples + batches[:, None] * rows + own).ravel())
        for first in range(0, len(located), steps.B):
            yield located.part(first, first + steps.B)
        index += workers * count
        block = max(1, min(2 * block, _PLANNED_SAMPLES // steps.B))
    if index == full and last is not None:
        yield mixture.locate(np.arange(*last, dtype=np.int64))
