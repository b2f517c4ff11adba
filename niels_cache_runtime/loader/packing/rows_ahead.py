"""Rows of packed documents that are found before they are read.

A call of numpy costs the same for one batch as for ten, so the rows of several batches are found together. A batch then takes its part.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from niels_cache_runtime.format.layout import Bools, Ints
from niels_cache_runtime.loader.source import DocumentStarts


class PackedRows(NamedTuple):
    """What rows are made of.

    Attributes:
        T: Inputs per row.
        rows: The row of each piece.
        starts: The first token of each piece in the stream.
        lengths: The number of tokens of each piece.
        pads: The padding after each piece.
        filled: As in SampleRows.
        boundaries: As in SampleRows.
        ignored: As in SampleRows, in ascending order.
        padding: As in SampleRows, in ascending order.
        bos: The places of BOS in the flattened rows, in ascending order.
        fim: Whether each piece is a part of one that FIM rearranges.
        sentinels: The places of <pre>, <suf> and <mid> of each of them in the flattened rows, in ascending order.
    """

    T: int
    rows: Ints
    starts: Ints
    lengths: Ints
    pads: Ints
    filled: Ints
    boundaries: DocumentStarts
    ignored: Ints
    padding: Ints | None
    bos: Ints
    fim: Bools
    sentinels: Ints

    def positions(self) -> Ints:
        """Return the place in the stream of every token of the flattened rows, -1 for padding."""
        widths = self.lengths + self.pads
        within = np.arange(widths.sum()) - (widths.cumsum() - widths).repeat(widths)
        return np.where(within < self.lengths.repeat(widths), self.starts.repeat(widths) + within, -1)

    def edges(self) -> Ints:
        """Return where each row begins in `rows`, the boundaries, `ignored`, `bos`, `padding` and `sentinels`, and their ends."""
        rows, T = np.arange(len(self.filled) + 1), self.T
        padding = self.ignored if self.padding is None else self.padding
        by_row = (self.rows, 1), (self.boundaries.rows, 1), (self.ignored, T), (self.bos, T + 1), (padding, T), (self.sentinels, T + 1)
        return np.stack([values.searchsorted(rows * scale) for values, scale in by_row], axis=1)

    def part(self, first: int, stop: int, edges: Ints) -> "PackedRows":
        """Return the rows `first` to `stop` - 1, given `edges`."""
        pieces, inside, ignored, bos, padding, sentinels = map(slice, edges[first].tolist(), edges[stop].tolist())
        starts = self.boundaries
        boundaries = DocumentStarts(
            rows=starts.rows[inside] - first, columns=starts.columns[inside], continues=starts.continues[first:stop]
        )
        rows, filled = self.rows[pieces] - first, self.filled[first:stop]
        places, paddings = self.ignored[ignored] - first * self.T, None if self.padding is None else self.padding[padding] - first * self.T
        own = self.starts[pieces], self.lengths[pieces], self.pads[pieces], filled, boundaries, places, paddings
        before = first * (self.T + 1)
        return PackedRows(self.T, rows, *own, self.bos[bos] - before, self.fim[pieces], self.sentinels[sentinels] - before)


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
        self._found: tuple[int, int, PackedRows, Ints] | None = None

    def take(self, numbers: Ints) -> PackedRows | None:
        """Return the next rows, or None if these are others."""
        first, stop = self._next, self._next + len(numbers)
        if not np.array_equal(self._numbers[first:stop], numbers):
            return None
        found = self._found  # read and written together, because a tracing thread may be here too
        if found is None or not found[0] <= first <= stop <= found[1]:
            end = max(stop, first + self._count)
            rows = self._find(self._numbers[first:end])
            self._found = found = first, end, rows, rows.edges()
        begin, _, rows, edges = found
        self._next = stop
        return rows.part(first - begin, stop - begin, edges)
