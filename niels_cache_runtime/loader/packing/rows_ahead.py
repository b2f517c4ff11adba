"""Rows of packed documents that are found before they are read.

A call of numpy costs the same for one batch as for ten, so the rows of several batches are found together. A batch then takes its part.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from niels_cache_runtime.format.layout import Ints
from niels_cache_runtime.loader.source import DocumentStarts


class PackedRows(NamedTuple):
    """What rows are made of.

    Attributes:
        T: Inputs per row.
        rows: The row of each piece.
        starts: The first token of each piece in the stream.
        lengths: The number of tokens of each piece.
        pads: The padding after each piece.
        boundaries: As in SampleRows.
        ignored: As in SampleRows, in ascending order.
        padding: As in SampleRows, in ascending order.
        bos: The places of BOS in the flattened rows, in ascending order.
    """

    T: int
    rows: Ints
    starts: Ints
    lengths: Ints
    pads: Ints
    boundaries: DocumentStarts
    ignored: Ints
    padding: Ints | None
    bos: Ints

    def part(self, first: int, stop: int) -> "PackedRows":
        """Return the rows `first` to `stop` - 1."""

        def own(rows: Ints, scale: int = 1) -> slice:
            return slice(*rows.searchsorted([first * scale, stop * scale]))

        pieces, inside, starts = own(self.rows), own(self.boundaries.rows), self.boundaries
        boundaries = DocumentStarts(
            rows=starts.rows[inside] - first, columns=starts.columns[inside], continues=starts.continues[first:stop]
        )
        ignored = self.ignored[own(self.ignored, self.T)] - first * self.T
        padding = None if self.padding is None else self.padding[own(self.padding, self.T)] - first * self.T
        bos = self.bos[own(self.bos, self.T + 1)] - first * (self.T + 1)
        rows = self.rows[pieces] - first
        return PackedRows(self.T, rows, self.starts[pieces], self.lengths[pieces], self.pads[pieces], boundaries, ignored, padding, bos)


class RowsAhead:
    """Rows that are read soon, in this order.

    Args:
        numbers: (n,), the numbers of the rows.
        find: A function that returns rows, given their numbers.
        count: How many rows to find at a time.
    """

    def __init__(self, numbers: Ints, find: Callable[[Ints], PackedRows], count: int) -> None:
        self._numbers, self._find, self._count = numbers, find, count
        self._next = 0
        self._found: tuple[int, int, PackedRows | None] = 0, 0, None

    def take(self, numbers: Ints) -> PackedRows | None:
        """Return the next rows, or None if these are others."""
        first, stop = self._next, self._next + len(numbers)
        if not np.array_equal(self._numbers[first:stop], numbers):
            return None
        begin, end, rows = self._found  # read and written together, because a tracing thread may be here too
        if rows is None or not begin <= first <= stop <= end:
            begin, end = first, max(stop, first + self._count)
            rows = self._find(self._numbers[begin:end])
            self._found = begin, end, rows
        self._next = stop
        return rows.part(first - begin, stop - begin)
