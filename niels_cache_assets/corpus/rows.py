"""Rows of the arrays of a corpus (digests, signatures) by number, wherever in the file they lie.

Read, not mapped: of a map, scattered rows leave the pages around each of them in memory, soon the whole file. Memory: what is returned.
Cost: one system call for each run of neighbours.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.errors import NielsCacheError


class ArrayRows:
    """The (n, width) array of a .npy file, open for reading rows. A context manager: it holds the file, whatever takes its place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115  (closed by __exit__)
        except OSError as error:
            raise NielsCacheError(f"{path}: cannot be read ({error.strerror}); prepare this data set again with force") from error
        try:
            version = np.lib.format.read_magic(self._file)
            read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            (self._rows, self._width), _, self._dtype = read_header(self._file)
        except ValueError as error:
            self._file.close()
            raise self._damaged() from error
        self._first = self._file.tell()

    def __enter__(self) -> ArrayRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def __len__(self) -> int:
        return int(self._rows)

    @property
    def width(self) -> int:
        return int(self._width)

    def __getitem__(self, rows: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """(len(rows), width), in the order of `rows`, (n,) integers. Raises NielsCacheError for a row that the file does not hold."""
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self._rows:
            raise self._damaged()
        out = np.empty((len(rows), self._width), dtype=self._dtype)
        row_bytes = self._width * self._dtype.itemsize
        starts = np.flatnonzero(np.diff(rows.astype(np.int64), prepend=-2) != 1)
        ends = np.append(starts[1:], len(rows))
        for start, end, row in zip(starts.tolist(), ends.tolist(), rows[starts].tolist(), strict=False):  # no start, one end: no rows
            self._read(out[start:end], self._first + row * row_bytes)
        return out

    def _read(self, out: NDArray[Any], place: int) -> None:
        missing = out.reshape(-1).view(np.uint8).data
        while len(missing):
            count = os.preadv(self._file.fileno(), [missing], place)
            if count == 0:
                raise self._damaged()
            place, missing = place + count, missing[count:]

    def _damaged(self) -> NielsCacheError:
        return NielsCacheError(f"{self._path}: is not as the meta.json beside it says; prepare this data set again with force")
