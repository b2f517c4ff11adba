"""Compressed files as one stream of bytes (`decompressed`).

The suffix of a file determines its format. A file may hold several streams (members, frames) one after the other, as `cat a.gz b.gz` and
parallel compressors write them. The standard library's readers of bzip2 and xz treat all bytes that do not begin a stream as padding, so
they end silently if the header of a later stream is damaged. In this module, bytes that are neither a stream nor padding are an error
(`DamagedFileError`).

Formats: RFC 1952 (gzip; zero bytes may follow), bzip2, the .xz file format 1.2 (padding: zero bytes in multiples of four), RFC 8878
(Zstandard).

Time and memory are those of the decompressors, and a few megabytes more, even if a small file becomes very large. The header of a zstd
frame or an xz block specifies its window: how much of the earlier content a decompressor keeps in memory, here at most 2 GiB. It uses no
more of this memory than there is content.

This module does not interpret the content of files.
"""

import bz2
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import IO, Any, NamedTuple

from niels_cache_runtime.errors import NielsCacheError

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")


def endings_with_compressions(*endings: str) -> tuple[str, ...]:
    """Return each ending in all its forms: unchanged, and with each suffix of COMPRESSIONS, such as `.jsonl` and `.jsonl.gz`."""
    return tuple(ending + compression for ending in endings for compression in ("", *COMPRESSIONS))


UNSUPPORTED = (".zip", ".7z", ".rar", ".tar", ".tgz", ".tbz2", ".txz", ".z", ".lz", ".lz4", ".lzma", ".lzo", ".br", ".sz", ".snappy")
_COMPRESSED_BLOCK = 1 << 14  # bytes given to a decompressor at a time; damage costs at most the output of one block
_ZSTD_PIECE = 1 << 9
MAX_WINDOW = 1 << 31  # bytes; the window of `zstd --ultra --long=31`
_XZ_MEMORY = MAX_WINDOW + (1 << 24)  # the dictionary, which is the window, and the decompressor's own memory
_BLOCK = 1 << 18


class DamagedFileError(NielsCacheError):
    """Compressed data that cannot be read to the end.

    The message has the offset up to which the uncompressed content was read.
    """


OnDamage = Callable[[DamagedFileError], None]


class IteratorStream(io.RawIOBase):
    """A stream of the bytes that an iterator yields.

    Args:
        chunks: The iterator.
        source: The object from which the iterator reads. Closing the stream closes it.
    """

    def __init__(self, chunks: Iterator[bytes], source: Any) -> None:
        self._chunks, self._source = chunks, source
        self._waiting = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._waiting:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._waiting = memoryview(chunk)
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


class _GzipStream:
    def __init__(self) -> None:
        self._object = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)  # with header and checksum

    @property
    def eof(self) -> bool:
        return self._object.eof

    @property
    def needs_input(self) -> bool:
        return not self._object.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._object.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._object.decompress(self._object.unconsumed_tail + data, max_length)


class _ZstdStream:
    """A Zstandard stream.

    The library decompresses all of its input at once, and the output may be thirty thousand times as large as the input. It therefore gets
    small pieces, and output that is not needed yet waits in this object.
    """

    def __init__(self) -> None:
        import zstandard

        self._object: Any = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj()
        self._input = memoryview(b"")
        self._waiting = memoryview(b"")

    @property
    def eof(self) -> bool:
        return bool(self._object.eof) and not self._waiting

    @property
    def needs_input(self) -> bool:
        return not self._waiting and not self._input

    @property
    def unused_data(self) -> bytes:
        return self._object.unused_data + bytes(self._input)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if data:
            self._input = memoryview(data)
        while self._input and not self._waiting and not self._object.eof:
            piece, self._input = self._input[:_ZSTD_PIECE], self._input[_ZSTD_PIECE:]
            self._waiting = memoryview(self._object.decompress(piece))
        ready, self._waiting = self._waiting[:max_length], self._waiting[max_length:]
        return bytes(ready)


class _Format(NamedTuple):
    start: Callable[[], Any]  # returns an object with the interface of the decompressors of bz2 and lzma
    padding: int  # zero bytes may follow a stream in multiples of this number; 0 means no padding


_FORMATS = {
    ".gz": _Format(_GzipStream, 1),
    ".bz2": _Format(bz2.BZ2Decompressor, 0),
    ".xz": _Format(partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _XZ_MEMORY), 4),
    ".zst": _Format(_ZstdStream, 0),
}


def compression_of(name: str) -> str | None:
    """Return the suffix of COMPRESSIONS at the end of a name, ignoring case, or None.

    Raises:
        NielsCacheError: If the name has the suffix of another compression or of an archive.
    """
    lowered = name.lower()
    suffix = next((suffix for suffix in COMPRESSIONS if lowered.endswith(suffix)), None)
    other = next((other for other in UNSUPPORTED if lowered.removesuffix(suffix or "").endswith(other)), None)
    if other is not None:
        raise NielsCacheError(
            f"{name}: {other} files are not read; unpack it and name its files, which may end in {', '.join(COMPRESSIONS)}"
        )
    return suffix


def decompressed(source: IO[bytes], name: str, on_damage: OnDamage | None = None) -> IO[bytes]:
    """Return `source` as a decompressed stream, or `source` itself if it is not compressed.

    Args:
        source: The compressed stream, which need not be seekable.
        name: The name of the file, whose suffix determines the format.
        on_damage: Called for damaged data, instead of raising. The stream then ends before the damage.

    Raises:
        DamagedFileError: While reading, if data is damaged or its end is missing, or if other bytes follow the last stream.
        NielsCacheError: If the suffix is that of another compression or of an archive.
    """
    suffix = compression_of(name)
    if suffix is None:
        return source
    return io.BufferedReader(_Decompressed(source, _FORMATS[suffix], name, on_damage), _BLOCK)


def bytes_read(stream: IO[bytes]) -> int:
    """Return the position in the compressed file, for a stream that `decompressed` has returned."""
    raw = getattr(stream, "raw", None)
    return raw.source.tell() if isinstance(raw, _Decompressed) else stream.tell()


def is_damaged(stream: IO[bytes]) -> bool:
    """Return whether a stream ends at damage that was passed to `on_damage`."""
    return getattr(getattr(stream, "raw", None), "is_damaged", False)


@lru_cache(maxsize=1)
def decompression_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that decompressors raise for damaged data, except bzip2's plain OSError."""
    import zstandard

    return (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


class _Decompressed(io.RawIOBase):
    """All streams of a file, one after the other."""

    def __init__(self, source: IO[bytes], kind: _Format, name: str, on_damage: OnDamage | None) -> None:
        self.source = source
        self._format = kind
        self._name = name
        self._on_damage = on_damage
        self._stream: Any = None
        self._compressed = b""  # compressed bytes that were read, but not yet given to a stream
        self._streams = self._taken = self.start = 0  # `start` is the offset in the source of the stream that is being read
        self._offset = 0
        self.is_damaged = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.is_damaged:
            return 0
        compressed = b""
        try:
            while self._stream or self._next_stream():
                stream = self._stream
                if stream.needs_input:
                    compressed = self._take()
                    if not compressed:
                        raise EOFError("the file ends in the middle of the data")
                data = stream.decompress(compressed, len(buffer))
                compressed = b""
                if stream.eof:
                    self._compressed = stream.unused_data
                    self._stream = None
                if data:
                    buffer[: len(data)] = data
                    self._offset += len(data)
                    return len(data)
        except Exception as error:
            # a rejected window is not damage; both libraries report it only in the message
            is_damage = isinstance(error, decompression_errors())
            if is_damage and re.search("requires too much memory|Memory usage limit", str(error)):
                raise NielsCacheError(
                    f"{self._name}: cannot be decompressed: its header asks for a window of more than {MAX_WINDOW >> 30} GiB; decompress "
                    "it with the tool that made it, or compress it again with a smaller window"
                ) from error
            plain = type(error) is OSError and error.errno is None  # raised by bz2; errors of disk and network have a number or a subclass
            if not (plain or is_damage):
                raise
            damage = DamagedFileError(
                f"{self._name}: damaged after byte {self._offset} of its uncompressed content ({error}); replace the file"
                " (keep_damaged = true, for kinds that read lines or pages, keeps the data before)"
            )
            if self._on_damage is None:
                raise damage from error
            self.is_damaged = True
            self._on_damage(damage)
        return 0

    def _take(self) -> bytes:
        """Return compressed bytes: the rest after a stream that has ended, or otherwise the next bytes of the file."""
        taken, self._compressed = self._compressed, b""
        if not taken:
            taken = self.source.read(_COMPRESSED_BLOCK)
            self._taken += len(taken)
        return taken

    def _next_stream(self) -> bool:
        """Skip padding and start a stream. Return False at the end of the file."""
        padding = 0
        while compressed := self._take():
            if self._streams and self._format.padding:
                left = compressed.lstrip(b"\0")
                padding += len(compressed) - len(left)
                if not left:
                    continue
                compressed = left
            if padding and padding % self._format.padding:
                raise EOFError("the bytes after a stream are neither padding nor a stream")
            self._compressed = compressed
            self.start = self._taken - len(compressed)
            self._stream = self._format.start()
            self._streams += 1
            return True
        if not self._streams:
            raise EOFError("the file is empty")
        if padding and padding % self._format.padding:
            raise EOFError("its padding is cut")
        return False

    def close(self) -> None:
        self.source.close()
        super().close()
