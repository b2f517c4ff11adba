"""Locality-sensitive hashing (LSH) of MinHash slots: the numbers of bands and rows, and the hash of each band.

A band consists of `rows` slots of a signature. Two documents of similarity s agree in all slots of a given band with probability s^rows.
They agree in at least one of `bands` bands with probability 1 - (1 - s^rows)^bands. As a function of s, this is the S-curve (Leskovec,
Rajaraman, Ullman, Mining of Massive Datasets, 3.4).
"""

from functools import lru_cache

import numpy as np

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Uint32s, Uints

NO_BUCKET = np.uint64(0)  # the band hash of a document without shingles; such a document is in no bucket
MAX_MISSED = 0.01  # `bands_for_recall`: the share of pairs exactly at the threshold that share no band
_STEPS = 10_000  # number of steps of the integrals in `choose_bands`


@lru_cache(maxsize=64)
def choose_bands(threshold: float, num_perm: int) -> tuple[int, int]:
    """Return the pair (bands, rows), with bands x rows <= num_perm, whose S-curve is nearest to a step at the threshold.

    The distance to the step is the sum of two areas with equal weight. The area of false positives is below the threshold and under the
    curve. The area of false negatives is above the threshold and over the curve. If two choices have the same distance, the choice with
    fewer bands wins. The result is 8 x 16 for 0.85 and 128 slots.
    """
    if not 0 < threshold < 1:
        raise NielsCacheError(f"a similarity threshold is between 0 and 1, not {threshold}")
    middles = (np.arange(_STEPS) + 0.5) / _STEPS
    below = middles < threshold
    best, least = (1, 1), np.inf
    for rows in range(1, num_perm + 1):
        power = 1 - middles**rows
        missed = np.ones_like(power)  # (1 - s^rows)^bands
        for bands in range(1, num_perm // rows + 1):
            missed *= power
            error = np.count_nonzero(below) - missed[below].sum() + missed[~below].sum()
            if error < least - 1e-9 or (error < least + 1e-9 and bands < best[0]):
                best, least = (bands, rows), error
    return best


@lru_cache(maxsize=64)
def bands_for_recall(threshold: float, num_perm: int) -> tuple[int, int]:
    """Return the pair (bands, rows), with bands x rows <= num_perm, that misses at most MAX_MISSED of the pairs at the threshold.

    Use it if the found pairs are verified, because then a pair below the threshold costs only a comparison. Of all choices that miss so
    few, the one with the most rows wins, because it compares the fewest pairs. If every choice misses more, the result is bands of one row.
    The result is 16 x 8 for 0.85 and 128 slots.
    """
    choices = ((num_perm // rows, rows) for rows in range(num_perm, 0, -1))
    return next(((bands, rows) for bands, rows in choices if (1 - threshold**rows) ** bands <= MAX_MISSED), (num_perm, 1))


def band_hashes(slots: Uint32s, bands: int, rows: int) -> Uints:
    """Return the hash of each band of each document.

    Two documents have the same hash of a band if all slots of the band are equal. A document without shingles has the hash NO_BUCKET. Two
    different bands have the same hash with probability 2^-64.

    Args:
        slots: Slots of the documents, (documents, num_perm) uint32. Slots beyond bands x rows are not used.
        bands: Number of bands.
        rows: Number of slots in a band.

    Returns:
        The hashes, (documents, bands) uint64.
    """
    if bands < 1 or rows < 1 or bands * rows > slots.shape[1]:
        raise NielsCacheError(f"{bands} bands of {rows} rows do not fit signatures of {slots.shape[1]} slots: choose fewer")
    from niels_cache_assets.dedup import kernels

    hashes = np.empty((len(slots), bands), dtype=np.uint64)
    kernels.hash_bands(slots, rows, hashes)
    return hashes
