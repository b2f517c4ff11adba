"""The loops of `profiles` over n-grams of words, compiled by numba. Import this only when a text is judged.

A text is given as the code points of its words without blanks between them, and the start of each word. N-grams are found by a rolling
hash, and two with equal hashes are compared, so the results are exact. All orders together take about 0.1 microseconds for a word. numba
caches the compiled code on disk (see `niels_cache_assets.dedup.kernels`).
"""

import numpy as np
from numba import njit

from niels_cache_runtime.format.layout import Ints, Uint32s

_BASE, _MIX, _SHIFT = np.uint64(0x100000001B3), np.uint64(0x9E3779B97F4A7C15), np.uint64(20)


@njit(cache=True, nogil=True)
def repetition(points: Uint32s, starts: Ints, orders: Ints, tops: Ints, repeats: Ints) -> None:
    """Write how many characters are in the most frequent n-gram, if n is below 5, or else in n-grams that repeat an earlier one.

    Args:
        points: Code points of the words, (characters,).
        starts: Start of each word in `points`, and the end of the last one, (words + 1,).
        orders: The numbers of words n, ascending, (orders,).
        tops: Receives the characters of all occurrences of the most frequent n-gram, the first of several, with a blank between words, and
            0 if there are fewer than n words, (orders,).
        repeats: Receives the characters of repeated n-grams that do not overlap, from left to right, without blanks. Two n-grams are
            equal if their characters are, even if their words end in other places, (orders,).
    """
    words, characters = len(starts) - 1, len(points)
    size = 16
    while size < 2 * words:
        size *= 2
    slots, counts = np.zeros(size, np.int32), np.zeros(words + 1, np.int32)
    mask = np.uint64(size - 1)
    longest = 0
    for word in range(words):
        longest = max(longest, starts[min(words, word + orders[-1])] - starts[word])
    prefix, powers = np.zeros(characters + 1, np.uint64), np.ones(longest + 1, np.uint64)
    for place in range(characters):
        prefix[place + 1] = prefix[place] * _BASE + np.uint64(points[place]) + np.uint64(1)
    for place in range(longest):
        powers[place + 1] = powers[place] * _BASE
    for index in range(len(orders)):
        order = orders[index]
        by_words = order < 5
        slots[:] = 0
        word = best = repeated = 0
        while word + order <= words:
            start, end = starts[word], starts[word + order]
            key = prefix[end] - prefix[start] * powers[end - start]
            slot = ((key ^ key >> np.uint64(32)) * _MIX >> _SHIFT) & mask
            while slots[slot] and not _are_equal(points, starts, np.int64(slots[slot]) - 1, word, order, by_words):
                slot = (slot + np.uint64(1)) & mask
            if slots[slot] == 0:
                slots[slot] = word + 1
                counts[word] = 1
                word += 1
            elif by_words:
                counts[slots[slot] - 1] += 1
                counts[word] = 0
                word += 1
            else:
                repeated += end - start
                word += order
        if by_words and order <= words:
            for word in range(words - order + 1):
                if counts[word] > counts[best]:
                    best = word
            tops[index] = (starts[best + order] - starts[best] + order - 1) * counts[best]
        repeats[index] = repeated


@njit(cache=True, nogil=True)
def _are_equal(points, starts, one, other, order, by_words):  # type: ignore[no-untyped-def]
    """Return whether the n-grams that begin at two words are equal."""
    first, second = starts[one], starts[other]
    size = starts[one + order] - first
    if starts[other + order] - second != size:
        return False
    if by_words:
        for each in range(1, order):
            if starts[one + each] - first != starts[other + each] - second:
                return False
    for each in range(size):  # noqa: SIM110  # numba compiles this loop faster than all()
        if points[first + each] != points[second + each]:
            return False
    return True
