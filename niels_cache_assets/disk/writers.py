"""Files of a cache, written from start to end and hashed at the same time: token shards and .npy arrays (lineage: lineage_files.py).

Every writer adds its finished files to one `files` mapping ({relative path: {bytes, sha256}}) for meta.json. Before that, `checkpoint` puts
the written bytes on the disk, and adds the sizes that the journal records. A writer with such a size (`resume_at`) continues from there.
Memory: one write buffer each.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from niels_cache_assets.disk.space import naming
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_BYTES, shard_name
from niels_cache_runtime.format.meta import sha256_file

Files = dict[str, dict[str, Any]]


class Sizes(dict[str, int]):
    """Bytes on the disk by relative path. `sums`, for unfinished files: an offset, and the sha256 of the bytes from there."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[str, tuple[int, str]] = {}


_NPY_HEADER_BYTES = 128


def require_shard_bytes(shard_bytes: int) -> None:
    """Raise NielsCacheError unless shards hold whole uint16 tokens."""
    if shard_bytes < TOKEN_BYTES or shard_bytes % TOKEN_BYTES:
        raise NielsCacheError(f"shard_bytes is {shard_bytes}; it must be an even number of bytes, at least {TOKEN_BYTES}")


class GrowingFile:
    """A file that grows at its end and is hashed at the same time. `resume_at`: bytes to keep; the journal has cut the file there.

    A file that is resumed is read again to hash it. The first `header` bytes are not hashed, because they are overwritten at the end.
    """

    def __init__(self, root: Path, relative: str, *, resume_at: int = 0, header: int = 0) -> None:
        self.path, self.relative = root / relative, relative
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Existing bytes stay until they are overwritten: after a kill, the file must have the bytes of the last record.
        self.file: BinaryIO = open(self.path, "r+b" if self.path.exists() else "wb")  # noqa: SIM115  (closed by seal or abandon)
        self.file.seek(resume_at)
        self.bytes = resume_at
        self._on_disk: int | None = resume_at or None  # a new file is not on the disk yet
        self._header, self._hash = header, hashlib.sha256()
        if resume_at > header:
            with open(self.path, "rb") as written:
                written.seek(header)
                self._hash = hashlib.file_digest(written, lambda: self._hash)

    @property
    def sha256(self) -> str:
        """The sha256 of the bytes after the header."""
        return self._hash.hexdigest()

    def append(self, data: memoryview | bytes) -> None:
        with naming(self.path, writes=len(data)):
            self.file.write(data)
        self._hash.update(data[max(0, self._header - self.bytes) :])
        self.bytes += len(data)

    def checkpoint(self, sizes: Sizes) -> None:
        """Put the written bytes on the disk, and add their number to `sizes`."""
        if self._on_disk != self.bytes:
            with naming(self.path):
                self.file.flush()
                os.fsync(self.file.fileno())
            self._on_disk = self.bytes
        sizes[self.relative] = self.bytes
        sizes.sums[self.relative] = (self._header, self.sha256)

    def seal(self) -> None:
        sync_and_close(self.file)

    def abandon(self) -> None:
        with suppress(OSError):  # the error of the write was raised already
            self.file.close()


class HashedFile(GrowingFile):
    """A file written from start to end whose sha256 is known when it is closed."""

    def __init__(self, root: Path, relative: str, files: Files, *, resume_at: int = 0) -> None:
        super().__init__(root, relative, resume_at=resume_at)
        self._files = files

    def seal(self) -> None:
        super().seal()
        self._files[self.relative] = {"bytes": self.bytes, "sha256": self.sha256}


class ShardWriter:
    """The token stream of one split, in files of exactly `shard_bytes`; the last is shorter. Without tokens there is no file.

    `resume_at`: tokens that are there already; `files` then has the finished shards.
    """

    def __init__(self, root: Path, folder: str, *, shard_bytes: int, files: Files, resume_at: int = 0) -> None:
        (root / folder).mkdir(exist_ok=True)
        self._root, self._folder, self._shard_bytes, self._files = root, folder, shard_bytes, files
        self._shard: HashedFile | None = None
        self._shards, unfinished = divmod(resume_at * TOKEN_BYTES, shard_bytes)
        self.tokens = resume_at
        if unfinished:
            self._begin(resume_at=unfinished)

    @property
    def bytes(self) -> int:
        return self.tokens * TOKEN_BYTES

    def write(self, tokens: np.ndarray) -> None:
        """Append uint16 tokens (1-D)."""
        data = np.ascontiguousarray(tokens).data.cast("B")
        self.tokens += len(tokens)
        while len(data):
            shard = self._shard or self._begin()
            room = self._shard_bytes - shard.bytes
            shard.append(data[:room])
            data = data[room:]
            if shard.bytes == self._shard_bytes:
                self.seal()

    def checkpoint(self, sizes: Sizes) -> None:
        """Put the bytes of the unfinished shard on the disk, as `GrowingFile.checkpoint` does."""
        if self._shard is not None:
            self._shard.checkpoint(sizes)

    def seal(self) -> None:
        if self._shard is not None:
            self._shard.seal()
            self._shard = None

    def abandon(self) -> None:
        if self._shard is not None:
            self._shard.abandon()

    def _begin(self, *, resume_at: int = 0) -> HashedFile:
        self._shard = HashedFile(self._root, f"{self._folder}/{shard_name(self._shards)}", self._files, resume_at=resume_at)
        self._shards += 1
        return self._shard


class NpyWriter(GrowingFile):
    """A .npy file of unknown length: its header is written last, into reserved space. 1-D, or rows of `width` items.

    `resume_at`: items (rows, with `width`) that are there already.
    """

    def __init__(self, root: Path, relative: str, dtype: np.dtype, files: Files, *, width: int | None = None, resume_at: int = 0) -> None:
        self._dtype, self._files = dtype, files
        self._row = () if width is None else (width,)
        there = resume_at * dtype.itemsize * (width or 1)
        super().__init__(root, relative, resume_at=there + _NPY_HEADER_BYTES if there else 0, header=_NPY_HEADER_BYTES)
        if not there:
            self.append(bytes(_NPY_HEADER_BYTES))
        self.items = resume_at

    def write(self, values: np.ndarray) -> None:
        self.append(np.ascontiguousarray(values, self._dtype).data.cast("B"))
        self.items += len(values)

    def seal(self) -> None:
        self.file.seek(0)
        description = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self.items, *self._row)}
        np.lib.format.write_array_header_1_0(self.file, description)
        assert self.file.tell() == _NPY_HEADER_BYTES  # numpy pads its headers so that a longer shape still fits
        super().seal()
        add_file(self.path, self.relative, self._files)


def add_file(path: Path, relative: str, files: Files) -> None:
    """Record a finished file. This reads the file."""
    files[relative] = {"bytes": path.stat().st_size, "sha256": sha256_file(str(path))}


def sync_and_close(file: BinaryIO) -> None:
    """Put the bytes of a file on the disk, before any record refers to them."""
    with naming(file.name):
        file.flush()
        os.fsync(file.fileno())
        file.close()
