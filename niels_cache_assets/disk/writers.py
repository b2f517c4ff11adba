"""Files of a cache: token shards and .npy arrays, which are written from start to end and hashed at the same time.

Every writer adds its finished files to one mapping `files` ({relative path: {bytes, sha256}}), which goes into meta.json. For an unfinished
file, `flush` brings the written bytes to disk, and the journal records their number. A writer that gets this number (`resume_at`) continues
from there. Memory: one write buffer for each writer. Lineage is written in lineage_files.py.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from niels_cache_assets.disk.space import name_path
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import shard_name
from niels_cache_runtime.format.meta import sha256_file

Files = dict[str, dict[str, Any]]


NPY_HEADER_BYTES = 128


def require_shard_bytes(shard_bytes: int, dtype: np.dtype) -> None:
    """Raise NielsCacheError unless `shard_bytes` is a whole number of tokens of `dtype`."""
    size = dtype.itemsize
    if shard_bytes < size or shard_bytes % size:
        raise NielsCacheError(
            f"shard_bytes is {shard_bytes}; it must be a multiple of {size}, because a {dtype.name} token has {size} bytes"
        )


class HashedFile:
    """A file that grows at its end and is hashed at the same time.

    Args:
        root: The folder of the data set.
        relative: The path of the file, relative to `root`.
        files: Gets the size and the sha256 of the file when it is sealed. None for a file that meta.json does not list.
        resume_at: The number of bytes to keep. The journal has already truncated the file to this size. A resumed file is read again to
            hash it.
        header: The number of bytes at the start that are not hashed, because they are overwritten at the end.

    Attributes:
        bytes: The number of bytes so far.
    """

    def __init__(self, root: Path, relative: str, files: Files | None = None, *, resume_at: int = 0, header: int = 0) -> None:
        self.path, self.relative, self._files = root / relative, relative, files
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Existing bytes stay until they are overwritten: after a kill, the file must still have the bytes of the last record.
        self.file: BinaryIO = open(self.path, "r+b" if self.path.exists() else "wb")  # noqa: SIM115  (closed by seal or abandon)
        self.file.seek(resume_at)
        self.bytes = resume_at
        self._on_disk = resume_at or None  # a new file is not on disk yet
        self.header, self._hash = header, hashlib.sha256()
        if resume_at > header:
            with open(self.path, "rb") as written:
                written.seek(header)
                self._hash = hashlib.file_digest(written, lambda: self._hash)

    @property
    def sha256(self) -> str:
        """The sha256 of the bytes after the header."""
        return self._hash.hexdigest()

    def append(self, data: memoryview | bytes) -> None:
        with name_path(self.path, writes=len(data)):
            self.file.write(data)
        self._hash.update(data[max(0, self.header - self.bytes) :])
        self.bytes += len(data)

    def flush(self) -> None:
        """Flush the written bytes to disk (fsync)."""
        if self._on_disk != self.bytes:
            with name_path(self.path):
                self.file.flush()
                os.fsync(self.file.fileno())
            self._on_disk = self.bytes

    def seal(self) -> None:
        """Flush the file to disk, and close it."""
        sync_and_close(self.file)
        if self._files is not None:
            sha256 = sha256_file(self.path) if self.header else self.sha256
            self._files[self.relative] = {"bytes": self.bytes, "sha256": sha256}

    def abandon(self) -> None:
        with suppress(OSError):  # the error of the write was raised already
            self.file.close()


class ShardWriter:
    """A writer of the token stream of one split, in files of exactly `shard_bytes` bytes. Only the last file may be shorter.

    Without tokens, no file is written.

    Args:
        root: The folder of the data set.
        folder: The folder of the shards, relative to `root`.
        dtype: The dtype of the tokens.
        shard_bytes: The size of a shard in bytes.
        files: Gets the size and the sha256 of each finished shard. When resuming, it must already contain the finished shards.
        resume_at: The number of tokens that are already written.

    Attributes:
        unfinished: The unfinished shard, or an empty list.
    """

    def __init__(self, root: Path, folder: str, *, dtype: np.dtype, shard_bytes: int, files: Files, resume_at: int = 0) -> None:
        (root / folder).mkdir(exist_ok=True)
        self.dtype = dtype
        self._root, self._folder, self._shard_bytes, self._files = root, folder, shard_bytes, files
        self.unfinished: list[HashedFile] = []
        self._shards, unfinished = divmod(resume_at * dtype.itemsize, shard_bytes)
        self.tokens = resume_at
        if unfinished:
            self._begin(resume_at=unfinished)

    @property
    def bytes(self) -> int:
        return self.tokens * self.dtype.itemsize

    def write(self, tokens: np.ndarray) -> None:
        """Append tokens (1-D), which have the writer's dtype."""
        assert tokens.dtype == self.dtype
        data = np.ascontiguousarray(tokens).data.cast("B")
        self.tokens += len(tokens)
        while len(data):
            shard = self.unfinished[0] if self.unfinished else self._begin()
            room = self._shard_bytes - shard.bytes
            shard.append(data[:room])
            data = data[room:]
            if shard.bytes == self._shard_bytes:
                self.seal()

    def seal(self) -> None:
        for shard in self.unfinished:
            shard.seal()
        self.unfinished = []

    def abandon(self) -> None:
        for shard in self.unfinished:
            shard.abandon()

    def _begin(self, *, resume_at: int = 0) -> HashedFile:
        shard = HashedFile(self._root, f"{self._folder}/{shard_name(self._shards)}", self._files, resume_at=resume_at)
        self.unfinished = [shard]
        self._shards += 1
        return shard


class NpyWriter(HashedFile):
    """A .npy file whose length is not known in advance: the header is written last, into reserved space.

    Args:
        root: The folder of the data set.
        relative: The path of the file, relative to `root`.
        dtype: The dtype of the array.
        files: Gets the size and the sha256 of the file.
        width: The number of items in a row of a 2-D array, or None for a 1-D array.
        resume_at: The number of items, or with `width` rows, that are already written.
    """

    def __init__(self, root: Path, relative: str, dtype: np.dtype, files: Files, *, width: int | None = None, resume_at: int = 0) -> None:
        self._dtype = dtype
        self._row = () if width is None else (width,)
        written_bytes = resume_at * dtype.itemsize * (width or 1)
        resume_at_byte = written_bytes + NPY_HEADER_BYTES if written_bytes else 0
        super().__init__(root, relative, files, resume_at=resume_at_byte, header=NPY_HEADER_BYTES)
        if not written_bytes:
            self.append(bytes(NPY_HEADER_BYTES))
        self.items = resume_at

    def write(self, values: np.ndarray) -> None:
        if len(values):  # a memoryview without rows cannot be cast
            self.append(np.ascontiguousarray(values, self._dtype).data.cast("B"))
        self.items += len(values)

    def seal(self) -> None:
        self.file.seek(0)
        description = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self.items, *self._row)}
        np.lib.format.write_array_header_1_0(self.file, description)
        assert self.file.tell() == NPY_HEADER_BYTES  # numpy pads its headers so that a longer shape still fits
        super().seal()


def add_file(path: Path, relative: str, files: Files) -> None:
    """Add the size and the sha256 of a finished file to `files`. This reads the whole file."""
    files[relative] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def add_folder(folder: Path, files: Files) -> None:
    """Add the files in a folder to `files`. This reads all of them."""
    for path in sorted(folder.iterdir()):
        add_file(path, path.name, files)


def sync_and_close(file: BinaryIO) -> None:
    """Flush a file to disk (fsync), and close it. Call this before any record refers to the bytes of the file."""
    with name_path(file.name):
        file.flush()
        os.fsync(file.fileno())
        file.close()
