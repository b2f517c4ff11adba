"""The compiled loops of `passes` and `quick_checks`, each one pass over the UTF-8 bytes of a text. Import this only if numba is installed.

`scan` says which marks of a table occur. `measure` counts words, lines and symbols. Tables have SIZE values: one for each code point below
LIMIT, one (at PICTURE) for pictures, and one (at LIMIT) for all other code points. The loops take 1 to 3 ns per byte and release the GIL.
numba caches the compiled code on disk (see `dedup/kernels.py`).
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from niels_cache_runtime.format.layout import Bytes, Ints, Uint32s, Uints

LIMIT = 0x10000
PICTURE = LIMIT + 1  # the index of emoji and other pictures
SIZE = LIMIT + 2
_PICTURES, _PICTURES_END = 0x1F000, 0x1FB00
# Bits of `scan` besides those of its table.
DOUBLE_BLANK, BLANK_AT_END, THREE_NEWLINES = (np.uint64(1 << bit) for bit in (61, 62, 63))
# Bits of the table of `measure`.
SPACE, LETTER, BULLET, DASH, UNSURE = (np.uint8(1 << bit) for bit in range(5))
BUCKETS = 4096  # of pairs of words; they fit into the first-level cache
_MASK = np.uint64(BUCKETS - 1)
_FACTOR, _MIX = np.uint64(0x100000001B3), np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(40)


@njit(cache=True, nogil=True, inline="always")
def _code_point(source, position):  # type: ignore[no-untyped-def]
    """Return the index in the tables of the code point that begins at `position`, and its number of bytes."""
    byte = np.uint32(source[position])
    if byte < 0x80:
        return byte, 1
    if byte < 0xE0:
        return (byte & 0x1F) << 6 | (np.uint32(source[position + 1]) & 0x3F), 2
    if byte < 0xF0:
        return (byte & 0x0F) << 12 | (np.uint32(source[position + 1]) & 0x3F) << 6 | (np.uint32(source[position + 2]) & 0x3F), 3
    high = (np.uint32(source[position + 1]) & 0x3F) << 12 | (np.uint32(source[position + 2]) & 0x3F) << 6
    code_point = (byte & 0x07) << 18 | high | (np.uint32(source[position + 3]) & 0x3F)
    return np.uint32(PICTURE if _PICTURES <= code_point < _PICTURES_END else LIMIT), 4


@njit(cache=True, nogil=True, inline="always")
def _count_pair(buckets, previous, word):  # type: ignore[no-untyped-def]
    """Count a pair of words in its bucket, and return the bucket's new count, int64."""
    bucket = ((previous * _FACTOR + word) * _MIX >> _SHIFT) & _MASK
    buckets[bucket] += np.uint32(1)
    return np.int64(buckets[bucket])


@njit(cache=True, nogil=True)
def scan(source: Bytes, table: Uints) -> np.uint64:
    """Return the bits of the table for all code points of the text, joined by "or", and the three bits of runs of blanks and newlines."""
    found = np.uint64(0)
    last = before = np.uint32(0)
    position = 0
    end = len(source)
    while position < end:
        code_point, size = _code_point(source, position)
        position += size
        found |= table[code_point]
        if last == 32:
            if code_point == 32:
                found |= DOUBLE_BLANK
            elif code_point == 10:
                found |= BLANK_AT_END
        elif code_point == 10 and last == 10 and before == 10:
            found |= THREE_NEWLINES
        before = last
        last = code_point
    return found


@njit(cache=True, nogil=True)
def measure(source: Bytes, classes: Bytes, lower: NDArray[np.uint16], buckets: Uint32s, out: Ints) -> bool:
    """Write the counts of a text to `out`, and return False at a code point that is UNSURE, after which the counts mean nothing.

    The counts are: words, characters that are not white space, words with a letter, lines that are not empty, lines with a bullet, symbols
    (`#`, ellipses), and an upper bound for the number of the most frequent pair of words in lower case.

    Args:
        source: UTF-8 bytes of the text, and a blank, which ends the last word.
        classes: Bits of each code point, (SIZE,).
        lower: Lower case of each code point, (SIZE,).
        buckets: Zeros, (BUCKETS,), that count pairs of words.
        out: Receives the counts.
    """
    words = characters = with_letter = lines = bullets = symbols = 0
    most = np.int64(0)
    dots = 0
    in_word = has_letter = False
    word = previous = np.uint64(0)
    at_start = True  # no character but white space since the start of the line
    dash = 0  # 1: the line begins with a dash. 2: a blank follows the dash. The line has a bullet if more follows.
    position = 0
    end = len(source)
    while position < end:
        code_point, size = _code_point(source, position)
        position += size
        kind = classes[code_point]
        if kind & SPACE:
            if in_word:
                in_word = False
                words += 1
                with_letter += has_letter
                if words > 1:
                    most = max(most, _count_pair(buckets, previous, word))
                previous = word
            if code_point == 10:
                at_start = True
                dash = 0
            elif dash == 1:
                dash = 2 if code_point == 32 else 0
            dots = 0
            continue
        if kind & UNSURE:
            return False
        if not in_word:
            in_word = True
            has_letter = False
            word = np.uint64(0)
            if at_start:
                at_start = False
                lines += 1
                bullets += (kind & BULLET) != 0
                dash = 1 if kind & DASH else 0
            elif dash == 2:
                bullets += 1
                dash = 0
        elif dash == 1:
            dash = 0
        characters += 1
        has_letter |= (kind & LETTER) != 0
        word = word * _FACTOR + lower[code_point]
        if code_point == 46:
            dots += 1
            if dots == 3:
                symbols += 1
                dots = 0
        else:
            dots = 0
            symbols += (code_point == 35) | (code_point == 0x2026)
    out[:] = words, characters, with_letter, lines, bullets, symbols, most
    return True
