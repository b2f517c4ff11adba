"""Megatron-LM's blending indices: sample i of a blend is sample `dataset_sample_index[i]` of data set `dataset_index[i]`.

    for i = 0, 1, ...   d = argmax of w_d * max(i, 1) - c_d, the first of equals;   dataset_index[i] = d, dataset_sample_index[i] = c_d++

Numbers are 64-bit floats, and each product and difference is rounded, as in `build_blending_indices` of megatron-core 0.16.1 (compiled
without fused multiply-add, as its wheels for x86-64 are); the arrays are the same. With 32,767 data sets or more, which Megatron refuses,
dataset_index is int32.

The rule is sequential, but it forgets. From counts that are slightly wrong it reaches the one sequence for these weights within some D
steps (proof: Adler et al., "Convex dynamics and applications", 2005). And w_d * i, rounded to whole counts with the right sum, is at most
slightly wrong. So a stretch is cut into lanes that begin at such a guess and advance side by side, with one numpy call per step for all
lanes. A lane whose guess differs from the end of the lane before it is then done again from there, until it meets its earlier result. The
result is checked: every lane starts from the counts at the end of the lane before it.

Cost: about 20 ns per sample and 2 ns per data set of it, on one core, two to three times the time of Megatron's compiled helper. `kernels`
builds a large blend, if numba is installed, faster than the helper. Lanes pay off from about eight lanes on. Fewer samples than that
(2,048, and more with more than 32 data sets) are done one by one, at about 3 us each. Beside the output, memory is that of a round of at
most 2^15 counts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.cache.checks import check_positive
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.megatron.gpt_indices import Allocate, Progress, new_array
from niels_cache_runtime.megatron.kernels import Floats, advance_for

MANY_DATASETS = 32_767  # from this number on Megatron refuses, and dataset_index is int32

Advance = Callable[[Floats, Floats, NDArray[np.int64], NDArray[Any], NDArray[np.int64]], None]

_LANE_COUNTS = 1 << 15  # counts of all lanes together: they fit into a core's cache
_MOST_LANES = 1 << 13
_FEWEST_STEPS = 256
_MOST_STEPS = 4096
_STEPS_AT_ONCE = 64
_BLOCK = 1 << 20
_FEWEST_LANES = 8  # with fewer, numpy's calls take longer than a plain loop (measured with 2 to 1,000 data sets)
_MANY = 64  # from this number of data sets on, a row of them is long enough


def normalized(weights: Sequence[float]) -> list[float]:
    """Return the weights with sum 1, rounded as Megatron rounds.

    Raises NielsCacheError for a weight that is not above 0, or too small beside the others.
    """
    given = _checked(weights)
    with np.errstate(over="ignore"):
        total = np.sum(given)
    if not np.isfinite(total):
        raise NielsCacheError(f"weights {list(weights)[:5]}: add up to more than a 64-bit float holds; give smaller ones")
    shares = given / total
    if not shares.all():
        wrong = int(np.argmin(shares))
        raise NielsCacheError(f"weight {wrong} is {weights[wrong]}: too small beside a sum of {total:g} for a 64-bit float; leave it out")
    return shares.tolist()


def index_dtype(datasets: int) -> np.dtype[Any]:
    """Return the dtype of dataset_index."""
    return np.dtype(np.int16 if datasets < MANY_DATASETS else np.int32)


def build_blending_indices(
    weights: Sequence[float], size: int, *, advance: Advance | None = None, allocate: Allocate = new_array, progress: Progress | None = None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return dataset_index and dataset_sample_index, both (size,), for weights that add up to 1 (`normalized`).

    advance: the function for the steps, see `advance_lanes`. The default for a large blend is the compiled function of `kernels`, if numba
    is installed. Raises NielsCacheError for a weight that is not above 0.
    """
    return _build(_checked(weights), size, advance=advance, allocate=allocate, progress=progress)


def build_exhaustive_blending_indices(
    counts: Sequence[int], *, advance: Advance | None = None, allocate: Allocate = new_array, progress: Progress | None = None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the same arrays, (sum of counts,), with exactly `counts` samples of each data set: an exhausted data set is left out.

    Raises NielsCacheError for a count that is not a whole number above 0.
    """
    sizes = np.array([check_positive("count", count) for count in counts], dtype=np.int64)
    total = int(sizes.sum())
    weights = sizes / float(total)
    dataset_index, sample_index = _build(weights, total, advance=advance, allocate=allocate, progress=progress)
    # Until a data set would give more than it has, the result is the same as without exhaustion.
    first = _first_excess(dataset_index, sample_index, sizes)
    if first < total:
        spent = np.bincount(dataset_index[:first], minlength=len(sizes)).astype(np.float64)
        left = np.flatnonzero(spent < sizes)
        for sample in range(first, total):
            chosen = left[np.argmax(weights[left] * max(float(sample), 1.0) - spent[left])]
            dataset_index[sample], sample_index[sample] = chosen, spent[chosen]
            spent[chosen] += 1
            if spent[chosen] == sizes[chosen]:
                left = left[left != chosen]
    return dataset_index, sample_index


def _first_excess(dataset_index: NDArray[Any], sample_index: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
    """Return the first sample that its data set does not have, or the number of all samples."""
    for start in range(0, len(sample_index), _BLOCK):
        block = slice(start, start + _BLOCK)
        excess = sample_index[block] >= sizes[dataset_index[block]]
        if excess.any():
            return start + int(np.argmax(excess))
    return len(sample_index)


def advance_lanes(weights: Floats, counts: Floats, samples: NDArray[np.int64], chosen: NDArray[Any], numbers: NDArray[np.int64]) -> None:
    """Do some steps of the rule in each lane: fill `chosen` and `numbers`, both (lanes, steps), with data sets and sample numbers.

    weights: (D,). counts: (D, lanes), C-contiguous, the earlier samples of each data set; updated in place. samples: (lanes,),
    the present sample of each lane.
    """
    lanes, steps = chosen.shape
    flat = np.ascontiguousarray(counts.T).reshape(-1) if len(weights) >= _MANY else counts.reshape(-1)
    choose, strides = _choose_of_many(weights, flat, lanes) if len(weights) >= _MANY else _choose_of_few(weights, counts)
    at = samples.astype(np.float64)
    for start in range(0, steps, _STEPS_AT_ONCE):
        stop = min(start + _STEPS_AT_ONCE, steps)
        by_step, given_by_step = np.empty((stop - start, lanes), dtype=chosen.dtype), np.empty((stop - start, lanes), dtype=np.int64)
        for step in range(stop - start):
            place = choose(np.maximum(at, 1.0))
            by_step[step] = place
            place *= strides[0]
            place += strides[1]
            given = flat.take(place)
            given_by_step[step] = given
            given += 1
            flat[place] = given
            at += 1
        chosen[:, start:stop], numbers[:, start:stop] = by_step.T, given_by_step.T
    if len(weights) >= _MANY:
        counts[:] = flat.reshape(lanes, len(weights)).T


def _choose_of_few(weights: Floats, counts: Floats) -> tuple[Callable[[Floats], NDArray[np.int64]], tuple[int, NDArray[np.int64]]]:
    """Return a function from max(i, 1) of each lane to its data set, and stride and offsets to find its count in `counts` (D, lanes)."""
    datasets, lanes = counts.shape
    # Among the data sets with the largest error, the first has the largest code.
    codes, by_dataset = np.arange(datasets, 0, -1, dtype=np.uint8)[:, None], weights[:, None]
    errors, largest, is_largest = np.empty(counts.shape), np.empty(lanes), np.empty(counts.shape, dtype=np.bool_)
    coded, code, chosen = np.empty(counts.shape, dtype=np.uint8), np.empty(lanes, dtype=np.uint8), np.empty(lanes, dtype=np.int64)

    def choose(at: Floats) -> NDArray[np.int64]:
        np.multiply(by_dataset, at, out=errors)
        np.subtract(errors, counts, out=errors)
        np.maximum.reduce(errors, axis=0, out=largest)
        np.equal(errors, largest, out=is_largest)
        np.multiply(is_largest.view(np.uint8), codes, out=coded)
        np.maximum.reduce(coded, axis=0, out=code)
        return np.subtract(datasets, code, out=chosen, dtype=np.int64)

    return choose, (lanes, np.arange(lanes))


def _choose_of_many(
    weights: Floats, flat: Floats, lanes: int
) -> tuple[Callable[[Floats], NDArray[np.int64]], tuple[int, NDArray[np.int64]]]:
    """Return the same as `_choose_of_few`, for flattened counts (lanes, D).

    Each row is contiguous, so the search for its largest value is fast.
    """
    counts = flat.reshape(lanes, len(weights))
    errors, chosen = np.empty(counts.shape), np.empty(lanes, dtype=np.int64)

    def choose(at: Floats) -> NDArray[np.int64]:
        np.multiply(at[:, None], weights, out=errors)
        np.subtract(errors, counts, out=errors)
        return errors.argmax(axis=1, out=chosen)

    return choose, (1, np.arange(lanes) * len(weights))


def _checked(weights: Sequence[float]) -> Floats:
    known = np.array(weights, dtype=np.float64)
    wrong = ~(np.isfinite(known) & (known > 0))
    if not len(known) or wrong.any():
        which = f"weight {int(np.argmax(wrong))} is {weights[int(np.argmax(wrong))]}" if len(known) else "weights: none given"
        raise NielsCacheError(f"{which}: each must be a number above 0; leave out data sets without a positive weight")
    return known


def _build(
    weights: Floats, size: int, *, advance: Advance | None, allocate: Allocate, progress: Progress | None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Fill both arrays, round by round: as many lanes as possible, of equal length; the next round begins at the end of the last lane.

    A rest with too few lanes is filled one by one.
    """
    dataset_index = allocate("dataset_index", (size,), index_dtype(len(weights)))
    sample_index = allocate("dataset_sample_index", (size,), np.dtype(np.int64))
    advance = advance or advance_for(datasets=len(weights), samples=size)
    most_lanes = min(max(_LANE_COUNTS // len(weights), 8), _MOST_LANES)
    fewest_steps = max(_FEWEST_STEPS, 8 * len(weights))  # a lane forgets a wrong guess well before it ends
    counts, done = np.zeros(len(weights)), 0
    while done < size:
        if advance is None and size - done < _FEWEST_LANES * fewest_steps:
            _fill_one_by_one(weights, counts, done, dataset_index, sample_index)
            done = size
        else:
            lanes = min(max((size - done) // fewest_steps, 1), most_lanes)
            steps = min((size - done) // lanes, max(2 * fewest_steps, _MOST_STEPS))
            stop = done + lanes * steps
            datasets, numbers = (array[done:stop].reshape(lanes, steps) for array in (dataset_index, sample_index))
            counts = _Round(weights, done, datasets, numbers, advance or advance_lanes).fill(counts)
            done = stop
        if progress is not None:
            progress("dataset_index", done, size)
    return dataset_index, sample_index


def _fill_one_by_one(weights: Floats, counts: Floats, first: int, dataset_index: NDArray[Any], sample_index: NDArray[np.int64]) -> None:
    """Apply the rule literally, from sample `first` on, with known `counts`."""
    given, errors, chosen, numbers = counts.copy(), np.empty(len(weights)), [], []
    for sample in range(first, len(dataset_index)):
        np.multiply(weights, max(float(sample), 1.0), out=errors)
        np.subtract(errors, given, out=errors)
        dataset = int(errors.argmax())
        number = given.item(dataset)
        chosen.append(dataset)
        numbers.append(number)
        given[dataset] = number + 1.0
    dataset_index[first:], sample_index[first:] = chosen, numbers


def guess_counts(weights: Floats, samples: NDArray[np.int64]) -> Floats:
    """Return (D, len(samples)): an estimate of the samples of each data set before those samples.

    Shares are rounded down, and the data sets with the largest remainders get one more, so that they add up.
    """
    exact = weights[:, None] * samples
    counts = np.floor(exact)
    missing = samples - counts.sum(axis=0)
    rank = np.argsort(np.argsort(counts - exact, axis=0, kind="stable"), axis=0)
    return counts + (rank < missing)


class _Round:
    """Lanes of equal length, side by side, from sample `first` on: `datasets` and `numbers`, both (lanes, steps), to be filled."""

    def __init__(self, weights: Floats, first: int, datasets: NDArray[Any], numbers: NDArray[np.int64], advance: Advance) -> None:
        self._weights, self._advance = weights, advance
        self._datasets, self._numbers = datasets, numbers
        self._samples = first + datasets.shape[1] * np.arange(len(datasets))

    def fill(self, counts: Floats) -> Floats:
        """Fill all lanes, from the earlier samples of each data set, (D,). Return those at the end."""
        begins = guess_counts(self._weights, self._samples)
        begins[:, 0] = counts
        ends = begins.copy()
        self._advance(self._weights, ends, self._samples, self._datasets, self._numbers)
        while True:
            wrong = np.flatnonzero((begins[:, 1:] != ends[:, :-1]).any(axis=0)) + 1
            if not len(wrong):
                return ends[:, -1]
            before, begins[:, wrong] = begins[:, wrong], ends[:, wrong - 1]
            self._redo(wrong, np.ascontiguousarray(begins[:, wrong]), before, ends)

    def _redo(self, lanes: NDArray[np.int64], now: Floats, before: Floats, ends: Floats) -> None:
        """Do these lanes again, from counts `now` (D, lanes) instead of `before`.

        A lane is finished once its counts equal the earlier ones: nothing changes after that.
        """
        steps = self._datasets.shape[1]
        for start in range(0, steps, _STEPS_AT_ONCE):
            stop = min(start + _STEPS_AT_ONCE, steps)
            column = np.arange(len(lanes))
            chosen_before = self._datasets[lanes, start:stop].astype(np.int64) * len(lanes) + column[:, None]
            before += np.bincount(chosen_before.reshape(-1), minlength=before.size).reshape(before.shape)
            shape = (len(lanes), stop - start)
            chosen, given = np.empty(shape, dtype=self._datasets.dtype), np.empty(shape, dtype=np.int64)
            self._advance(self._weights, now, self._samples[lanes] + start, chosen, given)
            self._datasets[lanes, start:stop], self._numbers[lanes, start:stop] = chosen, given
            differs = (now != before).any(axis=0)
            lanes, now, before = lanes[differs], np.ascontiguousarray(now[:, differs]), before[:, differs]
            if not len(lanes):
                return
        ends[:, lanes] = now
