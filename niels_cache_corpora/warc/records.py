"""Records of a WARC file, streamed: `read_records`.

Formats: WARC/1.0 and 1.1 (ISO 28500), uncompressed or compressed by gzip or zstd, usually with one member (frame) for each record.
FastWARC parses the records. This module feeds it one member at a time, so that the offset of each record is known, and checks what FastWARC
passes over in silence: records that are cut, or lack their length, or come after other bytes. FastWARC finds the length and the type only
under their usual names, but names are case-insensitive, so it gets them in this form.

One record is in memory, up to the limit. A pass may start at a member. After damage, the next record is found by the first bytes of a
member.
"""

import io
import re
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from niels_cache_assets.base.first_bytes import describe_content, refuse_content
from niels_cache_assets.sources.reading.compressed import DamagedFileError, compression_of, decompressed
from niels_cache_assets.sources.reading.encodings import TextOptions
from niels_cache_assets.sources.reading.files import SourceFile, file_errors, first_bytes, open_raw
from niels_cache_assets.sources.reading.positions import FilePosition

PAGES = frozenset({"response", "resource", "conversion"})  # the types of records that may hold a page

_MAX_HEADER = 1 << 20
_BLOCK = 1 << 16
_BEGIN = b"WARC/"
_END_OF_HEADER = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"^Content-Length[ \t]*:[ \t]*(\d+)", re.IGNORECASE | re.MULTILINE)
_NAMES = {name.lower(): name for name in (b"Content-Length", b"WARC-Type")}
_NAME = re.compile(rb"^(?:content-length|warc-type)(?=[ \t]*:)", re.IGNORECASE | re.MULTILINE)
_LONGEST_BEGIN = 32  # bytes of a first line, with the line feed before it
_PATTERNS = {  # how a record begins in a file, by its compression
    None: re.compile(rb"(?<=\n)WARC/\d\.\d+\r?\n"),
    ".gz": re.compile(rb"\x1f\x8b\x08"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
}


class Record(NamedTuple):
    """A record of a WARC file.

    Attributes:
        row: The number of the record in the file, from 0.
        offset: Its offset in the file, as text. For a record inside a member: `OFFSET+BYTES`, the offset of the member and of the record in
            the content of the member.
        kind: The type of the record, such as `response`.
        headers: The header.
        block: The block of a record in PAGES, or its first bytes, one more than the limit. Empty for other records.
        size: The size of the block in bytes.
    """

    row: int
    offset: str
    kind: str
    headers: Any
    block: bytes
    size: int


def read_records(file: SourceFile, position: FilePosition, options: TextOptions) -> Iterator[Record]:
    """Yield the records from `position` on, in the order of the file.

    Args:
        file: The file.
        position: Where to begin. Before a record is yielded, it moves past the record.
        options: How to read the file. `limit` is the maximum size of a block in bytes. `on_damage` is called for each place with damage,
            and the records after it follow.

    Raises:
        DamagedFileError: If something in the file is no whole record. The message has the offset.
        NielsCacheError: If the file cannot be read.
    """
    row, begin = position.offset_row, position.offset
    found: int | None = begin
    with file_errors(file):
        while found is not None:
            begin, found = found, None
            with open_raw(file) as raw:
                if not raw.seekable():
                    row, begin = 0, 0
                head = first_bytes(raw)
                refuse_content(head, file.name, compression_of(file.name))
                raw.seek(begin) if begin else None
                members = _Members(raw, file.name, begin, options.limit)
                position.follow(members.stream)
                try:
                    for record in members:
                        row += 1
                        if row > position.row:
                            position.row = row
                            if "+" not in record.offset:
                                position.offset, position.offset_row = int(record.offset), row - 1
                            yield record._replace(row=row - 1)
                except (OSError, DamagedFileError) as error:
                    if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):  # of the disk or the network
                        raise
                    kind = "" if row or compression_of(file.name) else describe_content(head, "WARC")
                    damage = DamagedFileError(
                        f"{file.name}: damaged near byte {members.place} (record {row}: {error.__cause__ or error}); replace the file, or "
                        f"set keep_damaged = true to read what is intact{kind}"
                    )
                    if options.on_damage is None:
                        raise damage from error
                    row += 1
                    if row > position.row:
                        position.row = row
                        options.on_damage(damage)
                    found = _find_record(file, members.after) if raw.seekable() else None


class _Members:
    """The records of a file from an offset on. FastWARC reads one member at a time from this object, by `read`.

    A member that does not begin with a record continues the one before it, because some compressors cut a stream into blocks.

    Args:
        raw: The file, at `begin`.
        name: The name of the file.
        begin: The offset.
        limit: The maximum size of a block in bytes.
    """

    def __init__(self, raw: IO[bytes], name: str, begin: int, limit: int) -> None:
        self.stream = decompressed(raw, name)
        self._raw, self._begin, self._limit = raw, begin, limit
        # Unbuffered: what was read before damage is not lost, and all bytes of a call come from one member.
        self._member: Any = None if compression_of(name) is None else self.stream.raw  # type: ignore[attr-defined]
        self._start = 0  # of the member, from `begin`
        self._chunk = b""  # was read, but not yet given to FastWARC
        self._names = _UsualNames()
        self._damage: Exception | None = None  # of the next member
        self._is_open = False  # whether the member has more bytes
        self._at = 0  # of the current record in the member, or of the one that follows the last
        self._last: tuple[int, int] | None = None  # between two records: where the last one begins in the member, and the size of its block

    def __iter__(self) -> Iterator[Record]:
        from fastwarc.warc import ArchiveIterator

        while self._has_next():
            for record in ArchiveIterator(self, parse_http=False, stream_detect=False, max_header_len=_MAX_HEADER):
                self._at, self._last = record.stream_pos, None
                headers, length = record.headers, (record.headers.get("Content-Length") or "").strip()
                if not (headers.status_line or "").startswith("WARC/"):
                    raise OSError("not a WARC record")
                if not length.isdecimal():
                    raise OSError("its header is cut or has no Content-Length")
                kind = str(record.record_type)
                block = record.reader.read(min(int(length), self._limit + 1)) if kind in PAGES else b""
                size = len(block) + record.reader.consume()
                if size != int(length):
                    raise OSError(f"it has {size:,} of {int(length):,} bytes")
                place, self._last = self.place, (self._at, size)
                yield Record(0, place, kind, headers, block, size)

    def _has_next(self) -> bool:
        if self._damage is not None:
            raise self._damage
        self._is_open, self._at, self._last, self._names = True, 0, None, _UsualNames()
        self._chunk = self._chunk or self._next_chunk()
        if self._member is not None:
            self._start = self._member.start
        return bool(self._chunk)

    def _next_chunk(self) -> bytes:
        chunk: bytes = (self.stream if self._member is None else self._member).read(_BLOCK)
        return chunk

    def read(self, size: int = _BLOCK) -> bytes:
        while not self._names.ready and (more := self._read_member()):
            self._names.add(more)
        return self._names.take(size)

    def _read_member(self) -> bytes:
        """Return the next bytes of the member, or none at its end."""
        if not self._chunk and self._is_open:
            try:
                self._chunk = self._next_chunk()
                if self._member is not None and self._member.start != self._start:
                    while len(self._chunk) < len(_BEGIN) and (more := self._next_chunk()):
                        self._chunk += more
                    self._is_open = not self._chunk.startswith(_BEGIN)
            except DamagedFileError as error:
                if self._member.start == self._start:
                    raise
                self._damage, self._is_open = error, False
        if not self._is_open:
            return b""
        given, self._chunk = self._chunk, b""
        return given

    def tell(self) -> int:
        return 0  # FastWARC counts from here

    def seek(self, offset: int, whence: int = 0) -> int:
        raise io.UnsupportedOperation("seek")

    def close(self) -> None:
        """Leave the file open."""

    @property
    def place(self) -> str:
        """The offset of the current record, or of the bytes after the last one."""
        if self._member is None:
            return str(self._begin + self._next_at())
        if self._damage is not None:
            return str(self._begin + self._member.start)
        start, at = self._begin + self._start, self._at if self._last is None else 0
        return f"{start}+{at}" if at else str(start)

    @property
    def after(self) -> int:
        """The offset after which the next record is searched, after damage."""
        if self._member is None:
            return self._begin + self._next_at() + 1
        return self._begin + (self._start if self._damage is None else self._member.start) + 1

    def _next_at(self) -> int:
        """Return where the current record begins in an uncompressed file, or the one that should follow the last, from `begin` on."""
        if self._last is None or not self._raw.seekable():
            return self._at
        at, size = self._last
        self._raw.seek(self._begin + at)
        header = _END_OF_HEADER.search(self._raw.read(_MAX_HEADER))
        return at + size + (header.end() + 4 if header else 0)


class _UsualNames:
    """A stream of records, in which the names that FastWARC looks for have their usual form. A header is held back until it is whole."""

    def __init__(self) -> None:
        self.ready = b""
        self._header = b""  # its bytes so far
        self._block = 0  # bytes to come in the block of a record

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        ready = list[bytes]()
        while data:
            block, data = data[: self._block], data[self._block :]
            self._block -= len(block)
            ready.append(block)
            if not data:
                break
            if not self._header:  # the line ends after a block come before the next member is read
                header = data.lstrip()
                ready.append(data[: len(data) - len(header)])
                data = header
            self._header += data
            end = _END_OF_HEADER.search(self._header)
            if end is None and len(self._header) <= _MAX_HEADER:
                break
            size = end.end() if end else len(self._header)
            whole, data, self._header = self._header[:size], self._header[size:], b""
            length = _LENGTH.search(whole)
            self._block = int(length[1]) if length else 0
            ready.append(_NAME.sub(lambda name: _NAMES[name[0].lower()], whole))
        self.ready += b"".join(ready)

    def take(self, size: int) -> bytes:
        """Return the next bytes, or none at the end of the stream."""
        if not self.ready:
            self.ready, self._header = self._header, b""  # it is cut
        given, self.ready = self.ready[:size], self.ready[size:]
        return given


def _find_record(file: SourceFile, after: int) -> int | None:
    """Return the offset of the first record from `after` on that seems intact, or None."""
    suffix = compression_of(file.name)
    if suffix not in _PATTERNS:
        return None
    with open_raw(file) as raw:
        raw.seek(after)
        data, offset = b"", after
        while block := raw.read(_BLOCK):
            data += block
            for found in _PATTERNS[suffix].finditer(data):
                if suffix is None or _begins_record(file, offset + found.start()):
                    return offset + found.start()
            data, offset = data[-_LONGEST_BEGIN:], offset + max(0, len(data) - _LONGEST_BEGIN)
    return None


def _begins_record(file: SourceFile, begin: int) -> bool:
    with open_raw(file) as raw:
        raw.seek(begin)
        member: Any = decompressed(raw, file.name)
        try:
            return bool(member.read(len(_BEGIN)) == _BEGIN)
        except DamagedFileError:
            return False
