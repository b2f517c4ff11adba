"""The loops of lines.py over the bytes of texts, compiled by numba as those of dedup/kernels.py: which lines exist, and which are cut.

Texts are UTF-8 bytes in one array. White space is every byte up to the blank (32). Lines end with LF; a CR before it is white space. The
hash is MurmurHash3 (x64, 128 bits; Appleby, public domain) with seed 0.
"""

import numpy as np
from numba import njit

from niels_cache_runtime.format.layout import Bytes, Ints, Uints

compiled = njit(cache=True, nogil=True)

_BLANK = np.uint8(32)
_NEWLINE = np.uint8(10)
_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_F1, _F2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_A1, _A2, _M = np.uint64(0x52DCE729), np.uint64(0x38495AB5), np.uint64(5)
_MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_ZERO, _ONE = np.uint64(0), np.uint64(1)

LINE, PARAGRAPH = 0, 1  # kinds of units; also the lowest bit of a place
OFFSET_BITS = 31  # of a place: the offset in the text, and the kind
_SHIFT = np.uint64(OFFSET_BITS)


@compiled
def _rotate(value, bits):  # type: ignore[no-untyped-def]
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@compiled
def _finish(value):  # type: ignore[no-untyped-def]
    value = (value ^ (value >> np.uint64(33))) * _F1
    value = (value ^ (value >> np.uint64(33))) * _F2
    return value ^ (value >> np.uint64(33))


@compiled
def _word(data, position, size):  # type: ignore[no-untyped-def]
    """Return up to eight bytes as a little-endian integer."""
    value = _ZERO
    for byte in range(size):
        value |= np.uint64(data[position + byte]) << np.uint64(8 * byte)
    return value


@compiled
def hash_bytes(data, start, stop):  # type: ignore[no-untyped-def]
    """Return the 128-bit hash of data[start:stop] as two integers."""
    first = second = _ZERO
    length = stop - start
    position = start
    while stop - position >= 16:
        first ^= _rotate(_word(data, position, 8) * _C1, 31) * _C2
        first = (_rotate(first, 27) + second) * _M + _A1
        second ^= _rotate(_word(data, position + 8, 8) * _C2, 33) * _C1
        second = (_rotate(second, 31) + first) * _M + _A2
        position += 16
    rest = stop - position
    if rest > 8:
        second ^= _rotate(_word(data, position + 8, rest - 8) * _C2, 33) * _C1
    if rest > 0:
        first ^= _rotate(_word(data, position, min(rest, 8)) * _C1, 31) * _C2
    first ^= np.uint64(length)
    second ^= np.uint64(length)
    first += second
    second += first
    first = _finish(first)
    second = _finish(second)
    first += second
    second += first
    return first, second


@compiled
def _line(data, start, stop):  # type: ignore[no-untyped-def]
    """Return the stripped line that begins at `start`: its start and stop, its number of characters, and where the next line begins.

    The number of characters is 0 for a line without letters, which is not compared.
    """
    end = start
    while end < stop and data[end] != _NEWLINE:
        end += 1
    after = min(end + 1, stop)
    left = start
    while left < end and data[left] <= _BLANK:
        left += 1
    right = end
    while right > left and data[right - 1] <= _BLANK:
        right -= 1
    characters = 0
    has_letter = False
    for position in range(left, right):
        byte = data[position]
        characters += (byte & 0xC0) != 0x80
        lower = byte | 0x20
        has_letter |= byte >= 0x80 or (97 <= lower <= 122)
    return left, right, characters if has_letter else 0, after


@compiled
def _collect(data, bounds, keys, min_characters, parts, first_part, last_part, firsts, seconds, places):  # type: ignore[no-untyped-def]
    found = 0
    for document in range(len(keys)):
        begin, stop = bounds[document], bounds[document + 1]
        start = begin
        block = start
        lines = 0
        in_block = 0
        one = two = _ZERO
        while start < stop:
            left, right, characters, after = _line(data, start, stop)
            is_blank = left == right
            if not is_blank:
                if lines == 0:
                    block = start
                    in_block = 0
                    one = two = _ZERO
                first, second = hash_bytes(data, left, right)
                one = _finish((one + first) * _MIX_1)
                two = _finish((two + second) * _MIX_2)
                lines += 1
                in_block += characters
                if characters >= min_characters:
                    part = np.int64(first % parts)
                    if first_part <= part < last_part:
                        firsts[found] = first
                        seconds[found] = second
                        places[found] = (keys[document] << _SHIFT) | (np.uint64(start - begin) << _ONE)
                        found += 1
            if (is_blank or after >= stop) and lines > 0:
                if lines > 1 and in_block >= min_characters:
                    part = np.int64(one % parts)
                    if first_part <= part < last_part:
                        firsts[found] = one
                        seconds[found] = two
                        places[found] = (keys[document] << _SHIFT) | (np.uint64(block - begin) << _ONE) | _ONE
                        found += 1
                lines = 0
            start = after
    return found


def collect_units(
    data: Bytes, bounds: Ints, keys: Uints, *, min_characters: int, parts: int, first_part: int, last_part: int
) -> tuple[Uints, Uints, Uints]:
    """Return the units (lines and paragraphs of several lines) of texts whose hash is in some parts of all hashes.

    Args:
        data: The bytes of all texts.
        bounds: The bounds of each text, (n + 1,).
        keys: The keys of the documents, (n,).
        min_characters: The minimum length of a unit.
        parts: The number of parts. The first half of a hash modulo this number gives the part.
        first_part: The first part.
        last_part: The part after the last one.

    Returns:
        Both halves of the hash, and the place of each unit, (m,) each. A place has the key of the document, the offset of the first line in
        its text (30 bits), and the kind (the lowest bit).
    """
    most = 2 * (len(data) // min_characters) + 2
    firsts, seconds, places = (np.empty(most, np.uint64) for _ in range(3))
    found = _collect(data, bounds, keys, min_characters, np.uint64(parts), first_part, last_part, firsts, seconds, places)
    return firsts[:found], seconds[:found], places[:found]


@compiled
def _mark(order, firsts, seconds, places, max_copies, marks, because):  # type: ignore[no-untyped-def]
    found = 0
    start = 0
    total = len(order)
    while start < total:
        stop = start + 1
        value = firsts[order[start]]
        while stop < total and firsts[order[stop]] == value:
            stop += 1
        if stop - start > max_copies:
            group = order[start:stop][np.argsort(places[order[start:stop]])]
            done = np.zeros(len(group), np.bool_)
            for index in range(len(group)):  # one round for each second half; there is almost always one
                if done[index]:
                    continue
                first_place = places[group[index]]
                second = seconds[group[index]]
                documents = 0
                last_key = ~_ZERO
                for other in range(index, len(group)):
                    if seconds[group[other]] == second:
                        done[other] = True
                        key = places[group[other]] >> _SHIFT
                        documents += key != last_key
                        last_key = key
                if documents > max_copies:
                    for other in range(index + 1, len(group)):
                        if seconds[group[other]] == second:
                            marks[found] = places[group[other]]
                            because[found] = first_place
                            found += 1
        start = stop
    return found


def mark_copies(firsts: Uints, seconds: Uints, places: Uints, *, max_copies: int) -> tuple[Uints, Uints]:
    """Return the places of units in more than `max_copies` documents, except the first place, and the first place of each, (m,) each."""
    marks, because = np.empty_like(places), np.empty_like(places)
    found = _mark(np.argsort(firsts), firsts, seconds, places, max_copies, marks, because)
    return marks[:found], because[:found]


_IS_BLANK, _IS_MARKED, _IS_PLAIN, _IS_PROSE, _IS_LONG, _GOES, _HAS_LETTERS, _OPENS, _ENDS = (np.uint16(1 << bit) for bit in range(9))
PROSE_CHARACTERS = 60  # a line of this length is a line of prose, not of verse
PASSAGE_PARAGRAPHS = 4  # repeated paragraphs of prose in a row are a passage of their own, whatever stands around them
LONG_CHARACTERS = 100  # a line of this length is a paragraph of its own, not a line of a paragraph that was wrapped


@compiled
def _is_plain(data, start, left, right):  # type: ignore[no-untyped-def]
    """Return whether a line looks like text, and not like an item of a list, a row of a table or code."""
    if left != start:  # indented
        return False
    first = data[left]
    last = data[right - 1]
    if last == 59 or last == 123 or last == 125 or last == 92 or last == 124:  # ; { } \ |
        return False
    lower = first | 0x20
    if 97 <= lower <= 122:
        return not (
            right - left > 1 and (data[left + 1] == 41 or (data[left + 1] == 46 and right - left > 2 and data[left + 2] == 32))
        )  # a) b.
    if 48 <= first <= 57:
        position = left
        while position < right and 48 <= data[position] <= 57:
            position += 1
        return not (position < right and (data[position] == 46 or data[position] == 41))  # 1. 2)
    if first == 0xE2 and right - left > 2:
        if data[left + 1] == 0x80:
            return 0x98 <= data[left + 2] <= 0x9F  # curly quotes, but no dash and no bullet
        return False  # bullets and other symbols
    return first >= 0x80 or first == 34 or first == 39 or first == 40 or first == 91  # letters, " ' ( [


@compiled
def _is_title(flags, line, wanted, end):  # type: ignore[no-untyped-def]
    """Return whether a line is alone before a line with the wanted flag, apart from blank lines."""
    after = line + 1
    while after < end and flags[after] & _IS_BLANK:
        after += 1
    return after < end and (flags[line] & _IS_PLAIN) != 0 and (flags[after] & wanted) != 0


@compiled
def _choose(data, bounds, numbers, marks, because, mark_bounds, rows, starts, ends, kinds, first_copies):  # type: ignore[no-untyped-def]
    found = 0
    for document in range(len(numbers)):
        mark, last_mark = mark_bounds[document], mark_bounds[document + 1]
        if mark == last_mark:
            continue
        begin, stop = bounds[document], bounds[document + 1]
        count = 1
        for position in range(begin, stop):
            count += data[position] == _NEWLINE
        line_starts = np.empty(count + 1, np.int64)
        flags = np.zeros(count, np.uint16)
        copies = np.zeros(count, np.uint64)  # of the marked line
        whole = np.zeros(count, np.uint64)  # of the marked paragraph that begins here, plus one
        lines = 0
        start = begin
        while start < stop:
            left, right, characters, after = _line(data, start, stop)
            line_starts[lines] = start
            if left == right:
                flags[lines] = _IS_BLANK
            else:
                length = 0
                for position in range(left, right):
                    length += (data[position] & 0xC0) != 0x80
                if characters > 0:
                    flags[lines] |= _HAS_LETTERS
                if data[right - 1] == 58:  # a colon, which announces the text after it
                    flags[lines] |= _OPENS
                if data[right - 1] == 46 or data[right - 1] == 33 or data[right - 1] == 63:  # . ! ?
                    flags[lines] |= _ENDS
                if _is_plain(data, start, left, right):
                    if data[right - 1] != 44:  # a verse, a signature or an item may end with a comma
                        flags[lines] |= _IS_PLAIN
                    if length >= PROSE_CHARACTERS:
                        flags[lines] |= _IS_PROSE
                    if length >= LONG_CHARACTERS:
                        flags[lines] |= _IS_LONG
                while mark < last_mark and np.int64((marks[mark] & ((_ONE << _SHIFT) - _ONE)) >> _ONE) == start - begin:
                    if marks[mark] & _ONE:
                        whole[lines] = because[mark] + _ONE
                    else:
                        flags[lines] |= _IS_MARKED
                        copies[lines] = because[mark]
                    mark += 1
            lines += 1
            start = after
        line_starts[lines] = stop
        # 1. in each block between blank lines: the whole block, or lines that are paragraphs of their own
        line = 0
        while line < lines:
            if flags[line] & _IS_BLANK:
                line += 1
                continue
            block_end = line
            while block_end < lines and not flags[block_end] & _IS_BLANK:
                block_end += 1
            prose = long = 0
            for each in range(line, block_end):
                prose += (flags[each] & _IS_PROSE) != 0
                long += (flags[each] & _IS_LONG) != 0
            if 2 * long >= block_end - line:  # a paragraph in each line
                for each in range(line, block_end):
                    if flags[each] & _IS_PLAIN and flags[each] & (_IS_PROSE | _ENDS):
                        flags[each] |= _IS_PROSE | _IS_LONG
            if 2 * prose >= max(1, block_end - line - 1):  # the last line of a paragraph may be short
                for each in range(line, block_end):
                    flags[each] |= _IS_PROSE
            else:
                for each in range(line, block_end):
                    if not flags[each] & _IS_LONG:
                        flags[each] &= ~_IS_PROSE
            if block_end - line > 1 and whole[line]:
                is_text = True
                for each in range(line, block_end):
                    is_text &= (flags[each] & _HAS_LETTERS) != 0  # lines without letters underline a title or frame a table
                    flags[each] |= _GOES
                if not is_text:
                    flags[line] &= ~_IS_PLAIN
            elif block_end - line == 1:
                if flags[line] & _IS_MARKED:
                    flags[line] |= _GOES
            else:
                each = line
                while each < block_end:
                    if not (flags[each] & _IS_MARKED and flags[each] & _IS_PLAIN):
                        each += 1
                        continue
                    run_end = each
                    while run_end < block_end and flags[run_end] & _IS_MARKED and flags[run_end] & _IS_PLAIN:
                        run_end += 1
                    after_long = each == line or flags[each - 1] & _IS_LONG
                    before_long = run_end == block_end or flags[run_end] & _IS_LONG or _is_title(flags, run_end, _IS_LONG, block_end)
                    if after_long and before_long and not (each == line and run_end == block_end):
                        for place in range(each, run_end):
                            flags[place] |= _GOES
                    each = run_end
            line = block_end
        # 2. what goes must stand between prose or ends of the document
        line = 0
        while line < lines:
            if not flags[line] & _GOES:
                line += 1
                continue
            run_end = line
            last = line
            balance = 0  # paragraphs of prose, minus paragraphs that look like lists, tables or code
            while run_end < lines and flags[run_end] & (_GOES | _IS_BLANK):
                if flags[run_end] & _GOES:
                    last = run_end
                    if run_end == 0 or flags[run_end - 1] & _IS_BLANK:
                        if flags[run_end] & _IS_PROSE:
                            balance += 1
                        elif not flags[run_end] & _IS_PLAIN:
                            balance -= 1
                run_end += 1
            before = line - 1
            while before >= 0 and flags[before] & _IS_BLANK:
                before -= 1
            is_before_prose = run_end == lines or flags[run_end] & _IS_PROSE or _is_title(flags, run_end, _IS_PROSE, lines)
            stays = balance < 0
            if balance < PASSAGE_PARAGRAPHS:
                stays |= (before >= 0 and not flags[before] & _IS_PROSE) or not is_before_prose
            stays |= before >= 0 and (flags[before] & _OPENS) != 0
            stays |= run_end < lines and (flags[last] & _OPENS) != 0
            if stays:
                for each in range(line, last + 1):
                    flags[each] &= ~_GOES
            line = run_end
        # 3. a cut for each paragraph and each line, with the blank lines after it if blank lines stand before it, too
        line = 0
        while line < lines:
            if not flags[line] & _GOES:
                line += 1
                continue
            end = line + 1
            kind = LINE
            if whole[line]:
                kind = PARAGRAPH
                while end < lines and not flags[end] & _IS_BLANK:
                    end += 1
            after = end
            if line == 0 or flags[line - 1] & _IS_BLANK:
                while after < lines and flags[after] & _IS_BLANK:
                    after += 1
            rows[found] = document
            starts[found] = line_starts[line] - begin
            ends[found] = line_starts[after] - begin
            kinds[found] = kind
            first_copies[found] = whole[line] - _ONE if whole[line] else copies[line]
            found += 1
            line = after
    return found


def choose_cuts(
    data: Bytes, bounds: Ints, keys: Uints, marks: Uints, because: Uints, mark_bounds: Ints
) -> tuple[Ints, Ints, Ints, np.ndarray, Uints]:
    """Return the cuts among marked units, as the rule of lines.py says.

    Args:
        data: The bytes of all texts.
        bounds: The bounds of each text, (n + 1,).
        keys: The keys of the documents, (n,).
        marks: The places of the marked units, in the order of the texts.
        because: For each of them, the place of the first copy.
        mark_bounds: For each document, where its marks begin, (n + 1,).

    Returns:
        Columns of `Cuts`, where the last one has the place of the first copy.
    """
    most = len(marks)
    rows, starts, ends = (np.empty(most, np.int64) for _ in range(3))
    kinds, first_copies = np.empty(most, np.int8), np.empty(most, np.uint64)
    found = _choose(data, bounds, keys, marks, because, mark_bounds, rows, starts, ends, kinds, first_copies)
    return rows[:found], starts[:found], ends[:found], kinds[:found], first_copies[:found]


@compiled
def _measure(data, starts, ends, characters, visible):  # type: ignore[no-untyped-def]
    for index in range(len(starts)):
        for position in range(starts[index], ends[index]):
            characters[index] += (data[position] & 0xC0) != 0x80
            visible[index] += data[position] > _BLANK


def measure(data: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the number of characters, and of bytes that are not white space, of each data[start:end], (n,) int64 each."""
    characters, visible = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    _measure(data, starts, ends, characters, visible)
    return characters, visible
