"""The places of examples, or of pieces of documents, in rows of T+1 tokens: one after the other, then padding.

Padding is a document of its own. Its targets, and the first tokens of examples and pieces, are not to be learned.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from niels_cache_runtime.format.layout import Bools, Ints
from niels_cache_runtime.loader.source import DocumentStarts


@dataclass(frozen=True, kw_only=True)
class RowSegments:
    """The segments of some rows, row by row and from left to right.

    Attributes:
        T: Inputs per row.
        rows: (S,), the row of each segment. Every row has one.
        columns: (S,), its first column.
        lengths: (S,), its tokens.
        widths: (S,), its columns, which are more than its tokens if it has padding of its own.
        filled: (n,), the columns of each row before the padding at its end.
    """

    T: int
    rows: Ints
    columns: Ints
    lengths: Ints
    widths: Ints
    filled: Ints

    @classmethod
    def lay_out(cls, rows: Ints, lengths: Ints, *, n: int, T: int, widths: Ints | None = None) -> Self:
        """Return the segments of `n` rows, given the row and the length of each segment, and its columns if they are more."""
        widths = lengths if widths is None else widths
        before = widths.cumsum() - widths
        firsts = rows.searchsorted(np.arange(n))
        filled = np.add.reduceat(widths, firsts) if n else firsts
        return cls(T=T, rows=rows, columns=before - before[firsts][rows], lengths=lengths, widths=widths, filled=filled)

    @property
    def padded(self) -> Ints:
        """The rows with padding."""
        return np.flatnonzero(self.filled <= self.T)

    @property
    def places(self) -> Ints:
        """The place of the first token of each segment in the flattened rows, (S,)."""
        return self.rows * (self.T + 1) + self.columns

    def spread(self, values: Ints) -> Ints:
        """Return an array (n, T+1) with the value of its segment at every token. Padding has the value of the segment before."""
        ends = np.append(self.columns[1:], 0)  # the start of the next segment, or 0 if that segment is in another row
        widths = np.where(ends > 0, ends, self.T + 1) - self.columns
        return np.repeat(values, widths).reshape(-1, self.T + 1)

    def pads(self) -> Ints:
        """Return how many tokens of padding follow each segment, (S,)."""
        pads = self.widths - self.lengths
        pads[self.rows.searchsorted(self.padded, side="right") - 1] += self.T + 1 - self.filled[self.padded]
        return pads

    def is_padding(self) -> Bools:
        """Return whether each token is padding, (n, T+1)."""
        return np.arange(self.T + 1) >= self.spread(self.columns + self.lengths)

    def targets(self) -> Bools:
        """Return whether each token of the flattened rows is a target if all are to be learned."""
        targets = np.ones(len(self.filled) * (self.T + 1), dtype=np.bool_)
        targets[self.places] = False
        return targets

    def fill(self, array: np.ndarray, value: int) -> None:
        """Set the padding of an array (n, T+1)."""
        for row in self.padded.tolist():
            array[row, self.filled[row] :] = value

    def ignored(self, pads: Ints, bos: Ints) -> Ints:
        """Return the places, in the flattened targets of the rows, of the targets that are not to be learned, in ascending order.

        Args:
            pads: The result of `pads`.
            bos: The segments that begin with BOS, which is no context of the next token.
        """
        inside, padded = np.flatnonzero(self.columns), np.flatnonzero(pads)
        firsts = self.rows * self.T + self.columns
        padding = firsts[padded] + self.lengths[padded] - 1
        places = np.concatenate([firsts[inside] - 1, number_ranges(padding, padding + pads[padded])[1], firsts[bos]])
        return np.sort(places, kind="stable")  # fast, because each part is in ascending order

    def padding(self, pads: Ints) -> Ints:
        """Return the places, in the flattened inputs of the rows, of the inputs that are padding, in ascending order, given `pads`."""
        firsts = self.rows * self.T + self.columns + self.lengths
        ends = np.minimum(firsts + pads, (self.rows + 1) * self.T)  # the last token of a row is no input
        return number_ranges(np.minimum(firsts, ends), ends)[1]

    def boundaries(self, most: int | None = None) -> DocumentStarts:
        """Return where segments and padding begin inside the rows.

        Args:
            most: The most segments of a row. At the end of a row with so many, padding belongs to the last of them. None means no limit.
        """
        padded = self.padded
        if most is not None:
            padded = padded[np.bincount(self.rows, minlength=len(self.filled))[padded] < most]
        rows = np.concatenate([self.rows, padded])
        columns = np.concatenate([self.columns, self.filled[padded]])
        continues = np.ones(len(self.filled), dtype=np.bool_)
        continues[rows[columns == self.T]] = False
        inside = np.flatnonzero((columns > 0) & (columns < self.T))
        if len(padded):
            inside = inside[(rows[inside] * self.T + columns[inside]).argsort(kind="stable")]
        return DocumentStarts(rows=rows[inside], columns=columns[inside], continues=continues)


def number_ranges(firsts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return all numbers from firsts[i] to ends[i] - 1 for each i, one range after the other: the i of each number, and the numbers."""
    counts = ends - firsts
    of_range = np.arange(len(counts)).repeat(counts)
    numbers = np.arange(len(of_range))
    numbers += (firsts - (counts.cumsum() - counts))[of_range]
    return of_range, numbers
