"""The loops of `signatures` over canonical text, compiled by numba, which compute shingle hashes and slots.

Documents are given as one array of UTF-8 bytes (canonical_kernels.py), and the end of each document in this array. A blank follows each
text, so the next text begins at end + 1. PADDING more blanks follow the last text, because a word is read eight bytes at a time. `hashing`
defines the values. If you change a value here, change it in tests/helpers/plain_signatures.py too, and raise SIGNATURE_VERSION.

Positions are unsigned integers. For signed integers, numba would check for negative positions, which count from the end. All functions
release the GIL. The code is cached on disk beside the module (or in the user's cache folder if the module's folder is read-only). So numba
compiles once for each machine and numba version, which takes about four seconds in the first process. In later processes, the import of
numba and the first result take about a second, so modules of compiled loops are imported when they are needed.
"""

import numpy as np
from numba import njit

from niels_cache_assets.dedup import hashing
from niels_cache_runtime.format.layout import Bytes, Ints, Uint32s, Uints

_WORD_START, _WORD_FACTOR = np.uint64(hashing.WORD_START), np.uint64(hashing.WORD_FACTOR)
_BASE, _MIX_1, _MIX_2 = np.uint64(hashing.SHINGLE_BASE), np.uint64(hashing.MIX_1), np.uint64(hashing.MIX_2)
_NO_SHINGLE, _LAST_SLOT_VALUE = np.uint32(hashing.NO_SHINGLE), np.uint32(hashing.LAST_SLOT_VALUE)
_ZERO, _ONE, _THREE, _SEVEN, _EIGHT = (np.uint64(value) for value in (0, 1, 3, 7, 8))
_S7, _S27, _S30, _S31, _S32, _S56 = (np.uint64(shift) for shift in (7, 27, 30, 31, 32, 56))
_LOW_BITS, _HIGH_BITS, _BLANKS = (np.uint64(byte * 0x0101010101010101) for byte in (0x01, 0x80, 0x20))
_BUFFER = 4096  # number of shingles that are collected, in the first-level cache, before the slots are updated

compiled = njit(cache=True, nogil=True)


@compiled
def _mix(value):  # type: ignore[no-untyped-def]
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@compiled
def _lower_slots(values, filled, xors, factors, slots):  # type: ignore[no-untyped-def]
    """Lower each slot to the minimum over the waiting shingles.

    The outer loop is over slots, so the minimum stays in a register. The compiler processes eight shingles at a time.
    """
    for slot in range(len(slots)):
        xor = xors[slot]
        factor = factors[slot]
        least = slots[slot]
        for index in range(filled):
            permuted = np.uint32((values[index] ^ xor) * factor)
            least = min(least, permuted)
        slots[slot] = least


@compiled
def _block(canonical, position):  # type: ignore[no-untyped-def]
    """Return eight bytes as a little-endian integer, which the compiler turns into one load instruction."""
    block = _ZERO
    for byte in range(8):
        block |= np.uint64(canonical[position + np.uint64(byte)]) << np.uint64(8 * byte)
    return block


@compiled
def _first_blank(block):  # type: ignore[no-untyped-def]
    """Return an integer whose lowest set bit is the highest bit of the first blank in `block`, or 0 if there is no blank.

    This is Mycroft's test for a zero byte. It has no branches.
    """
    difference = block ^ _BLANKS
    return (difference - _LOW_BITS) & ~difference & _HIGH_BITS


@compiled
def _next_word(canonical, position):  # type: ignore[no-untyped-def]
    """Return the hash of the word that begins at a position, and the position after the blank at the end of the word."""
    value = _WORD_START
    block = _block(canonical, position)
    blank = _first_blank(block)
    while blank == _ZERO:
        value = (value ^ block) * _WORD_FACTOR
        position += _EIGHT
        block = _block(canonical, position)
        blank = _first_blank(block)
    before = ((blank - _ONE) & ~blank) >> _S7  # all bits of the bytes before the blank are set, and no other bits
    value = (value ^ (block & before)) * _WORD_FACTOR
    length = ((before & _LOW_BITS) * _LOW_BITS) >> _S56
    return _mix(value), position + length + _ONE


@compiled
def _roll(rolling, word, leaving, window, leaving_power):  # type: ignore[no-untyped-def]
    """Move the polynomial one word further.

    Args:
        rolling: The polynomial.
        word: Hash of the next word.
        leaving: Index of the oldest word in `window`.
        window: Hashes of the last words, in a ring buffer (0 at the start).
        leaving_power: Power of SHINGLE_BASE by which the oldest word counts.
    """
    rolling = rolling * _BASE + word - window[leaving] * leaving_power
    window[leaving] = word
    leaving += _ONE
    return rolling, leaving if leaving < np.uint64(len(window)) else _ZERO


@compiled
def _power(exponent):  # type: ignore[no-untyped-def]
    power = _ONE
    for _ in range(exponent):
        power *= _BASE
    return power


@compiled
def shingle(canonical: Bytes, ends: Ints, ngram: int, shingles: Uints, shingle_ends: Ints) -> None:
    """Write the hash of every shingle (run of words), in text order. `shingles` has room for one hash per word."""
    window, leaving_power = np.empty(ngram, dtype=np.uint64), _power(ngram)
    position, filled = _ZERO, _ZERO
    for document in range(len(ends)):
        end = np.uint64(ends[document])
        window[:] = _ZERO
        words, leaving, rolling = 0, _ZERO, _ZERO
        while position < end:
            word, position = _next_word(canonical, position)
            rolling, leaving = _roll(rolling, word, leaving, window, leaving_power)
            words += 1
            if words >= ngram or position > end:
                shingles[filled] = _mix(rolling)
                filled += _ONE
        position = end + _ONE
        shingle_ends[document] = filled


@compiled
def sign(canonical: Bytes, ends: Ints, ngram: int, xors: Uint32s, factors: Uint32s, slots: Uint32s) -> None:
    """Write the slots (the numbers of the signatures) of canonical texts, (documents, num_perm) uint32.

    This needs 16 KB of memory, for documents of any size.
    """
    values = np.empty(_BUFFER, dtype=np.uint32)
    window, leaving_power = np.empty(ngram, dtype=np.uint64), _power(ngram)
    position = _ZERO
    for document in range(len(ends)):
        end = np.uint64(ends[document])
        slots[document, :] = _LAST_SLOT_VALUE if end > position else _NO_SHINGLE
        window[:] = _ZERO
        words, leaving, rolling, filled = 0, _ZERO, _ZERO, _ZERO
        while position < end:
            word, position = _next_word(canonical, position)
            rolling, leaving = _roll(rolling, word, leaving, window, leaving_power)
            words += 1
            if words >= ngram or position > end:
                values[filled] = np.uint32(_mix(rolling) >> _S32)
                filled += _ONE
                if filled == np.uint64(_BUFFER):
                    _lower_slots(values, filled, xors, factors, slots[document])
                    filled = _ZERO
        position = end + _ONE
        _lower_slots(values, filled, xors, factors, slots[document])


@compiled
def hash_bands(slots: Uint32s, rows: int, hashes: Uints) -> None:
    """Write the hash of each band, (documents, bands) uint64: `bands.band_hashes`.

    The inner loop is over bands, whose hashes do not depend on each other.
    """
    for document in range(len(slots)):
        hashes[document, :] = _BASE
        for row in range(rows):
            for band in range(hashes.shape[1]):
                hashes[document, band] = _mix(hashes[document, band] * _MIX_1 + np.uint64(slots[document, band * rows + row]))
        has_words = slots[document, 0] != _NO_SHINGLE
        for band in range(hashes.shape[1]):
            hashes[document, band] = max(hashes[document, band], _ONE) if has_words else _ZERO


@compiled
def sort_sets(shingles: Uints, ends: Ints, set_ends: Ints) -> None:
    """Sort the hashes of each document and remove repetitions, in place. The sets follow each other, and `set_ends` gets their ends."""
    start = filled = 0
    for document in range(len(ends)):
        end = ends[document]
        own = shingles[start:end]
        own.sort()
        last = _ZERO
        for index in range(len(own)):
            value = own[index]  # `shingles[filled]` is at most this element
            if index == 0 or value != last:
                shingles[filled] = value
                filled += 1
            last = value
        start = end
        set_ends[document] = filled


@compiled
def count_shared(shingles: Uints, others: Uints) -> int:
    """Return the number of hashes that are in both sets, each sorted and without repetitions."""
    one, other, shared = _ZERO, _ZERO, 0
    while one < np.uint64(len(shingles)) and other < np.uint64(len(others)):
        mine, theirs = shingles[one], others[other]
        shared += mine == theirs
        one += np.uint64(mine <= theirs)
        other += np.uint64(theirs <= mine)
    return shared


@compiled
def set_bits(hashes: Uints, shift: np.uint64, bits: Bytes) -> None:
    """Set bit `hash >> shift` for each hash. Bit i is bit i % 8 of byte i // 8."""
    for value in hashes:
        slot = value >> shift
        bits[slot >> _THREE] |= np.uint8(_ONE << (slot & _SEVEN))


@compiled
def find_near(shingles, ends, firsts, hashes, owners, others, other_starts, threshold, rounding, matches, similarities):  # type: ignore[no-untyped-def]
    """Write for each set the number of the first other set that is near to it, or -1, and their Jaccard similarity.

    Args:
        shingles: Sorted sets, one after the other.
        ends: The end of each set in `shingles`.
        firsts: How many hashes of each set are looked up.
        hashes: The first hashes of the other sets, sorted.
        owners: The number of the other set of each of them. For equal hashes, the numbers ascend.
        others: The other sets, one after the other.
        other_starts: Set i has the hashes `other_starts[i]:other_starts[i + 1]` of `others`.
        threshold: The lowest similarity.
        rounding: By how much a product of the threshold may be too large.
        matches: (sets,) int64, the result.
        similarities: (sets,) float64, the result.
    """
    compared = np.full(len(other_starts) - 1, -1, np.int32)  # the last set that each other set was compared with
    start = 0
    for one in range(len(ends)):
        own = shingles[start : ends[one]]
        best = np.int64(len(compared))
        for value in own[: firsts[one]]:
            place = np.searchsorted(hashes, value)
            while place < len(hashes) and hashes[place] == value and owners[place] < best:
                other = owners[place]
                place += 1
                if compared[other] == one:
                    continue
                compared[other] = one
                size = other_starts[other + 1] - other_starts[other]
                if min(size, len(own)) < threshold * max(size, len(own)) - rounding:
                    continue
                shared = count_shared(own, others[other_starts[other] : other_starts[other + 1]])
                similarity = shared / (size + len(own) - shared)
                if similarity >= threshold:
                    best, similarities[one] = other, similarity
        matches[one] = best if best < len(compared) else -1
        start = ends[one]
