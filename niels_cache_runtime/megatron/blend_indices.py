"""Megatron-LM's blending indices: sample i of a blend is sample `dataset_sample_index[i]` of data set `dataset_index[i]`.

    for i = 0, 1, ...   d = argmax of w_d * max(i, 1) - c_d, the first of equals;   dataset_index[i] = d, dataset_sample_index[i] = c_d++

Here w_d is the weight of data set d, and c_d is the number of its samples so far. Numbers are 64-bit floats, and each product and
difference is rounded, as in `build_blending_indices` of megatron-core 0.16.1. (Its wheels for x86-64 are compiled without fused
multiply-add.) The arrays are therefore identical. Megatron refuses 32,767 data sets or more; here dataset_index is then int32.

If numba is installed, it compiles the loop that builds a large blend: a few ns per sample and data set, the same as Megatron's compiled
helper. Without numba, a sample takes about 3 us. No memory is needed besides the output. In the runtime, only this module imports numba,
and only to build a large blend. The import takes about a second and 80 MB, and compiling takes half a second more. If numba is missing,
cannot be loaded or is switched off (NUMBA_DISABLE_JIT=1), `compiled_blend` returns None.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.cache.checks import check_positive
from niels_cache_runtime.cache.index_cache import Allocate, new_array
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Array, Ints
from niels_cache_runtime.megatron.gpt_indices import OnArrayProgress

MANY_DATASETS = 32_767  # Megatron refuses this number of data sets or more; here dataset_index is then int32

Floats = NDArray[np.float64]

_BLOCK = 1 << 20
_MANY = 100_000  # with fewer samples, loading numba does not pay off


def normalize_weights(weights: Sequence[float]) -> list[float]:
    """Return the weights divided by their sum, rounded as Megatron rounds.

    Raises:
        NielsCacheError: If there are no weights, or if one is not above 0 or is too small compared with the sum.
    """
    checked = _checked(weights)
    with np.errstate(over="ignore"):
        total = np.sum(checked)
    if not np.isfinite(total):
        raise NielsCacheError(f"weights {list(weights)[:5]}: add up to more than a 64-bit float holds; give smaller ones")
    shares = checked / total
    if not shares.all():
        wrong = int(np.argmin(shares))
        raise NielsCacheError(f"weight {wrong} is {weights[wrong]}: too small beside a sum of {total:g} for a 64-bit float; leave it out")
    return shares.tolist()


def build_blending_indices(
    weights: Sequence[float], size: int, *, allocate: Allocate = new_array, progress: OnArrayProgress | None = None
) -> tuple[Array, Ints]:
    """Return dataset_index and dataset_sample_index, both of shape (size,).

    Args:
        weights: The weight of each data set. They add up to 1 (see `normalize_weights`).
        size: The number of samples in the blend.
        allocate: Returns the memory for each array.
        progress: Called with (name of the array, done, total).

    Raises:
        NielsCacheError: If a weight is not above 0.
    """
    shares = _checked(weights)
    dataset_index = allocate("dataset_index", (size,), np.dtype(np.int16 if len(shares) < MANY_DATASETS else np.int32))
    sample_index = allocate("dataset_sample_index", (size,), np.dtype(np.int64))
    fill = (compiled_blend() if size >= _MANY else None) or _fill
    counts = np.zeros(len(shares))
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        fill(shares, counts, start, dataset_index[start:stop], sample_index[start:stop])
        if progress is not None:
            progress("dataset_index", stop, size)
    return dataset_index, sample_index


def build_exhaustive_blending_indices(
    counts: Sequence[int], *, allocate: Allocate = new_array, progress: OnArrayProgress | None = None
) -> tuple[Array, Ints]:
    """Return dataset_index and dataset_sample_index, both of shape (sum of counts,), with exactly `counts` samples of each data set.

    A data set whose samples have all been used is left out from then on.

    Args:
        counts: The number of samples of each data set.
        allocate: Returns the memory for each array.
        progress: Called with (name of the array, done, total).

    Raises:
        NielsCacheError: If a count is not a whole number above 0.
    """
    sizes = np.array([check_positive("count", count) for count in counts], dtype=np.int64)
    total = int(sizes.sum())
    weights = sizes / float(total)
    dataset_index, sample_index = build_blending_indices(weights.tolist(), total, allocate=allocate, progress=progress)
    # Up to the first sample that a data set does not have, the result is the same as without exhaustion.
    first = _first_excess(dataset_index, sample_index, sizes)
    if first < total:
        used = np.bincount(dataset_index[:first], minlength=len(sizes)).astype(np.float64)
        left = np.flatnonzero(used < sizes)
        for sample in range(first, total):
            chosen = left[np.argmax(weights[left] * max(float(sample), 1.0) - used[left])]
            dataset_index[sample], sample_index[sample] = chosen, used[chosen]
            used[chosen] += 1
            if used[chosen] == sizes[chosen]:
                left = left[left != chosen]
    return dataset_index, sample_index


def _first_excess(dataset_index: Array, sample_index: Ints, sizes: Ints) -> int:
    """Return the first sample of the blend that its data set does not have, or the number of samples if there is none."""
    for start in range(0, len(sample_index), _BLOCK):
        block = slice(start, start + _BLOCK)
        excess = sample_index[block] >= sizes[dataset_index[block]]
        if excess.any():
            return start + int(np.argmax(excess))
    return len(sample_index)


def _checked(weights: Sequence[float]) -> Floats:
    numbers = np.array(weights, dtype=np.float64)
    wrong = ~(np.isfinite(numbers) & (numbers > 0))
    if not len(numbers) or wrong.any():
        which = f"weight {int(np.argmax(wrong))} is {weights[int(np.argmax(wrong))]}" if len(numbers) else "weights: none given"
        raise NielsCacheError(f"{which}: each must be a number above 0; leave out data sets without a positive weight")
    return numbers


def _fill(weights: Floats, counts: Floats, first: int, chosen: Array, numbers: Ints) -> None:
    """Do the same as `_blend_loop`, with numpy."""
    errors = np.empty(len(weights))
    for place in range(len(chosen)):
        np.multiply(weights, max(float(first + place), 1.0), out=errors)
        np.subtract(errors, counts, out=errors)
        dataset = int(errors.argmax())
        chosen[place], numbers[place] = dataset, counts[dataset]
        counts[dataset] += 1.0


@lru_cache(maxsize=1)
def compiled_blend() -> Callable[..., None] | None:
    """Return the compiled `_blend_loop`, or None if numba cannot compile here."""
    try:
        import numba
    except (ImportError, OSError, SystemError):  # numba is not installed, was built for a different numpy, or cannot load its library
        return None
    if vars(numba.config).get("DISABLE_JIT"):
        return None
    return numba.njit(nogil=True)(_blend_loop)


def _blend_loop(weights: Array, counts: Array, first: int, chosen: Array, numbers: Array) -> None:
    """Fill `chosen` and `numbers` for the samples from `first` on, and update `counts`, whose shape is (number of data sets,)."""
    for place in range(len(chosen)):
        at = max(float(first + place), 1.0)
        dataset, largest = 0, weights[0] * at - counts[0]
        for other in range(1, len(weights)):
            error = weights[other] * at - counts[other]
            if error > largest:
                dataset, largest = other, error
        chosen[place] = dataset
        numbers[place] = int(counts[dataset])
        counts[dataset] += 1.0
