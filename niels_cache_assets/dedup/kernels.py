"""The loops of `signatures` over bytes, compiled by numba: canonical text, shingle hashes, slots. Imported only where numba is installed.

Documents come as one array of UTF-8 bytes and the end of each document in it. What the values are stands in `canonical` and `hashing`,
whose plain Python computes the same; a change here is a change there, and of SIGNATURE_VERSION.

All release the GIL. Compiled once a machine (some seconds) and cached beside this module, or in the user's cache folder where that cannot
be written; loading what is compiled takes tens of milliseconds a process, importing numba about half a second.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from niels_cache_assets.dedup import hashing

_WORD_START, _WORD_FACTOR = np.uint64(hashing.WORD_START), np.uint64(hashing.WORD_FACTOR)
_BASE, _MIX_1, _MIX_2 = np.uint64(hashing.SHINGLE_BASE), np.uint64(hashing.MIX_1), np.uint64(hashing.MIX_2)
_NO_SHINGLE, _LAST_SLOT_VALUE = np.uint32(hashing.NO_SHINGLE), np.uint32(hashing.LAST_SLOT_VALUE)
_ZERO, _ONE, _EIGHT, _S27, _S30, _S31, _S32 = (np.uint64(value) for value in (0, 1, 8, 27, 30, 31, 32))
_BUFFER = 4096  # shingles that wait in the first-level cache for the slots


@njit(cache=True, nogil=True, inline="always")
def _mix(value):  # type: ignore[no-untyped-def]
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@njit(cache=True, nogil=True)
def canonicalize(
    source: NDArray[np.uint8],
    ends: NDArray[np.int64],
    table: NDArray[np.uint32],
    canonical: NDArray[np.uint8],
    canonical_ends: NDArray[np.int64],
) -> None:
    """Write the canonical text of each document; `canonical` is a byte longer than `source`, for no code point grows (tested)."""
    position = 0
    write = 0
    for document in range(len(ends)):
        end = ends[document]
        begin = write
        after_blank = True  # a blank at the beginning goes, too
        while position < end:
            byte = source[position]
            if byte < 0x80:
                position += 1
                mapped = table[byte]
                # Without a branch: which bytes are punctuation or blanks, no processor foresees.
                canonical[write] = mapped
                is_blank = mapped == 32
                keep = (mapped != 0) & ((not is_blank) | (not after_blank))
                write += keep
                after_blank = is_blank if keep else after_blank
                continue
            if byte < 0xE0:
                code_point = (byte & 0x1F) << 6 | (source[position + 1] & 0x3F)
                position += 2
            elif byte < 0xF0:
                code_point = (byte & 0x0F) << 12 | (source[position + 1] & 0x3F) << 6 | (source[position + 2] & 0x3F)
                position += 3
            else:
                code_point = (byte & 0x07) << 18 | (source[position + 1] & 0x3F) << 12 | (source[position + 2] & 0x3F) << 6
                code_point |= source[position + 3] & 0x3F
                position += 4
            mapped = table[code_point]
            if mapped == 0:
                continue
            if mapped == 32:
                canonical[write] = 32
                write += not after_blank
                after_blank = True
                continue
            after_blank = False
            if mapped < 0x80:
                canonical[write] = mapped
                write += 1
            elif mapped < 0x800:
                canonical[write] = 0xC0 | mapped >> 6
                canonical[write + 1] = 0x80 | mapped & 0x3F
                write += 2
            elif mapped < 0x10000:
                canonical[write] = 0xE0 | mapped >> 12
                canonical[write + 1] = 0x80 | mapped >> 6 & 0x3F
                canonical[write + 2] = 0x80 | mapped & 0x3F
                write += 3
            else:
                canonical[write] = 0xF0 | mapped >> 18
                canonical[write + 1] = 0x80 | mapped >> 12 & 0x3F
                canonical[write + 2] = 0x80 | mapped >> 6 & 0x3F
                canonical[write + 3] = 0x80 | mapped & 0x3F
                write += 4
        if after_blank and write > begin:
            write -= 1
        canonical_ends[document] = write


@njit(cache=True, nogil=True)
def _lower_slots(values, filled, xors, factors, slots):  # type: ignore[no-untyped-def]
    """One slot at a time, so that its minimum stays in registers; the compiler makes it eight shingles at a time."""
    for slot in range(len(slots)):
        xor = xors[slot]
        factor = factors[slot]
        least = slots[slot]
        for index in range(filled):
            permuted = np.uint32((values[index] ^ xor) * factor)
            least = min(least, permuted)
        slots[slot] = least


@njit(cache=True, nogil=True, inline="always")
def _next_word(canonical, position, end):  # type: ignore[no-untyped-def]
    """The hash of the word that begins at a position, and the position of the next one."""
    value, block, in_block = _WORD_START, _ZERO, 0
    while position < end and canonical[position] != 32:
        block = block << _EIGHT | np.uint64(canonical[position])
        position += 1
        in_block += 1
        if in_block == 8:
            value = (value ^ block) * _WORD_FACTOR
            block, in_block = _ZERO, 0
    return _mix((value ^ block) * _WORD_FACTOR), position + 1


@njit(cache=True, nogil=True, inline="always")
def _roll(rolling, word, words, window, leaving_power):  # type: ignore[no-untyped-def]
    """The polynomial over the last words, one further: `words` have been before, `window` holds the last of them."""
    rolling = rolling * _BASE + word
    slot = words % len(window)
    if words >= len(window):
        rolling -= window[slot] * leaving_power
    window[slot] = word
    return rolling


@njit(cache=True, nogil=True)
def _power(exponent):  # type: ignore[no-untyped-def]
    power = _ONE
    for _ in range(exponent):
        power *= _BASE
    return power


@njit(cache=True, nogil=True)
def shingle(
    canonical: NDArray[np.uint8], ends: NDArray[np.int64], ngram: int, shingles: NDArray[np.uint64], shingle_ends: NDArray[np.int64]
) -> None:
    """Write the hash of every shingle, in the order of the texts; `shingles` has room for one per word."""
    window, leaving_power = np.empty(ngram, dtype=np.uint64), _power(ngram)
    position = filled = 0
    for document in range(len(ends)):
        end = ends[document]
        words, rolling = 0, _ZERO
        while position < end:
            word, position = _next_word(canonical, position, end)
            rolling = _roll(rolling, word, words, window, leaving_power)
            words += 1
            if words >= ngram or position > end:
                shingles[filled] = _mix(rolling)
                filled += 1
        position = end
        shingle_ends[document] = filled


@njit(cache=True, nogil=True)
def sign(
    canonical: NDArray[np.uint8],
    ends: NDArray[np.int64],
    ngram: int,
    xors: NDArray[np.uint32],
    factors: NDArray[np.uint32],
    slots: NDArray[np.uint32],
) -> None:
    """Write (documents, num_perm) uint32 slots of canonical texts. Takes 16 KB, whatever the size of a document."""
    values = np.empty(_BUFFER, dtype=np.uint32)
    window, leaving_power = np.empty(ngram, dtype=np.uint64), _power(ngram)
    position = 0
    for document in range(len(ends)):
        end = ends[document]
        slots[document, :] = _LAST_SLOT_VALUE if end > position else _NO_SHINGLE
        words, rolling, filled = 0, _ZERO, 0
        while position < end:
            word, position = _next_word(canonical, position, end)
            rolling = _roll(rolling, word, words, window, leaving_power)
            words += 1
            if words >= ngram or position > end:
                values[filled] = np.uint32(_mix(rolling) >> _S32)
                filled += 1
                if filled == _BUFFER:
                    _lower_slots(values, filled, xors, factors, slots[document])
                    filled = 0
        position = end
        _lower_slots(values, filled, xors, factors, slots[document])
