"""A plan of packed rows, made by best-fit-decreasing packing of whole examples. The plan is an index, and tokens are never rewritten.

    lengths --histogram--> shapes of the rows: the length of the example at each place    (the same in every epoch)
    (seed, epoch) --permutation--> the example of that length at the place

Examples are placed from the longest to the shortest. Each example goes into the row with the least room that still holds it, or into a new
row if no row has room. This is best fit decreasing (Johnson 1973; for packing training sequences Krell et al. 2021, Ding et al. 2024). If m
is the smallest possible number of rows, this method needs at most 11/9 * m + 4 rows.

Examples of the same length are placed together, and rows with the same content are counted, not listed. So the Python loop runs at most
once per example. On real data, the loop runs much less often, because there are far more examples than different lengths. Each round of the
loop finds a row with one lookup in a bitset of the room that rows have left. `rows` cuts the long examples.
`documents` uses the groups of equal rows for the documents of a pretrain split.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from niels_cache_runtime.format.layout import Array, Ints

PACKING_VERSION = 1  # must change whenever the same lengths, capacity, seed and epoch would give different rows

# The content of each row in a group, a linked list from the last placed examples to the first:
# (content placed before, length, number of examples of that length per row).
_Content = tuple["_Content | None", int, int]

# By length: the class, first place and number of places of the examples of this length.
Slots = dict[int, list[tuple[int, int, int]]]
Entry = tuple[int, int, int]  # the class of some examples of a row, how many they are, and the first place in the class


class RowGroup(NamedTuple):
    """Rows with the same content.

    Attributes:
        rows: The number of rows.
        content: (length, number of examples of that length) of each row, from the longest to the shortest.
    """

    rows: int
    content: list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class RowShapes:
    """The number of examples in each row, and their lengths.

    Attributes:
        row_starts: (rows + 1,) int64. Row r has the places `row_starts[r]:row_starts[r + 1]`, and its longest example comes first.
        places_by_length: (n,) int64, all places, sorted from the shortest to the longest.
    """

    row_starts: Ints
    places_by_length: Ints


def group_rows(histogram: Ints, *, capacity: int) -> list[RowGroup]:
    """Pack examples into rows by best fit decreasing, and return the groups of equal rows, the fullest rows first.

    Args:
        histogram: The number of examples of each length, from 0 to at most `capacity` tokens. There are none of length 0.
        capacity: The tokens of a row.
    """
    rows_by_room: defaultdict[int, list[tuple[_Content | None, int]]] = defaultdict(list)
    rooms = 1 << capacity  # bit r is set if a row has room for exactly r more tokens; bit `capacity` stands for a new row

    def put(content: _Content | None, rows: int, *, room: int) -> None:
        nonlocal rooms
        rows_by_room[room].append((content, rows))
        rooms |= 1 << room

    for length in np.flatnonzero(histogram)[::-1].tolist():
        left = int(histogram[length])
        while left:
            fitting = rooms >> length
            room = length + (fitting & -fitting).bit_length() - 1
            # Once an example is placed, its row has the least room that fits, so more examples of this length fill this row first.
            per_row = room // length
            content, rows = (None, -(-left // per_row)) if room == capacity else rows_by_room[room].pop()
            filled = min(rows, left // per_row)
            rows -= filled
            left -= filled * per_row
            if filled:
                put((content, length, per_row), filled, room=room - per_row * length)
            if left and rows:
                put((content, length, left), 1, room=room - left * length)
                rows, left = rows - 1, 0
            if rows:
                rows_by_room[room].append((content, rows))
            elif room < capacity and not rows_by_room[room]:
                rooms ^= 1 << room

    groups = []
    for room in sorted(rows_by_room):
        for content, rows in rows_by_room[room]:
            placed: list[tuple[int, int]] = []  # from the last placed examples to the first
            while content is not None:
                content, length, times = content
                placed.append((length, times))
            groups.append(RowGroup(rows, placed[::-1]))
    return groups


def group_rows_of_few(histogram: Ints, *, capacity: int, most: int) -> list[RowGroup]:
    """Pack examples into rows of at most `most` examples, and return the groups of equal rows.

    If best fit decreasing keeps to the limit, its rows are returned. Otherwise, it would first fill rows with a few long examples, and
    short ones would be left, of which even `most` do not fill a row. So a row begins with the longest example that is left, and the next is
    always the longest for which the room suffices if all examples that may follow are as long. If all are longer, it is the longest that
    fits. With log-normal lengths, there are at most 2% more rows than necessary, and with best fit decreasing up to 29%.

    Args:
        histogram: As for `group_rows`.
        capacity: The tokens of a row.
        most: The most examples of a row.
    """
    groups = group_rows(histogram, capacity=capacity)
    if all(sum(times for _, times in content) <= most for _, content in groups):
        return groups
    groups, left = [], histogram.tolist()
    lengths = sum(1 << length for length in np.flatnonzero(histogram).tolist())  # bit n is set if there are examples of n tokens
    while lengths:
        content: dict[int, int] = {}
        unused, room, fitting = lengths, capacity, lengths
        for following in range(most - 1, -1, -1):
            length = fitting.bit_length() - 1
            content[length] = content.get(length, 0) + 1
            if content[length] == left[length]:
                unused ^= 1 << length
            room -= length
            fitting = unused & (2 << room // max(following, 1)) - 1 or unused & (2 << room) - 1
            if not fitting:
                break
        rows = min(left[length] // times for length, times in content.items())
        for length, times in content.items():
            left[length] -= rows * times
            if not left[length]:
                lengths ^= 1 << length
        groups.append(RowGroup(rows, sorted(content.items(), reverse=True)))
    return groups


def assign_slots(groups: Iterable[RowGroup], slots: Slots) -> Iterator[tuple[int, int, list[Entry]]]:
    """Give the examples in groups of equal rows places in their classes. Yield groups of rows with consecutive places.

    Args:
        groups: The groups.
        slots: The places of the classes. They are removed.

    Yields:
        The number of rows, the tokens of each, and the entries of the first of them.
    """
    for rows, content in groups:
        filled = sum(length * times for length, times in content)
        while rows:
            # Rows whose examples of each length are all of one class, or else a single row.
            alike = min(rows, *(max(1, slots[length][-1][2] // times) for length, times in content))
            entries = []
            for length, left in content:
                while left:
                    number, first, count = slots[length].pop()
                    own = min(left, count)
                    entries.append((number, own, first))
                    if count > own * alike:
                        slots[length].append((number, first + own * alike, count - own * alike))
                    left -= own
            yield alike, filled, entries
            rows -= alike


def shape_rows(lengths: Ints, *, capacity: int) -> RowShapes:
    """Pack examples into rows, and return the shapes of the rows.

    Every example stays whole, in one row. The shapes depend only on the lengths, so every epoch has equally many rows.

    Args:
        lengths: (n,) int64, the tokens of each example, from 1 to `capacity`.
        capacity: The tokens of a row.
    """
    row_sizes, place_lengths = [np.zeros(1, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for rows, content in group_rows(np.bincount(lengths, minlength=1), capacity=capacity):
        row = np.repeat(*np.array(content).T)
        row_sizes.append(np.full(rows, len(row)))
        place_lengths.append(np.tile(row, rows))
    by_place = np.concatenate(place_lengths)
    return RowShapes(row_starts=np.cumsum(np.concatenate(row_sizes)), places_by_length=_sorted_by_length(by_place))


def place_examples(shapes: RowShapes, lengths: Ints, *, seed: int | None, epoch: int) -> Ints:
    """Return the index of the example at each place, (n,) int64: each place in `shapes` has a length, and gets an example of this length.

    Row r holds the examples at the places `row_starts[r]:row_starts[r + 1]` of `shapes`. Among examples of equal length, (seed, epoch)
    decide which place each one gets.

    Args:
        shapes: The result of `shape_rows` for `lengths`.
        lengths: (n,), the length of each example in tokens.
        seed: The seed. None keeps the given order in every epoch.
        epoch: The epoch.
    """
    n = len(lengths)
    order = np.arange(n)
    if seed is not None:
        # torch's CPU generator uses 32 bits of a seed. The hash depends on all bits of seed and epoch, and neighbours are unrelated.
        digest = hashlib.sha256(f"packing {seed} {epoch}".encode()).digest()
        order = torch.randperm(n, generator=torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))).numpy()
    examples = np.empty(n, dtype=np.int64)
    examples[shapes.places_by_length] = order[_sorted_by_length(lengths[order])]
    return examples


def _sorted_by_length(lengths: Array) -> Ints:
    """Return a stable argsort. numpy sorts 16-bit integers by radix, ten times as fast as wider integers."""
    narrow = lengths.astype(np.uint16) if lengths.max(initial=0) < 1 << 16 else lengths
    return narrow.argsort(kind="stable")
