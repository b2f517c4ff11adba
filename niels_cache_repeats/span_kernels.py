"""The compiled loops of `spans` over the texts of a corpus, which lie in one array of bytes.

A window is `width` consecutive bytes of one document, and its position is that of its first byte. A gram is shorter, `gram` bytes. Hashes
are polynomials in an odd base modulo 2^64, whose coefficients are random numbers for the 256 bytes. A hash of the next position takes one
multiplication. Hashes only find candidates: `verify` compares bytes. All loops release the GIL, and numba caches the compiled code on disk
(see `niels_cache_assets.dedup.kernels`).
"""

import numpy as np
from numba import njit

from niels_cache_runtime.format.layout import Bools, Bytes, Ints, Uints

MARK_SHIFT = 6  # a mark is a bit for each 64 bytes of text
_NEWLINE, _RETURN = 10, 13
_ONE = np.uint64(1)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = (np.uint64(shift) for shift in (27, 30, 31))

compiled = njit(cache=True, nogil=True)


@njit(cache=True, nogil=True, inline="always")
def _key(value, mask):  # type: ignore[no-untyped-def]
    """Return a hash after the finalizer of splitmix64, and never 0, which means an empty slot."""
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return max(_ONE, (value ^ (value >> _S31)) & mask)


@compiled
def hash_windows(text: Bytes, positions: Ints, width: int, coefficients: Uints, base: np.uint64, mask: np.uint64) -> Uints:
    """Return the keys of the windows at these positions, (n,)."""
    keys = np.empty(len(positions), np.uint64)
    for index in range(len(positions)):
        value = np.uint64(0)
        for place in range(positions[index], positions[index] + width):
            value = value * base + coefficients[text[place]]
        keys[index] = _key(value, mask)
    return keys


@compiled
def scan(
    text: Bytes,
    starts: Ints,
    ends: Ints,
    width: int,
    gram: int,
    coefficients: Uints,
    leaving: Uints,
    base: np.uint64,
    mask: np.uint64,
    marks: Bytes,
    records: Uints,
) -> int:
    """Write a record of each sampled gram; or with marks, of each window whose sampled gram has a mark.

    The sampled gram of a window is the one with the lowest hash of all grams in it, the last of several (a minimizer; Schleimer, Wilkerson,
    Aiken: Winnowing, 2003). It depends only on the bytes of the window, so equal windows have equal sampled grams. Successive windows
    mostly share it. With grams of half a window, about one position in 50 is sampled for windows of 200 bytes.

    Args:
        text: The bytes of all documents.
        starts: First window of each piece of text, (pieces,).
        ends: End of the windows of each piece, (pieces,).
        width: Bytes of a window.
        gram: Bytes of a gram.
        coefficients: Coefficient of each byte, (256,).
        leaving: The same, times base^(gram - 1) and base^(width - 1), for the byte that leaves a gram or a window, (2, 256).
        base: The base of the polynomials.
        mask: Bits of a key of a window.
        marks: Bits, or empty.
        records: Receives key and position, (windows, 2).

    Returns:
        The number of records.
    """
    count, grams = 0, width - gram + 1
    every, windows = np.uint64(0xFFFFFFFFFFFFFFFF), len(marks) > 0
    recent = np.empty(grams, np.uint64)
    for piece in range(len(starts)):
        first, last = starts[piece], ends[piece] + width - gram
        value, wide = np.uint64(0), np.uint64(0)
        for place in range(first, first + gram - 1):
            value = value * base + coefficients[text[place]]
        if windows:
            for place in range(first, first + width - 1):
                wide = wide * base + coefficients[text[place]]
        lowest, lowest_at, written = every, first, -1
        slot = 0
        for position in range(first, last):
            value = value * base + coefficients[text[position + gram - 1]]
            recent[slot] = value
            if value <= lowest:
                lowest, lowest_at = value, position
            elif lowest_at + grams <= position:
                lowest, other = value, slot
                lowest_at = position
                for back in range(1, grams):
                    other = other - 1 if other > 0 else grams - 1
                    if recent[other] < lowest:
                        lowest, lowest_at = recent[other], position - back
            slot = slot + 1 if slot + 1 < grams else 0
            value -= leaving[0, text[position]]
            window = position - grams + 1
            if window < first:
                continue
            if not windows:
                if lowest_at != written:
                    records[count, 0], records[count, 1] = _key(lowest, every), np.uint64(lowest_at)
                    count, written = count + 1, lowest_at
                continue
            wide = wide * base + coefficients[text[window + width - 1]]
            block = lowest_at >> MARK_SHIFT
            if marks[block >> 3] >> (block & 7) & 1:
                records[count, 0], records[count, 1] = _key(wide, mask), np.uint64(window)
                count += 1
            wide -= leaving[1, text[window]]
    return count


@compiled
def divide(records: Uints, shift: int, divided: Uints, ends: Ints) -> None:
    """Order records by the remainder of `records[:, 0] >> shift` by the number of ends. Records with the same remainder stay in order.

    Args:
        records: (n, 2).
        shift: The lowest bit that counts.
        divided: Receives the records, (n, 2).
        ends: Receives the end of each remainder in `divided`, (remainders,), zeros before.
    """
    down, numbers = np.uint64(shift), np.uint64(len(ends))
    for index in range(len(records)):
        ends[(records[index, 0] >> down) % numbers] += 1
    total = 0
    for number in range(len(ends)):
        count = ends[number]
        ends[number] = total
        total += count
    for index in range(len(records)):
        number = (records[index, 0] >> down) % numbers
        divided[ends[number]] = records[index]
        ends[number] += 1


@compiled
def find_earlier(records: Uints, begin: int, keys: Uints, first: Uints, filled: int, pairs: Uints) -> tuple[int, int, int]:
    """Look up the first position with the key of each record, in a hash table that gets the keys which are not in it.

    Args:
        records: Keys and positions, in the order in which copies are kept, (n, 2).
        begin: The first record to look up.
        keys: The keys of the table, 0 in empty slots, (slots,), a power of two.
        first: Their first positions, (slots,).
        filled: The number of keys. The loop ends before half of the slots are not enough.
        pairs: Receives position and first position of records with a key that is there already, (n, 2).

    Returns:
        The number of records that are done, of pairs, and of keys.
    """
    paired = 0
    slots = np.uint64(len(keys) - 1)
    for index in range(begin, len(records)):
        key = records[index, 0]
        slot = key & slots
        while keys[slot] != 0 and keys[slot] != key:
            slot = (slot + _ONE) & slots
        if keys[slot] == key:
            if first[slot] != records[index, 1]:
                pairs[paired, 0], pairs[paired, 1] = records[index, 1], first[slot]
                paired += 1
        elif filled < len(keys) // 2:
            keys[slot], first[slot] = key, records[index, 1]
            filled += 1
        else:
            return index, paired, filled
    return len(records), paired, filled


@compiled
def grow(keys: Uints, first: Uints, length: int) -> tuple[Uints, Uints]:
    """Return a table with more slots, (length,), and the same keys."""
    new_keys, new_first = np.zeros(length, np.uint64), np.empty(length, np.uint64)
    slots = np.uint64(length - 1)
    for index in range(len(keys)):
        if keys[index] != 0:
            slot = keys[index] & slots
            while new_keys[slot] != 0:
                slot = (slot + _ONE) & slots
            new_keys[slot], new_first[slot] = keys[index], first[index]
    return new_keys, new_first


@compiled
def mark(pairs: Uints, marks: Bytes) -> None:
    """Set the marks of all positions."""
    for index in range(len(pairs)):
        for column in range(2):
            block = np.int64(pairs[index, column]) >> MARK_SHIFT
            marks[block >> 3] |= np.uint8(1) << np.uint8(block & 7)


@compiled
def place_pairs(pairs: Uints, begin: int, earlier: Ints) -> None:
    """Write the first position of each pair to the place of its own position in `earlier`."""
    for index in range(len(pairs)):
        earlier[np.int64(pairs[index, 0]) - begin] = np.int64(pairs[index, 1])


@compiled
def verify(text: Bytes, begin: int, earlier: Ints, width: int, runs: Ints, different: Ints) -> tuple[int, int]:
    """Compare the window at each position with its earlier window, and write the runs of windows that cover the same bytes.

    In a run, window and earlier window move together, so each byte is compared once. A run is left out if those before and after it cover
    its bytes, so there are at most two runs in `width` bytes, in whatever text.

    Args:
        text: The bytes of all documents.
        begin: The position of the first element of `earlier`.
        earlier: Position of the earlier window, or -1, (n,).
        width: Bytes of a window.
        runs: Receives the first position, its earlier position and the number of windows of each run, (2 * n // width + 4, 3).
        different: Receives the positions whose windows are different, (n,).

    Returns:
        The number of runs and of different windows.
    """
    count = unequal = 0
    held = False  # whether runs[count] has a run that may be left out
    start, source, length = 0, 0, 0
    for index in range(len(earlier) + 1):
        other = earlier[index] if index < len(earlier) else -1
        position = begin + index
        if length > 0 and other >= 0 and other - source == length:
            if text[position + width - 1] == text[other + width - 1]:
                length += 1
                continue
            different[unequal] = position
            unequal, other = unequal + 1, -1
        if length > 0:
            reached = runs[count - 1, 0] + runs[count - 1, 2] - 1 + width if count > 0 else -1
            if held and start > reached:
                count += 1
                reached = runs[count - 1, 0] + runs[count - 1, 2] - 1 + width
            runs[count, 0], runs[count, 1], runs[count, 2] = start, source, length
            held = start <= reached
            if not held:
                count += 1
            length = 0
        if other >= 0:
            place = 0
            while place < width and text[position + place] == text[other + place]:
                place += 1
            if place == width:
                start, source, length = position, other, 1
            else:
                different[unequal] = position
                unequal += 1
    return count + held, unequal


@compiled
def cut_to_lines(text: Bytes, starts: Ints, ends: Ints, doc_starts: Ints, doc_ends: Ints, width: int, cuts: Ints) -> Bools:
    """Cut each interval inwards to line ends, and return whether at least `width` of its bytes remain.

    The line break after the last line belongs to it, even if the interval ends before it.

    Args:
        text: The bytes of all documents.
        starts: Start of each interval, (n,).
        ends: End of each interval, (n,).
        doc_starts: Start of the document of each interval, (n,).
        doc_ends: End of the document of each interval, (n,).
        width: Bytes of a window.
        cuts: Receives start and end of each cut, (n, 2).
    """
    remains = np.zeros(len(starts), np.bool_)
    for index in range(len(starts)):
        start, end, doc_end = starts[index], ends[index], doc_ends[index]
        if start > doc_starts[index]:
            while start < end and text[start - 1] != _NEWLINE:
                start += 1
        reached = end
        if end < doc_end and text[end - 1] != _NEWLINE:
            if text[end] == _NEWLINE:
                end += 1
            elif end + 1 < doc_end and text[end] == _RETURN and text[end + 1] == _NEWLINE:
                end += 2
            else:
                while end > start and text[end - 1] != _NEWLINE:
                    end -= 1
        cuts[index, 0], cuts[index, 1] = start, end
        remains[index] = min(end, reached) - start >= width
    return remains
