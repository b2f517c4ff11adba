"""Positions in the files of a source, and passes that begin at a position.

A reader moves its `FilePosition` past a row before it yields the row, so after each yield of a source, the position is the start of the
next row.

Files before a position are not opened. In an uncompressed file, the reader seeks to the position. In other files, it reads the earlier
rows again without parsing them. A row costs two numbers.

Readers define what a row is; builders choose which positions to keep.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import IO, Any, NamedTuple

from niels_cache_assets.sources.reading.compressed import bytes_read
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Split


@dataclass(slots=True, eq=False)
class FilePosition:
    """A position in a file.

    Attributes:
        row: The number of the next row.
        offset: The offset in bytes of a row in the uncompressed content.
        offset_row: The number of rows before `offset`.
        rows: The number of rows in the file, or None if the reader does not know it.
    """

    row: int = 0
    offset: int = 0
    offset_row: int = 0
    rows: int | None = None
    _stream: IO[bytes] | None = field(default=None, init=False)

    def share(self, size: int) -> float | None:
        """Return the share of the file that was read, from 0 to 1, or None if it is unknown.

        Args:
            size: The size on disk in bytes.
        """
        if self.rows is not None:
            return self.row / self.rows if self.rows else 1.0
        if not size or self._stream is None or self._stream.closed:
            return None
        return min(bytes_read(self._stream) / size, 1.0)

    def follow(self, stream: IO[bytes]) -> None:
        """Measure the share by the place in this stream."""
        self._stream = stream

    def seek(self, stream: IO[bytes]) -> int:
        """Move a newly opened stream close to the next row, but not past it.

        Returns:
            The number of the row at which the stream is now.
        """
        self.follow(stream)
        if self.offset and stream.seekable():
            stream.seek(self.offset)
        else:
            self.offset = self.offset_row = 0
        return self.offset_row


class FilePass:
    """One pass over files in order, beginning at `context.start`.

    Files that yield nothing are noted in the report, unless the settings leave out their rows.

    Args:
        files: The files.
        context: The pass.
        splits: The split of each file, or nothing if upstream has no splits. The files of a split follow each other.
        notes_empty: Whether to note files that yield nothing. False if a file is one document, or if documents go on in the next.

    Attributes:
        number: The index of the current file.
        position: The position in the current file.
        next_row: The file, by its index, and the row at which the next batch begins, if more rows were read. None for the current position.
        state: JSON values that the source needs to resume at a position.
    """

    def __init__(
        self, files: Sequence[SourceFile], context: StreamContext, *, splits: Sequence[Split | None] = (), notes_empty: bool = True
    ) -> None:
        self._files, self._splits = files, splits or [None] * len(files)
        self._notes_empty = notes_empty
        self._used: set[str] = set()
        self._drops: dict[str, bool] = {}  # see SourceReport.drops_of_files
        context.report.drops_of_files = self._drops if notes_empty else None
        self._report = context.report
        self.number = 0
        self.position = FilePosition()
        self.next_row: tuple[int, int] | None = None
        self.state: dict[str, Any] = {}
        self._sizes = [_size(file.url) for file in files]
        self._ends = [*accumulate(self._sizes if any(self._sizes) else [1] * len(files), initial=0)]
        if context.start is None:
            return
        start = context.start
        self.number = start["number"]
        named = [file.name for file in self._files[self.number : self.number + 1]]
        if named != ([] if start["file"] is None else [start["file"]]):
            raise NielsCacheError(f"{start['file']}: is no longer in its place among the files of this build; build again with --force")
        self.position = FilePosition(start["row"], start["offset"], start["offset_row"])
        self.state = dict(start["state"])
        if start["gave"]:
            self._used.add(self.name)
        if start["drops_are_asked"] is not None:
            self._drops[self.name] = start["drops_are_asked"]

    @property
    def name(self) -> str:
        return self._files[self.number].name

    def splits(self) -> Iterator[Split | None]:
        """Yield the split of the current file until all files are read. The caller reads the `files` of each split."""
        while self.number < len(self._files):
            self._report.split = self._splits[self.number]
            yield self._report.split

    def of_split(self, number: int) -> list[SourceFile]:
        """Return all files of the same split as the file with this index."""
        return [file for file, split in zip(self._files, self._splits, strict=True) if split == self._splits[number]]

    def files(self) -> Iterator[SourceFile]:
        """Yield the unfinished files of the current split. The caller begins to read each of them at `position`."""
        split = self._splits[self.number : self.number + 1]
        while split and self._splits[self.number : self.number + 1] == split:
            yield self._files[self.number]
            if self._notes_empty:
                if self.name not in self._used and not self._drops.get(self.name, False):
                    self._report.note_file_without_items(self.name)
                self._used.discard(self.name)
                self._drops.pop(self.name, None)
            self.number += 1
            self.position = FilePosition()

    def mark_used(self) -> None:
        """Remember that the current file yielded a document."""
        if self._notes_empty:
            self._used.add(self.name)

    def _share(self) -> float | None:
        """Return the share of the bytes that was read, or of the files if these are remote, because their sizes are not requested."""
        done: float = self._ends[self.number]
        if self.number < len(self._sizes):
            share = self.position.share(self._sizes[self.number])
            if share is None and len(self._sizes) == 1:
                return None
            done += (self._ends[self.number + 1] - done) * (share or 0.0)
        return min(done / self._ends[-1], 1.0) if self._ends[-1] else None

    def report_position(self) -> None:
        """Report where the next batch begins.

        Call this immediately before a batch is yielded.
        """
        self._report.share = self._share()
        number, position = self.number, self.position
        if self.next_row is not None:
            number, position = self.next_row[0], FilePosition(self.next_row[1])
        name = self._files[number].name if number < len(self._files) else ""
        self._report.position = {
            "file": name or None,
            "number": number,
            "row": position.row,
            "offset": position.offset,
            "offset_row": position.offset_row,
            "state": dict(self.state),
            "gave": name in self._used,
            "drops_are_asked": self._drops.get(name),
        }


def _size(url: str) -> int:
    try:
        return 0 if "://" in url else os.path.getsize(url)
    except OSError:  # the error is reported when the file is opened
        return 0


class UpstreamSplit(NamedTuple):
    """An upstream split to read.

    Attributes:
        upstream: The name of the split upstream.
        split: The split that its rows get, or None if the builder splits them.
        files: The globs of the local files to read instead, or None for the hub.
    """

    upstream: str
    split: Split | None
    files: list[str] | None
