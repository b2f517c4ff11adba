"""What building Megatron's indices ahead takes, compiled, instead of numpy: the steps of a blend, the rows of a sample index.

The same numbers as `blend_indices.advance_lanes` and `gpt_indices.place_samples` of `niels_cache_runtime.megatron`. In a blend products
and differences are rounded one by one (no fast-math, so nothing is fused), the first of equals wins; lanes are taken in blocks that stay
in a core's first cache, their innermost loop without a branch, so that it becomes vector instructions; threads share the lanes. Needs
numba, which the runtime does not; compiling takes a second or two, once per machine.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.reading import available_threads

_LANES_AT_ONCE = 32


@numba.njit(nogil=True, cache=True)
def _advance(
    weights: NDArray[np.float64],
    counts: NDArray[np.float64],
    samples: NDArray[np.int64],
    chosen: NDArray[Any],
    numbers: NDArray[np.int64],
    first: int,
    stop: int,
) -> None:
    """Lanes first to stop - 1; `chosen` and `numbers` (lanes, steps) are filled, `counts` (D, lanes) brought up to date."""
    datasets = len(weights)
    at, largest, which = np.empty(_LANES_AT_ONCE), np.empty(_LANES_AT_ONCE), np.empty(_LANES_AT_ONCE, dtype=np.int64)
    given = np.empty((datasets, _LANES_AT_ONCE))
    for start in range(first, stop, _LANES_AT_ONCE):
        width = min(_LANES_AT_ONCE, stop - start)
        for dataset in range(datasets):
            for lane in range(width):
                given[dataset, lane] = counts[dataset, start + lane]
        for step in range(chosen.shape[1]):
            for lane in range(width):
                at[lane] = max(float(samples[start + lane] + step), 1.0)
                largest[lane] = weights[0] * at[lane] - given[0, lane]
                which[lane] = 0
            for dataset in range(1, datasets):
                weight = weights[dataset]
                for lane in range(width):
                    error = weight * at[lane] - given[dataset, lane]
                    which[lane] = dataset if error > largest[lane] else which[lane]
                    largest[lane] = error if error > largest[lane] else largest[lane]
            for lane in range(width):
                dataset = which[lane]
                chosen[start + lane, step] = dataset
                numbers[start + lane, step] = int(given[dataset, lane])
                given[dataset, lane] += 1.0
        for dataset in range(datasets):
            for lane in range(width):
                counts[dataset, start + lane] = given[dataset, lane]


def advance_lanes(
    weights: NDArray[np.float64], counts: NDArray[np.float64], samples: NDArray[np.int64], chosen: NDArray[Any], numbers: NDArray[np.int64]
) -> None:
    """As `blend_indices.advance_lanes`; a thread for each core."""
    lanes = len(samples)
    threads = min(available_threads(), -(-lanes // (8 * _LANES_AT_ONCE)))
    if threads < 2:  # a pool takes longer to start than a short stretch takes
        _advance(weights, counts, samples, chosen, numbers, 0, lanes)
        return
    bounds = [lanes * thread // threads for thread in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        shares = [pool.submit(_advance, weights, counts, samples, chosen, numbers, first, stop) for first, stop in pairwise(bounds)]
        for share in shares:
            share.result()


@numba.njit(nogil=True, cache=True)
def place_samples(
    sequence_lengths: NDArray[np.int32],
    block: NDArray[np.int32],
    index: NDArray[Any],
    start: int,
    tokens: int,
    done: int,
    sequence_length: int,
    extra: int,
) -> tuple[int, int]:
    """As `gpt_indices.place_samples`. Unsigned indices: no test whether one counts from the end."""
    rows = len(index)
    begins = tokens
    due = done * sequence_length + extra  # tokens that must be there for the sample of row `done` to begin
    for number in range(len(block)):
        ends = begins + sequence_lengths[np.uint32(block[number])]
        while due <= ends:
            if done == rows:
                return done, ends
            row = np.uint64(done)
            index[row, np.uint64(0)] = start + number
            index[row, np.uint64(1)] = due - extra - begins
            done += 1
            due += sequence_length
        begins = ends
    return done, begins
