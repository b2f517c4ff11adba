"""Where a pass over a source stands, and how one begins there: `FilePass`, the `FilePosition` that readers keep; `RowsPass` of hub rows.

A reader moves its position past a row before it gives the row away, so whenever a source has yielded, its position is where the next row
begins. Files before a place are not opened; inside a file the reader seeks where the stream can (uncompressed ones), else it reads rows
again without looking into them. Cost: two numbers a row. What a row is belongs to the readers; which place is kept, to the builders.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from niels_cache_assets.documents import Place
from niels_cache_assets.sources.reading.compressed import bytes_read
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Split

if TYPE_CHECKING:
    from niels_cache_assets.sources.reading.files import SourceFile
    from niels_cache_assets.sources.types import StreamContext

Row = TypeVar("Row")


class FilePosition:
    """`row`: the next row of a file to be given. `offset`: a byte of its uncompressed content before which lie `offset_row` rows.

    `rows`: how many the file has, where its reader knows.
    """

    __slots__ = ("_stream", "offset", "offset_row", "row", "rows")

    def __init__(self, row: int = 0, offset: int = 0, offset_row: int = 0) -> None:
        self.row, self.offset, self.offset_row = row, offset, offset_row
        self.rows: int | None = None
        self._stream: IO[bytes] | None = None

    def share(self, size: int) -> float | None:
        """How much of the file, of `size` bytes on the disk, was read: 0 to 1; None where that cannot be told."""
        if self.rows is not None:
            return self.row / self.rows if self.rows else 1.0
        if not size or self._stream is None or self._stream.closed:
            return None
        return min(bytes_read(self._stream) / size, 1.0)

    def seek(self, stream: IO[bytes]) -> int:
        """Bring a newly opened stream near the row; returns the index of the row that comes next, which is at most `row`."""
        self._stream = stream
        if self.offset and stream.seekable():
            stream.seek(self.offset)
        else:
            self.offset = self.offset_row = 0
        return self.offset_row


class RowsPass:
    """One pass over the upstream splits of a data set whose rows tell their file and row, from `context.start` on.

    `file`, `row`: the next row to be given; `file` is None at the beginning of a split.
    """

    def __init__(self, context: StreamContext) -> None:
        self._report = context.report
        start = context.start or {"part": 0, "file": None, "row": 0}
        self._part: int = start["part"]
        self.file: str | None = start["file"]
        self.row: int = start["row"]

    def parts(self, parts: Sequence[Part]) -> Iterator[tuple[Part, tuple[str, int] | None]]:
        """The parts that are not read to their end, each with the file and row to begin at; None for its beginning."""
        for number in range(self._part, len(parts)):
            if number > self._part:
                self._part, self.file, self.row = number, None, 0
            yield parts[number], None if self.file is None else (self.file, self.row)

    def report_place(self) -> None:
        """As of FilePass."""
        self._report.place = {"part": self._part, "file": self.file, "row": self.row}


class FilePass:
    """One pass over `files` in order, from `context.start` on.

    `number`: index of the file that is read. `state`: JSON values that the source itself needs at a place.
    """

    def __init__(self, files: Sequence[SourceFile], context: StreamContext) -> None:
        self._files = files
        self._report = context.report
        self.number = 0
        self.position = FilePosition()
        self.state: dict[str, Any] = {}
        self._sizes = [_size(file.url) for file in files]
        self._ends = [*accumulate(self._sizes if any(self._sizes) else [1] * len(files), initial=0)]
        self._ahead = False
        if context.start is not None:
            self._start_at(context.start)

    def _start_at(self, place: Place) -> None:
        self.number = place["number"]
        named = [file.name for file in self._files[self.number : self.number + 1]]
        if named != ([] if place["file"] is None else [place["file"]]):
            raise NielsCacheError(f"{place['file']}: is not where it was among the files when this build began; build again with --force")
        self.position = FilePosition(place["row"], place["offset"], place["offset_row"])
        self.state = dict(place["state"])

    def files(self) -> Iterator[SourceFile]:
        """The files that are not read to their end; `position` is where to begin in each."""
        while self.number < len(self._files):
            yield self._files[self.number]
            self.number += 1
            self.position = FilePosition()

    def replayed(self, head: Iterable[Row], rest: Iterable[Row]) -> Iterator[Row]:
        """`head`, which was read of these files before its use, and the rest. Before the rest no place is reported."""
        self._ahead = True
        yield from head
        self._ahead = False
        yield from rest

    def _share(self) -> float | None:
        """By bytes; of remote files, whose sizes nobody has asked for, by their number."""
        done: float = self._ends[self.number]
        if self.number < len(self._sizes):
            share = self.position.share(self._sizes[self.number])
            if share is None and len(self._sizes) == 1:
                return None
            done += (self._ends[self.number + 1] - done) * (share or 0.0)
        return min(done / self._ends[-1], 1.0) if self._ends[-1] else None

    def report_place(self) -> None:
        """Say where the next batch begins; call it immediately before a batch is yielded."""
        if self._ahead:
            return
        self._report.share = self._share()
        at = self.position
        self._report.place = {
            "file": self._files[self.number].name if self.number < len(self._files) else None,
            "number": self.number,
            "row": at.row,
            "offset": at.offset,
            "offset_row": at.offset_row,
            "state": dict(self.state),
        }


def _size(url: str) -> int:
    try:
        return 0 if "://" in url else os.path.getsize(url)
    except OSError:  # whoever opens it says what is wrong
        return 0


class Part(NamedTuple):
    """One upstream split to read, and the split that its rows keep (None: split by the builder)."""

    upstream: str
    split: Split | None
    files: list[str] | None
