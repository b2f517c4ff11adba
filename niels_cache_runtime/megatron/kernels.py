"""Loops that build Megatron's indices, compiled by numba: one for the steps of a blend, one for the rows of a sample index.

They give the same numbers as `blend_indices.advance_lanes` and `gpt_indices.place_samples`, which use numpy. In a blend, products and
differences are rounded one by one (no fast-math, so nothing is fused). Of several data sets with the largest error, the first one wins. A
lane is a stretch of the blend that is computed beside other stretches. Lanes are processed in blocks that stay in a core's first cache.
Their innermost loop has no branch, so the compiler can vectorize it. Threads share the lanes; all threads end with the call.

numba is optional. Only this module of the runtime imports numba, and only to build a large index. The import takes about a second and 80
MB. The first time on a machine, compiling the loops takes another half a second. numba keeps its compiled code beside this module, in the
user's cache folder if the folder of this module is not writable, or in NUMBA_CACHE_DIR. If none of these is writable, each process compiles
the loops again. Without numba, or if numba cannot be loaded or is switched off (NUMBA_DISABLE_JIT=1), `advance_for` and `place_for` return
None, and numpy does the work.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.format.reading import available_threads

Floats = NDArray[np.float64]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

_LANES_AT_ONCE = 32
_MANY = 1_000_000  # for fewer numbers, numpy takes some milliseconds, so numba need not be loaded
_SPARSE = 2  # from this number of documents per sample on, the compiled loop is faster; numpy reads each document four times


class _Compiled:
    """A loop that numba compiles at its first call."""

    def __init__(self, loop: Callable[..., Any]) -> None:
        self._loop = loop
        self._call: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self.load()(*arguments)
        except Exception:  # raised by numba, not by the loop: numba's cached code is damaged, or the disk is full
            self._call = self._compile(keep=False)
            return self._call(*arguments)

    def load(self) -> Callable[..., Any]:
        if self._call is None:
            self._call = self._compile(keep=True)
        return self._call

    def _compile(self, *, keep: bool) -> Callable[..., Any]:
        import numba

        try:
            compiled: Callable[..., Any] = numba.njit(nogil=True, cache=keep)(self._loop)
        except RuntimeError:  # numba finds no writable folder
            compiled = numba.njit(nogil=True)(self._loop)
        return compiled


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Import numba. Return whether numba can compile here."""
    try:
        import numba
    except (ImportError, OSError, SystemError):  # numba is not installed, was built for a different numpy, or cannot load its library
        return False
    return not vars(numba.config).get("DISABLE_JIT")


def advance_for(*, datasets: int, samples: int) -> Callable[..., None] | None:
    """Return `advance_lanes` for a large blend. Return None for a small blend, and without numba."""
    return advance_lanes if datasets * samples >= _MANY and is_available() else None


def place_for(*, documents: int, samples: int) -> Callable[..., tuple[int, int]] | None:
    """Return `place_samples` for a large index with far more documents than samples, otherwise None.

    For other indices, numpy is as fast. Without numba, the result is always None.
    """
    large = documents + samples >= _MANY and documents >= _SPARSE * samples
    return place_samples if large and is_available() else None


def _advance_loop(weights: Floats, counts: Floats, samples: Int64s, chosen: NDArray[Any], numbers: Int64s, first: int, stop: int) -> None:
    """Compute lanes first to stop - 1: fill `chosen` and `numbers` (lanes, steps), and update `counts` (D, lanes)."""
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


def _place_loop(
    sequence_lengths: Int32s, block: Int32s, index: NDArray[Any], start: int, tokens: int, done: int, sequence_length: int, extra: int
) -> tuple[int, int]:
    """Do the same as `gpt_indices.place_samples`. Indices are unsigned, so that numba does not test for negative indices."""
    rows = len(index)
    begins = tokens
    due = done * sequence_length + extra  # number of tokens after which the sample of row `done` begins
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


_advance, place_samples = _Compiled(_advance_loop), _Compiled(_place_loop)


def advance_lanes(weights: Floats, counts: Floats, samples: Int64s, chosen: NDArray[Any], numbers: Int64s) -> None:
    """Do the same as `blend_indices.advance_lanes`, on one thread per core."""
    lanes = len(samples)
    _advance.load()
    threads = min(available_threads(), -(-lanes // (8 * _LANES_AT_ONCE)))
    if threads < 2:  # for a short stretch, starting a pool takes longer than the work
        _advance(weights, counts, samples, chosen, numbers, 0, lanes)
        return
    bounds = [lanes * thread // threads for thread in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        shares = [pool.submit(_advance, weights, counts, samples, chosen, numbers, first, stop) for first, stop in pairwise(bounds)]
        for share in shares:
            share.result()
