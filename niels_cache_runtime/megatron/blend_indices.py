"""Megatron-LM's blending indices: sample i of a blend is sample `dataset_sample_index[i]` of data set `dataset_index[i]`.

    for i = 0, 1, ...   d = argmax of w_d * max(i, 1) - c_d, the first of equals;   dataset_index[i] = d, dataset_sample_index[i] = c_d++

Here w_d is the weight of data set d, and c_d is the number of its samples so far. Numbers are 64-bit floats, and each product and
difference is rounded, as in `build_blending_indices` of megatron-core 0.16.1. (Its wheels for x86-64 are compiled without fused
multiply-add.) So the arrays are the same. Megatron refuses 32,767 data sets or more; here dataset_index is then int32.

The rule is sequential, but it forgets its past. If it starts from counts that are slightly wrong, then after about D steps, for D data
sets, it gives the one right sequence for these weights (proof: Adler et al., "Convex dynamics and applications", 2005). A good guess is w_d
* i, rounded to whole counts with the right sum: it is at most slightly wrong. So the samples are cut into lanes, which are stretches that
begin at such a guess. All lanes advance side by side, with one numpy call per step for all of them. Then each guess is compared with the
counts at the end of the lane before. If they differ, the lane is computed again from the right counts, until it gives the same counts as
before. So in the end, every lane has started from the counts at the end of the lane before it.

A blend takes about 20 ns per sample plus 2 ns per sample and data set, on one core. This is two to three times the time of Megatron's
compiled helper. If numba is installed, `kernels` builds a large blend faster than the helper. Lanes are faster from about eight lanes on.
Fewer samples than eight lanes have (2,048, and more with more than 32 data sets) are computed one by one, at about 3 us each. Beside the
output, memory is needed for one round of at most 2^15 counts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.cache.checks import check_positive
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.megatron.gpt_indices import Allocate, Progress, new_array
from niels_cache_runtime.megatron.kernels import Floats, advance_for

MANY_DATASETS = 32_767  # Megatron refuses this number of data sets or more; here dataset_index is then int32

Advance = Callable[[Floats, Floats, NDArray[np.int64], NDArray[Any], NDArray[np.int64]], None]

_LANE_COUNTS = 1 << 15  # number of counts in all lanes together, so that the counts fit into a core's cache
_MOST_LANES = 1 << 13
_FEWEST_STEPS = 256
_MOST_STEPS = 4096
_STEPS_AT_ONCE = 64
_BLOCK = 1 << 20
_FEWEST_LANES = 8  # with fewer lanes (see above), numpy's calls take longer than a plain loop (measured with 2 to 1,000 data sets)
_MANY = 64  # from this number of data sets on, it is faster to search one row per lane


def normalized(weights: Sequence[float]) -> list[float]:
    """Return the weights divided by their sum, rounded as Megatron rounds.

    Raises NielsCacheError for a weight that is not above 0, or that is too small compared with the sum.
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
    """Return dataset_index and dataset_sample_index, both (size,), for weights that add up to 1 (see `normalized`).

    advance: the function that computes the steps, see `advance_lanes`. The default for a large blend is the compiled function of `kernels`,
        if numba is installed. Raises NielsCacheError for a weight that is not above 0.
    """
    return _build(_checked(weights), size, advance=advance, allocate=allocate, progress=progress)


def build_exhaustive_blending_indices(
    counts: Sequence[int], *, advance: Advance | None = None, allocate: Allocate = new_array, progress: Progress | None = None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return dataset_index and dataset_sample_index, both (sum of counts,), with exactly `counts` samples of each data set.

    A data set that has given all its samples is left out from then on. Raises NielsCacheError for a count that is not a whole number above
    0.
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
    """Return the first sample of the blend that its data set does not have.

    If there is no such sample, return the number of all samples.
    """
    for start in range(0, len(sample_index), _BLOCK):
        block = slice(start, start + _BLOCK)
        excess = sample_index[block] >= sizes[dataset_index[block]]
        if excess.any():
            return start + int(np.argmax(excess))
    return len(sample_index)


def advance_lanes(weights: Floats, counts: Floats, samples: NDArray[np.int64], chosen: NDArray[Any], numbers: NDArray[np.int64]) -> None:
    """Do some steps of the rule in each lane (a stretch of the blend). Fill `chosen` with data sets and `numbers` with sample numbers, both
    (lanes, steps).

    weights: (D,). counts: (D, lanes), C-contiguous, how many earlier samples each data set has given; updated in place.
    samples: (lanes,), the current sample of each lane.
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
    """Return a function that chooses the data set of each lane (a stretch of the blend), and (stride, offsets) to find the count of that
    data set.

    The function takes max(i, 1) of each lane. The count of data set d is at d * stride + offsets in the flattened `counts` (D, lanes).
    """
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
    """Return the same as `_choose_of_few`, for counts (lanes, D) that are flattened.

    The counts of a lane are contiguous, so the search for the largest error of a lane is fast.
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
    """Fill both arrays, round by round. A round is as many lanes (stretches that are computed side by side) as possible, all of equal
    length.

    The next round begins at the end of the last lane. If too few samples for lanes are left, they are filled one by one.
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
    """Apply the rule sample by sample, from sample `first` on, beginning with the exact `counts`."""
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
    """Return a guess of how many samples each data set has given before each of `samples`, (D, len(samples)).

    Shares are rounded down, and the data sets with the largest remainders get one more, so that the sum is right.
    """
    exact = weights[:, None] * samples
    counts = np.floor(exact)
    missing = samples - counts.sum(axis=0)
    rank = np.argsort(np.argsort(counts - exact, axis=0, kind="stable"), axis=0)
    return counts + (rank < missing)


class _Round:
    """Lanes (stretches of the blend) of equal length, computed side by side, from sample `first` on. They fill `datasets` and `numbers`,
    both (lanes, steps).
    """

    def __init__(self, weights: Floats, first: int, datasets: NDArray[Any], numbers: NDArray[np.int64], advance: Advance) -> None:
        self._weights, self._advance = weights, advance
        self._datasets, self._numbers = datasets, numbers
        self._samples = first + datasets.shape[1] * np.arange(len(datasets))

    def fill(self, counts: Floats) -> Floats:
        """Fill all lanes. `counts` (D,) says how many earlier samples each data set has given. Return the counts at the end of the last
        lane.
        """
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
        """Compute these lanes again, from counts `now` (D, lanes) instead of `before`.

        A lane is finished as soon as its counts equal the counts of the earlier computation, because nothing changes after that.
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
