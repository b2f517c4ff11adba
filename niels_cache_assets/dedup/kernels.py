"""The loops of `signatures` over bytes, which numba compiles. They compute canonical text, shingle hashes and slots. Import this module
only with numba installed.

Documents are given as one array of UTF-8 bytes, and the end of each document in this array. A blank follows each canonical text, so the
next text begins at end + 1. PADDING more blanks follow the last text, because a word is read eight bytes at a time. `canonical` and
`hashing` define the values, in plain Python. If you change a value here, change it there too, and raise SIGNATURE_VERSION.

Positions are unsigned integers. For signed integers, numba would check for negative positions, which count from the end. All functions
release the GIL. `signatures.compiled` describes when the functions are compiled, and the cost.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from niels_cache_assets.dedup import hashing
from niels_cache_assets.dedup.canonical import ALONE, BLANK, CLOSING, COMPOSE, DASH, ELLIPSIS, MARK, QUOTE, SIGN
from niels_cache_assets.dedup.hashing import PADDING

_WORD_START, _WORD_FACTOR = np.uint64(hashing.WORD_START), np.uint64(hashing.WORD_FACTOR)
_BASE, _MIX_1, _MIX_2 = np.uint64(hashing.SHINGLE_BASE), np.uint64(hashing.MIX_1), np.uint64(hashing.MIX_2)
_NO_SHINGLE, _LAST_SLOT_VALUE = np.uint32(hashing.NO_SHINGLE), np.uint32(hashing.LAST_SLOT_VALUE)
_ZERO, _ONE, _EIGHT = (np.uint64(value) for value in (0, 1, 8))
_BLANK, _ALONE, _SIGN, _CLOSING, _DASH, _MARK, _QUOTE, _COMPOSE = (
    np.uint32(kind) for kind in (BLANK, ALONE, SIGN, CLOSING, DASH, MARK, QUOTE, COMPOSE)
)
_ELLIPSIS, _DOT, _CODE_POINT, _REMOVED = (np.uint32(value) for value in (MARK + ELLIPSIS, MARK + ord("."), 0xFFFFFF, 0))
_S7, _S27, _S30, _S31, _S32, _S56 = (np.uint64(shift) for shift in (7, 27, 30, 31, 32, 56))
_LOW_BITS, _HIGH_BITS, _BLANKS = (np.uint64(byte * 0x0101010101010101) for byte in (0x01, 0x80, 0x20))
_BUFFER = 4096  # number of shingles that are collected, in the first-level cache, before the slots are updated


@njit(cache=True, nogil=True)
def _mix(value):  # type: ignore[no-untyped-def]
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@njit(cache=True, nogil=True)
def _continued(source, position):  # type: ignore[no-untyped-def]
    """Return the six value bits of a UTF-8 continuation byte."""
    return np.uint32(source[position] & np.uint8(0x3F))


@njit(cache=True, nogil=True)
def _read(source, position):  # type: ignore[no-untyped-def]
    """Return the code point at a position, and the position after it."""
    byte = source[position]
    if byte < 0x80:
        return np.uint32(byte), position + _ONE
    if byte < 0xE0:
        return np.uint32(byte & 0x1F) << 6 | _continued(source, position + _ONE), position + np.uint64(2)
    if byte < 0xF0:
        code_point = np.uint32(byte & 0x0F) << 12 | _continued(source, position + _ONE) << 6
        return code_point | _continued(source, position + np.uint64(2)), position + np.uint64(3)
    code_point = np.uint32(byte & 0x07) << 18 | _continued(source, position + _ONE) << 12
    code_point |= _continued(source, position + np.uint64(2)) << 6 | _continued(source, position + np.uint64(3))
    return code_point, position + np.uint64(4)


@njit(cache=True, nogil=True)
def _write(canonical, write, code_point):  # type: ignore[no-untyped-def]
    """Write a code point as UTF-8. Return the position after it."""
    if code_point < 0x80:
        canonical[write] = code_point
        return write + _ONE
    if code_point < 0x800:
        canonical[write] = 0xC0 | code_point >> 6
        canonical[write + _ONE] = 0x80 | code_point & 0x3F
        return write + np.uint64(2)
    if code_point < 0x10000:
        canonical[write] = 0xE0 | code_point >> 12
        canonical[write + _ONE] = 0x80 | code_point >> 6 & 0x3F
        canonical[write + np.uint64(2)] = 0x80 | code_point & 0x3F
        return write + np.uint64(3)
    canonical[write] = 0xF0 | code_point >> 18
    canonical[write + _ONE] = 0x80 | code_point >> 12 & 0x3F
    canonical[write + np.uint64(2)] = 0x80 | code_point >> 6 & 0x3F
    canonical[write + np.uint64(3)] = 0x80 | code_point & 0x3F
    return write + np.uint64(4)


@njit(cache=True, nogil=True)
def _next_visible(source, position, end, table):  # type: ignore[no-untyped-def]
    """Return the entry of the next code point that is seen and is no quote, its position, and the position after it. At the end of a text,
    the entry is a blank.
    """
    while position < end:
        code_point, after = _read(source, position)
        entry = np.uint32(table[np.uint64(code_point)] & ~_COMPOSE)
        if entry != _REMOVED and entry < _QUOTE:
            return entry, position, after
        position = after
    return _BLANK, end, end


@njit(cache=True, nogil=True)
def _last_visible(source, position, begin, table):  # type: ignore[no-untyped-def]
    """Return the entry of the last code point before a position that is seen and is no quote, and its position. At the beginning of a text,
    the entry is a blank.
    """
    while position > begin:
        position -= _ONE
        while source[position] & np.uint8(0xC0) == 0x80:
            position -= _ONE
        code_point, _ = _read(source, position)
        entry = np.uint32(table[np.uint64(code_point)] & ~_COMPOSE)
        if entry != _REMOVED and entry < _QUOTE:
            return entry, position
    return _BLANK, begin


@njit(cache=True, nogil=True)
def _is_digit(entry):  # type: ignore[no-untyped-def]
    return (entry >= np.uint32(48)) & (entry <= np.uint32(57))


@njit(cache=True, nogil=True)
def _is_of_word(entry):  # type: ignore[no-untyped-def]
    """Return whether an entry is a letter of a word, or a word of its own."""
    return (entry < _SIGN) & (entry != _BLANK)


@njit(cache=True, nogil=True)
def _is_alone(entry):  # type: ignore[no-untyped-def]
    return (entry >= _ALONE) & (entry < _SIGN)


@njit(cache=True, nogil=True)
def _quote(source, position, after, begin, end, table):  # type: ignore[no-untyped-def]
    """Return what is written for a run of quotes that begins at a position (REMOVED for nothing), and the position after the run."""
    before, _ = _last_visible(source, position, begin, table)
    follows, after, _ = _next_visible(source, after, end, table)
    return np.uint32(39) if _is_digit(before) & _is_digit(follows) else _REMOVED, after


@njit(cache=True, nogil=True)
def _run(entry, source, position, after, begin, end, table):  # type: ignore[no-untyped-def]
    """Return what is written for a run of dashes or of equal sentence marks that begins at a position: a code point (a blank for the end of
    a sentence), how many times, and the position after the run.
    """
    count = 1
    if entry == _ELLIPSIS:
        entry, count = _DOT, 3
    before, start = _last_visible(source, position, begin, table)
    follows, position, after = _next_visible(source, after, end, table)
    while follows == entry or (follows == _ELLIPSIS and entry == _DOT):
        count += 3 if follows == _ELLIPSIS else 1
        follows, position, after = _next_visible(source, after, end, table)
    if entry >= _MARK:
        is_attached = ((before < _ALONE) & (before != _BLANK)) | ((before >= _CLOSING) & (before < _DASH))
        if _is_alone(before) | _is_alone(follows) | (is_attached & (follows == _BLANK)):
            return _BLANK, 1, position
    elif count > 1 and (before == _BLANK) == (follows == _BLANK):
        ahead = position
        while follows == _BLANK and ahead < end:
            follows, _, ahead = _next_visible(source, ahead, end, table)
        while before == _BLANK and start > begin:
            before, start = _last_visible(source, start, begin, table)
        if _is_of_word(before) & _is_of_word(follows):
            count = 1
    return entry & _CODE_POINT, count, position


# Classes of bytes. A byte above ASCII, or one that is removed, is OTHER.
_LETTER, _DIGIT, _SPACE, _BRACKET, _OPERATOR, _HYPHEN, _STOP, _APOSTROPHE, _OTHER = range(9)
# What becomes of punctuation in ASCII: it is removed, a blank, or a sign. SLOW: the kernel has to look further than one byte.
_AS_NOTHING, _AS_BLANK, _AS_SIGN, _SLOW = range(4)


def tables_of(table: NDArray[np.uint32]) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the tables of bytes that `canonicalize` takes, from `canonical.marked_code_points`.

    plain: (256,), what becomes of letters and blanks of ASCII, and 0 for all other bytes. classes: (256,). actions: (9, 9, 9), what becomes
    of a byte, by the classes of the byte before it, of the byte itself, and of the byte after it.
    """
    plain, classes = np.zeros(256, dtype=np.uint8), np.full(256, _OTHER, dtype=np.uint8)
    of_kind = {SIGN: _OPERATOR, CLOSING: _BRACKET, DASH: _HYPHEN, MARK: _STOP, QUOTE: _APOSTROPHE}
    for byte, entry in enumerate(table[:128].tolist()):
        if entry >= ALONE:
            classes[byte] = of_kind[entry & ~0xFFFFFF]
        elif entry:
            plain[byte] = entry
            classes[byte] = _SPACE if entry == BLANK else _DIGIT if chr(byte).isdecimal() else _LETTER
    actions = np.full((9, 9, 9), _SLOW, dtype=np.uint8)
    actions[:, [_BRACKET, _OPERATOR, _HYPHEN, _STOP]] = _AS_SIGN
    actions[np.ix_([_LETTER, _DIGIT, _BRACKET], [_STOP], [_SPACE])] = _AS_BLANK
    actions[:, _HYPHEN, [_HYPHEN, _APOSTROPHE, _OTHER]] = _SLOW
    actions[:, _STOP, [_STOP, _APOSTROPHE, _OTHER]] = _SLOW
    actions[[_APOSTROPHE, _OTHER], _STOP] = _SLOW
    actions[:, _APOSTROPHE] = _AS_NOTHING
    actions[np.ix_([_DIGIT], [_APOSTROPHE], [_DIGIT, _APOSTROPHE, _OTHER])] = _SLOW
    actions[_OTHER, _APOSTROPHE] = _SLOW
    return plain, classes, actions


@njit(cache=True, nogil=True)
def canonicalize(
    source: NDArray[np.uint8],
    ends: NDArray[np.int64],
    table: NDArray[np.uint32],
    plain: NDArray[np.uint8],
    classes: NDArray[np.uint8],
    actions: NDArray[np.uint8],
    canonical: NDArray[np.uint8],
    canonical_ends: NDArray[np.int64],
    to_compose: NDArray[np.bool_],
) -> None:
    """Write the canonical text of each document, with a blank after each text and PADDING more blanks after the last text.

    `canonical` has room for `source` twice, a blank for each document, and PADDING. That is enough, because no code point grows (a test
    checks this), and a blank comes before a sign of one byte, or on both sides of a character of three bytes or more. `table`:
    `canonical.marked_code_points`. `plain`, `classes`, `actions`: `tables_of`. `to_compose` (documents,) becomes True for documents with
    characters that `canonical.composed` changes. The time is in proportion to the bytes: what is seen before a quote or a mark is looked up
    only once for each run of characters that are not seen, because the look ahead removes those after it.
    """
    position, write = _ZERO, _ZERO
    for document in range(len(ends)):
        start, end, begin = position, np.uint64(ends[document]), write
        no_blank = True  # whether no blank is written: at the beginning, after a blank, after a sign
        while position < end:
            byte = source[position]
            mapped = plain[byte]
            if mapped:
                # There is no branch here, because no processor can predict which bytes are blanks.
                canonical[write] = mapped
                is_blank = mapped == 32
                write += np.uint64(is_blank <= (not no_blank))
                no_blank = is_blank
                position += _ONE
                continue
            if byte < 0x80:
                before = classes[source[position - _ONE]] if position > start else np.uint8(_SPACE)
                follows = classes[source[position + _ONE]] if position + _ONE < end else np.uint8(_SPACE)
                action = actions[before, classes[byte], follows]
                if action != _SLOW:
                    canonical[write] = 32
                    write += np.uint64((action != _AS_NOTHING) & (not no_blank))
                    canonical[write] = np.uint8(table[byte])
                    write += np.uint64(action == _AS_SIGN)
                    no_blank |= action != _AS_NOTHING
                    position += _ONE
                    continue
            here = position
            code_point, position = _read(source, here)
            entry = table[np.uint64(code_point)]
            if entry >= _COMPOSE:
                entry = np.uint32(entry ^ _COMPOSE)
                to_compose[document] = True
            kind, count = entry, 1
            if entry >= _QUOTE:
                entry, position = _quote(source, here, position, start, end, table)
                kind = entry
            elif entry >= _DASH:
                entry, count, position = _run(entry, source, here, position, start, end, table)
            if entry == _REMOVED:
                continue
            if (kind >= _ALONE) | (entry == _BLANK):
                canonical[write] = 32
                write += np.uint64(not no_blank)
                no_blank = True
                if entry == _BLANK:
                    continue
            for _ in range(count):
                write = _write(canonical, write, entry & _CODE_POINT)
            no_blank = kind >= _SIGN
            if _is_alone(kind):
                canonical[write] = 32
                write += _ONE
                no_blank = True
        if write > begin and canonical[write - _ONE] == 32:
            write -= _ONE
        canonical_ends[document] = write
        canonical[write] = 32
        write += _ONE
    for _ in range(PADDING):
        canonical[write] = 32
        write += _ONE


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _block(canonical, position):  # type: ignore[no-untyped-def]
    """Return eight bytes as a little-endian integer. The compiler turns this into one load instruction."""
    block = np.uint64(canonical[position])
    block |= np.uint64(canonical[position + np.uint64(1)]) << np.uint64(8)
    block |= np.uint64(canonical[position + np.uint64(2)]) << np.uint64(16)
    block |= np.uint64(canonical[position + np.uint64(3)]) << np.uint64(24)
    block |= np.uint64(canonical[position + np.uint64(4)]) << np.uint64(32)
    block |= np.uint64(canonical[position + np.uint64(5)]) << np.uint64(40)
    block |= np.uint64(canonical[position + np.uint64(6)]) << np.uint64(48)
    block |= np.uint64(canonical[position + np.uint64(7)]) << np.uint64(56)
    return block


@njit(cache=True, nogil=True)
def _first_blank(block):  # type: ignore[no-untyped-def]
    """Return an integer whose lowest set bit is the highest bit of the first blank in `block`; 0 if `block` has no blank.

    This is Mycroft's test for a zero byte. It has no branches.
    """
    difference = block ^ _BLANKS
    return (difference - _LOW_BITS) & ~difference & _HIGH_BITS


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _roll(rolling, word, leaving, window, leaving_power):  # type: ignore[no-untyped-def]
    """Move the polynomial one word further.

    `window`: the last words, in a ring buffer (0 at the start). `leaving`: the index of the oldest word in `window`.
    """
    rolling = rolling * _BASE + word - window[leaving] * leaving_power
    window[leaving] = word
    leaving += _ONE
    return rolling, leaving if leaving < np.uint64(len(window)) else _ZERO


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


@njit(cache=True, nogil=True)
def sign(
    canonical: NDArray[np.uint8],
    ends: NDArray[np.int64],
    ngram: int,
    xors: NDArray[np.uint32],
    factors: NDArray[np.uint32],
    slots: NDArray[np.uint32],
) -> None:
    """Write the slots (the numbers of the signatures) of canonical texts, (documents, num_perm) uint32. This needs 16 KB of memory, for
    documents of any size.
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


@njit(cache=True, nogil=True)
def hash_bands(slots: NDArray[np.uint32], rows: int, hashes: NDArray[np.uint64]) -> None:
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


@njit(cache=True, nogil=True)
def remove_repeated(hashes: NDArray[np.uint64], ends: NDArray[np.int64], new_ends: NDArray[np.int64]) -> None:
    """Move the different hashes of each document to the front of `hashes`, and write the new end of each document. The hashes of each
    document are sorted.
    """
    write, start = 0, 0
    for document in range(len(ends)):
        begin = write
        for index in range(start, ends[document]):
            if write == begin or hashes[write - 1] != hashes[index]:
                hashes[write] = hashes[index]
                write += 1
        start = ends[document]
        new_ends[document] = write


@njit(cache=True, nogil=True)
def count_shared(shingles: NDArray[np.uint64], others: NDArray[np.uint64]) -> int:
    """Return the number of hashes that are in both sets, each sorted and without repetitions."""
    one, other, shared = _ZERO, _ZERO, 0
    while one < np.uint64(len(shingles)) and other < np.uint64(len(others)):
        mine, theirs = shingles[one], others[other]
        shared += mine == theirs
        one += np.uint64(mine <= theirs)
        other += np.uint64(theirs <= mine)
    return shared
