"""The rows of packed examples: best-fit-decreasing packing of whole examples, as an index. Tokens are never rewritten.

    lengths --histogram--> shapes of the rows: the length of the example at each place    (the same in every epoch)
    (seed, epoch) --permutation--> the example of that length at the place

The longest example is placed first, each into the row with the least room that still holds it, else into a new row: best fit
decreasing (Johnson 1973; for packing training sequences Krell et al. 2021, Ding et al. 2024), never more than 11/9 of the
fewest rows possible + 4. Examples of one length are placed together, and rows of the same content are counted, not listed. So the
Python loop runs at most once per example, and for real data (far more examples than lengths) much less often. Each round finds the
row by one look into a bitset of rooms. Cutting long examples belongs to `kept`.
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from niels_cache_runtime.cache.checks import as_int, check_positive, check_whole
from niels_cache_runtime.errors import NielsCacheError

PACKING_VERSION = 1  # changes whenever the same lengths, capacity, seed and epoch would give other rows

# The content of a group of rows, the last placed first: (content before, length, how many of that length per row).
_Content = tuple["_Content | None", int, int]


@dataclass(frozen=True, kw_only=True)
class RowShapes:
    """The number of examples in each row, and their lengths.

    row_starts: (rows+1,) int64, row r has the places row_starts[r]:row_starts[r+1], the longest first.
    places_by_length: (n,) int64, every place once, from the shortest to the longest.
    """

    row_starts: NDArray[np.int64]
    places_by_length: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Packed rows. Row r holds `examples[row_starts[r]:row_starts[r+1]]`; row_starts (rows+1,) int64, examples (n,) int64."""

    row_starts: NDArray[np.int64]
    examples: NDArray[np.int64]


def shape_rows(lengths: NDArray[np.int64], *, capacity: int) -> RowShapes:
    """Pack by best fit decreasing over the histogram of `lengths` (n,), in tokens, each from 1 to `capacity`. Every example is whole, in
    one row.

    The shapes depend only on the lengths, so every epoch has equally many rows. Raises NielsCacheError for a length out of range, and for
    an invalid capacity.
    """
    capacity = check_positive("capacity", capacity)
    if len(lengths) and not 1 <= lengths.min() <= lengths.max() <= capacity:
        raise NielsCacheError(f"lengths from {lengths.min()} to {lengths.max()}: must be from 1 to the capacity of a row, {capacity}")
    rows_by_room: defaultdict[int, list[tuple[_Content | None, int]]] = defaultdict(list)
    rooms = 1 << capacity  # bit r: some row has room for r more tokens; a new row always has

    def put(content: _Content | None, rows: int, *, room: int) -> None:
        nonlocal rooms
        rows_by_room[room].append((content, rows))
        rooms |= 1 << room

    histogram = np.bincount(lengths, minlength=1)
    for length in np.flatnonzero(histogram)[::-1].tolist():
        left = int(histogram[length])
        while left:
            fitting = rooms >> length
            room = length + (fitting & -fitting).bit_length() - 1
            # After one is placed, its row has the least fitting room: the next of this length follow it until the row is full.
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

    row_sizes, place_lengths = [], []
    for room in sorted(rows_by_room):
        for content, rows in rows_by_room[room]:
            row = _unrolled(content)
            row_sizes.append(np.full(rows, len(row)))
            place_lengths.append(np.tile(row, rows))
    sizes = np.concatenate([np.zeros(1, dtype=np.int64), *row_sizes])
    by_place = np.concatenate([np.empty(0, dtype=np.int64), *place_lengths])
    return RowShapes(row_starts=np.cumsum(sizes), places_by_length=_sorted_by_length(by_place))


def place_examples(shapes: RowShapes, lengths: NDArray[np.int64], *, seed: int | None, epoch: int) -> Packing:
    """Put the examples of `lengths` (n,), those of `shapes`, at places of their length; (seed, epoch) decide among equal lengths.

    seed None: in the order given, in every epoch. Raises NielsCacheError for an invalid seed or epoch.
    """
    epoch = check_whole("epoch", epoch)
    n = len(lengths)
    order = np.arange(n) if seed is None else torch.randperm(n, generator=_generator(seed, epoch)).numpy()
    examples = np.empty(n, dtype=np.int64)
    examples[shapes.places_by_length] = order[_sorted_by_length(lengths[order])]
    return Packing(row_starts=shapes.row_starts, examples=examples)


def _generator(seed: int, epoch: int) -> torch.Generator:
    if (number := as_int(seed)) is None:
        raise NielsCacheError(f"seed={seed!r}: must be a whole number")
    # torch's CPU generator uses 32 bits of a seed. The hash depends on all bits of both numbers, and neighbours are unrelated.
    digest = hashlib.sha256(f"packing {number} {epoch}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))


def _unrolled(content: _Content | None) -> list[int]:
    """Return the lengths in a row, the longest first."""
    row: list[int] = []
    while content is not None:
        content, length, times = content
        row += [length] * times
    return row[::-1]


def _sorted_by_length(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return a stable argsort. numpy sorts 16-bit integers by radix, ten times as fast as wider ones."""
    narrow = lengths.astype(np.uint16) if lengths.max(initial=0) < 1 << 16 else lengths
    return narrow.argsort(kind="stable")
