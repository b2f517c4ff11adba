"""The loop that computes canonical text, compiled by numba.

Documents are given as one array of UTF-8 bytes, and the end of each document in this array. `canonical` defines the result, and a test
compares it with tests/helpers/plain_signatures.py. If you change a rule here, change it there too, and raise SIGNATURE_VERSION.

ASCII letters and blanks take one table lookup and no branch. For most ASCII punctuation, the bytes before and after it decide. For
everything else, the loop looks for the visible characters before and after it.

Positions are unsigned integers. For signed integers, numba would check for negative positions, which count from the end. All functions
release the GIL. `kernels` describes when the functions are compiled, and the cost.
"""

import numpy as np

from niels_cache_assets.dedup.canonical import ALONE, BLANK, CLOSING, COMPOSE, DASH, ELLIPSIS, MARK, QUOTE, SIGN
from niels_cache_assets.dedup.hashing import PADDING
from niels_cache_assets.dedup.kernels import compiled
from niels_cache_runtime.format.layout import Bools, Bytes, Ints, Uint32s

_ZERO, _ONE = np.uint64(0), np.uint64(1)
_BLANK, _ALONE, _SIGN, _CLOSING, _DASH, _MARK, _QUOTE, _COMPOSE = (
    np.uint32(kind) for kind in (BLANK, ALONE, SIGN, CLOSING, DASH, MARK, QUOTE, COMPOSE)
)
_ELLIPSIS, _DOT, _CODE_POINT, _REMOVED = (np.uint32(value) for value in (MARK + ELLIPSIS, MARK + ord("."), 0xFFFFFF, 0))
# Classes of bytes. A byte above ASCII, or one that is removed, is OTHER.
_LETTER, _DIGIT, _SPACE, _BRACKET, _OPERATOR, _HYPHEN, _STOP, _APOSTROPHE, _OTHER = range(9)
# The result for ASCII punctuation: it is removed, a blank, or a sign. SLOW: the loop has to look further than one byte.
_AS_NOTHING, _AS_BLANK, _AS_SIGN, _SLOW = range(4)


@compiled
def _continued(source, position):  # type: ignore[no-untyped-def]
    return np.uint32(source[position] & np.uint8(0x3F))


@compiled
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


@compiled
def _write(canonical, write, code_point):  # type: ignore[no-untyped-def]
    """Write a code point as UTF-8, and return the position after it."""
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


@compiled
def _next_visible(source, position, end, table):  # type: ignore[no-untyped-def]
    """Return the entry of the next code point that is visible and no quote, its position, and the position after it.

    At the end of a text, the entry is a blank.
    """
    while position < end:
        code_point, after = _read(source, position)
        entry = np.uint32(table[np.uint64(code_point)] & ~_COMPOSE)
        if entry != _REMOVED and entry < _QUOTE:
            return entry, position, after
        position = after
    return _BLANK, end, end


@compiled
def _last_visible(source, position, begin, table):  # type: ignore[no-untyped-def]
    """Return the entry of the last code point before a position that is visible and no quote, and its position.

    At the beginning of a text, the entry is a blank.
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


@compiled
def _is_digit(entry):  # type: ignore[no-untyped-def]
    return (entry >= np.uint32(48)) & (entry <= np.uint32(57))


@compiled
def _is_of_word(entry):  # type: ignore[no-untyped-def]
    """Return whether an entry is a letter of a word, or a word of its own."""
    return (entry < _SIGN) & (entry != _BLANK)


@compiled
def _is_alone(entry):  # type: ignore[no-untyped-def]
    return (entry >= _ALONE) & (entry < _SIGN)


@compiled
def _quote(source, position, after, begin, end, table):  # type: ignore[no-untyped-def]
    """Return what is written for a run of quotes that begins at a position (REMOVED for nothing), and the position after the run."""
    before, _ = _last_visible(source, position, begin, table)
    follows, after, _ = _next_visible(source, after, end, table)
    return np.uint32(39) if _is_digit(before) & _is_digit(follows) else _REMOVED, after


@compiled
def _run(entry, source, position, after, begin, end, table):  # type: ignore[no-untyped-def]
    """Return what is written for a run of dashes or of equal sentence marks that begins at a position.

    This is a code point (a blank for the end of a sentence), how many times it is written, and the position after the run.
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


def tables_of(table: Uint32s) -> tuple[Bytes, Bytes, Bytes]:
    """Return the tables of bytes that `canonicalize` takes, from `canonical.marked_code_points`.

    Returns:
        Three tables: `plain`, (256,), the result for ASCII letters and blanks, and 0 for all other bytes; `classes`, (256,); and `actions`,
        (9, 9, 9), the result for a byte by the classes of the byte before it, of the byte itself, and of the byte after it.
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


@compiled
def canonicalize(
    source: Bytes,
    ends: Ints,
    table: Uint32s,
    plain: Bytes,
    classes: Bytes,
    actions: Bytes,
    canonical: Bytes,
    canonical_ends: Ints,
    to_compose: Bools,
) -> None:
    """Write the canonical text of each document, with a blank after each text and PADDING more blanks after the last text.

    The time is proportional to the number of bytes: the visible character before a quote or a mark is looked up only once for each run of
    invisible characters, because the look ahead removes those after it.

    Args:
        source: UTF-8 bytes of the documents, one after the other.
        ends: End of each document in `source`, (documents,).
        table: `canonical.marked_code_points`.
        plain: First table of `tables_of`.
        classes: Second table of `tables_of`.
        actions: Third table of `tables_of`.
        canonical: Receives the canonical texts. It has room for `source` twice, a blank for each document, and PADDING. That is enough,
            because no code point grows (a test checks this), and a blank comes before a sign of one byte, or on both sides of a character
            of three bytes or more.
        canonical_ends: Receives the end of each document in `canonical`, (documents,).
        to_compose: Set to True for documents with characters that `canonical.compose` changes, (documents,).
    """
    position, write = _ZERO, _ZERO
    for document in range(len(ends)):
        start, end, begin = position, np.uint64(ends[document]), write
        no_blank = True  # whether no blank is written: at the beginning, after a blank, after a sign
        while position < end:
            byte = source[position]
            mapped = plain[byte]
            if mapped:
                # There is no branch here, because processors cannot predict which bytes are blanks.
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
