"""Columns of strings in Arrow's form, so that a short text needs no Python object on its way through a build.

A column is either a `Strings`, or an object array of str. Sources yield `Strings` for short texts that Arrow has already read. Both have a
length, slices, masks, positions, iteration and `tolist`. A `Strings` is never changed. It may refer to some rows of a larger Arrow array.
These rows are copied together only when `arrow` or `buffers` is called, or if they are fewer than half, because most steps of a build only
select and reorder rows. A step that needs Python strings calls `tolist`. Arrow releases the interpreter lock while it copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.format.layout import Array, Bytes, Ints

if TYPE_CHECKING:
    import pyarrow as pa

Objects = NDArray[np.object_]


class Strings:
    """A column of n strings, which are valid Unicode.

    Args:
        values: An Arrow array of valid UTF-8, without nulls.
        rows: The positions of the strings in `values`, (n,). With None, the default, all values in their order.
    """

    __slots__ = ("_rows", "values")

    def __init__(self, values: pa.LargeStringArray, rows: Ints | None = None) -> None:
        self.values, self._rows = values, rows

    @classmethod
    def of(cls, strings: Sequence[str]) -> Strings | None:
        """Return a column of Python strings, or None if one of them is not valid Unicode."""
        try:
            contents = [string.encode() for string in strings]  # faster than to encode all of them joined, unless they are ASCII
        except UnicodeEncodeError:
            return None
        offsets = np.zeros(len(contents) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, contents), np.int64, len(contents)), out=offsets[1:])
        return cls.of_buffers(b"".join(contents), offsets)

    @classmethod
    def of_buffers(cls, content: Any, offsets: Ints) -> Strings:
        """Return a column of the strings between the offsets, (n + 1,), in a buffer of valid UTF-8."""
        import pyarrow as pa

        return cls(pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(content)))

    def __reduce__(self) -> tuple[Any, ...]:  # as arrays, which pickle need not copy
        return Strings.of_buffers, self.buffers()

    @property
    def rows(self) -> Ints:
        """The positions of the strings in `values`, (n,)."""
        return np.arange(len(self.values)) if self._rows is None else self._rows

    def __len__(self) -> int:
        return len(self.values if self._rows is None else self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def __getitem__(self, index: int | slice | Sequence[int] | Array) -> Any:
        """Return one string, or the strings that a slice, a mask (bool, (n,)) or an array of positions (int, (m,)) selects."""
        if isinstance(index, int):
            return self[[range(len(self))[index]]].tolist()[0]
        if isinstance(index, slice):
            if self._rows is not None:
                return Strings(self.values, self._rows[index])
            start, stop, step = index.indices(len(self.values))
            if step == 1:
                return Strings(self.values.slice(start, max(stop - start, 0)))
        elif not isinstance(index, np.ndarray):
            index = np.array(index, dtype=np.int64)
        chosen = Strings(self.values, self.rows[index])
        # A few strings must not keep the texts of many others in memory.
        return chosen.copied() if 2 * len(chosen) < min(len(self), len(self.values)) else chosen

    def tolist(self) -> list[str]:
        return self.arrow().to_numpy(zero_copy_only=False).tolist()

    def arrow(self) -> pa.LargeStringArray:
        """Return an Arrow array of exactly these strings."""
        if self._rows is None:
            return self.values
        from pyarrow import compute

        return compute.take(self.values, int64_array(self._rows), boundscheck=False)

    def copied(self) -> Strings:
        """Return the same column as a separate array, if it refers to rows of another one."""
        return self if self._rows is None else Strings(self.arrow())

    def with_line_feeds(self) -> Strings:
        """Return the strings as a separate array, with LF for each CRLF and CR."""
        from pyarrow import compute

        copy = self.copied()
        if not (copy.buffers()[0] == ord("\r")).any():
            return copy
        lines = compute.replace_substring(copy.values, "\r\n", "\n")
        return Strings(compute.replace_substring(lines, "\r", "\n"))

    def buffers(self) -> tuple[Bytes, Ints]:
        """Return the UTF-8 bytes of all strings back to back, and the offset of each string in them, (n + 1,), starting with 0."""
        return buffers_of(self.arrow())

    @classmethod
    def joined(cls, columns: Sequence[Strings]) -> Strings:
        """Return one column with the strings of all `columns`. At least one column is required."""
        import pyarrow as pa

        joined = []
        for _, group in groupby(columns, key=lambda column: id(column.values)):
            same = list(group)
            joined.append(same[0] if len(same) == 1 else cls(same[0].values, np.concatenate([column.rows for column in same])))
        return joined[0] if len(joined) == 1 else cls(pa.concat_arrays([column.arrow() for column in joined]))


def join_columns(columns: Sequence[Strings | Objects]) -> Strings | Objects:
    """Return one column with the values of all `columns`. It is a `Strings` if all of them are."""
    if len(columns) == 1:
        return columns[0]
    if all(isinstance(column, Strings) for column in columns):
        return Strings.joined(cast("Sequence[Strings]", columns))
    return np.concatenate([as_objects(column) for column in columns])


def as_objects(column: Strings | Objects) -> Objects:
    """Return the column as an object array of str, (n,)."""
    return column.arrow().to_numpy(zero_copy_only=False) if isinstance(column, Strings) else column


def buffers_of(strings: pa.Array) -> tuple[Bytes, Ints]:
    """Return the bytes of all strings or binary values of an Arrow array, and their offsets, (n + 1,), starting with 0."""
    from pyarrow import types

    if not len(strings):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, content = strings.buffers()
    width = np.int64 if types.is_large_string(strings.type) or types.is_large_binary(strings.type) else np.int32
    found = np.frombuffer(offsets, width)[strings.offset : strings.offset + len(strings) + 1].astype(np.int64)
    return np.frombuffer(content, np.uint8)[found[0] : found[-1]] if content else np.empty(0, np.uint8), found - found[0]


def int64_array(numbers: Ints) -> pa.Array:
    """Return the numbers as an Arrow array, without a copy. `pa.array` would import pandas, which takes half a second."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))], 0)


def arrow_array(values: Sequence[Any] | Array | Strings, kind: pa.DataType) -> pa.Array:
    """Return a column of values of any kind as an Arrow array of this type."""
    import pyarrow as pa

    if isinstance(values, Strings):
        return values.arrow().cast(kind)
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and kind == pa.int64():
        return int64_array(values)
    return pa.array(values, kind)


def hash_strings(column: Strings) -> Ints:
    """Return the hash of each string, (n,) int64: the 64 bits of XXH3 of its UTF-8 bytes, as a signed number. A string takes 0.1 us."""
    from xxhash import xxh3_64_intdigest

    contents = column.arrow().cast("large_binary").to_numpy(zero_copy_only=False)  # faster than a slice for each string
    return np.fromiter(map(xxh3_64_intdigest, contents), np.uint64, len(column)).view(np.int64)


def repeat_string(string: str, count: int) -> Strings | Objects:
    """Return a column with the same string `count` times."""
    once = Strings.of([string])
    return np.full(count, string, dtype=object) if once is None else once[np.zeros(count, np.int64)]
