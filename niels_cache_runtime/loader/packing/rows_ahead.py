"""Rows of packed documents that are found before they are read.

A call of numpy costs the same for one batch as for ten, so the rows of several batches are found together. A batch then takes its part.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from niels_cache_runtime.format.layout import Ints
from niels_cache_runtime.loader.packing.segments import RowSegments
from niels_cache_runtime.loader.source import DocumentStarts


class PackedRows(NamedTuple):
    """What rows are made of.

    Attributes:
        segments: The places of pieces in the rows.
        starts: The first token of each piece in the stream.
        lengths: The number of tokens of each piece.
        pads: The padding after each piece.
        boundaries: As in SampleRows.
        ignored: As in SampleRows, in ascending order.
    """

    segments: RowSegments
    starts: Ints
    lengths: Ints
    pads: Ints
    boundaries: DocumentStarts
    ignored: Ints

    def part(self, first: int, stop: int) -> "PackedRows":
        """Return the rows `first` to `stop` - 1."""

        def own(rows: Ints, scale: int = 1) -> slice:
            return slice(*rows.searchsorted([first * scale, stop * scale]))

        pieces, inside, whole, T = own(self.segments.rows), own(self.boundaries.rows), self.segments, self.segments.T
        rows, continues = self.boundaries.rows[inside] - first, self.boundaries.continues[first:stop]
        return PackedRows(
            RowSegments(T=T, rows=whole.rows[pieces] - first, columns=whole.columns[pieces], filled=whole.filled[first:stop]),
            self.starts[pieces],
            self.lengths[pieces],
            self.pads[pieces],
            DocumentStarts(rows=rows, columns=self.boundaries.columns[inside], continues=continues),
            self.ignored[own(self.ignored, T)] - first * T,
        )


class RowsAhead:
    """Rows that are read soon, in this order.

    Args:
        numbers: (n,), the numbers of the rows.
        find: A function that returns rows, given their numbers.
        count: How many rows to find at a time.
    """

    def __init__(self, numbers: Ints, find: Callable[[Ints], PackedRows], count: int) -> None:
        self._numbers, self._find, self._count = numbers, find, count
        self._next = self._first = self._end = 0

    def take(self, numbers: Ints) -> PackedRows | None:
        """Return the next rows, or None if these are others."""
        first, stop = self._next, self._next + len(numbers)
        if not np.array_equal(self._numbers[first:stop], numbers):
            return None
        if stop > self._end:
            self._first, self._end = first, max(stop, first + self._count)
            self._found = self._find(self._numbers[first : self._end])
        self._next = stop
        return self._found.part(first - self._first, stop - self._first)
