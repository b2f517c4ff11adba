"""Files of a cache, written once from front to back and hashed on the way: token shards, .npy arrays, lineage parquet.

Every writer adds its finished files to one `files` mapping ({relative path: {bytes, sha256}}), which becomes meta.json's.
Memory: one write buffer each.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from io import BufferedWriter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import TOKEN_BYTES, shard_name
from niels_cache_runtime.meta import sha256_file

Files = dict[str, dict[str, Any]]

_NPY_HEADER_BYTES = 128
_ROWS_PER_GROUP = 65_536


def require_shard_bytes(shard_bytes: int) -> None:
    """A shard holds whole uint16 tokens."""
    if shard_bytes < TOKEN_BYTES or shard_bytes % TOKEN_BYTES:
        raise NielsCacheError(f"shard_bytes is {shard_bytes}; it must be an even number of bytes, at least {TOKEN_BYTES}")


class HashedFile:
    """A file written from front to back whose sha256 is known when it is closed, without reading it again."""

    def __init__(self, root: Path, relative: str, files: Files) -> None:
        self._relative, self._files = relative, files
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BufferedWriter = open(path, "wb")  # noqa: SIM115  (closed by seal or abandon)
        self._hash = hashlib.sha256()
        self.bytes = 0

    def write(self, data: memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)

    def seal(self) -> None:
        sync_and_close(self._file)
        self._files[self._relative] = {"bytes": self.bytes, "sha256": self._hash.hexdigest()}

    def abandon(self) -> None:
        self._file.close()


class ShardWriter:
    """One split's token stream, cut into files of exactly `shard_bytes`; the last is shorter. No tokens, no file."""

    def __init__(self, root: Path, folder: str, *, shard_bytes: int, files: Files) -> None:
        (root / folder).mkdir()
        self._root, self._folder, self._shard_bytes, self._files = root, folder, shard_bytes, files
        self._shard: HashedFile | None = None
        self._shards = 0
        self.tokens = 0

    def write(self, tokens: np.ndarray) -> None:
        """Append uint16 tokens (1-D)."""
        data = np.ascontiguousarray(tokens).data.cast("B")
        self.tokens += len(tokens)
        while len(data):
            if self._shard is None:
                self._shard = HashedFile(self._root, f"{self._folder}/{shard_name(self._shards)}", self._files)
                self._shards += 1
            room = self._shard_bytes - self._shard.bytes
            self._shard.write(data[:room])
            data = data[room:]
            if self._shard.bytes == self._shard_bytes:
                self._shard.seal()
                self._shard = None

    def seal(self) -> None:
        if self._shard is not None:
            self._shard.seal()
            self._shard = None

    def abandon(self) -> None:
        if self._shard is not None:
            self._shard.abandon()


class NpyWriter:
    """A .npy file of unknown length: the header is written last, into room kept for it. 1-D, or rows of `width` items."""

    def __init__(self, root: Path, relative: str, dtype: np.dtype, files: Files, *, width: int | None = None) -> None:
        self._path, self._relative, self._dtype, self._files = root / relative, relative, dtype, files
        self._row = () if width is None else (width,)
        self._file: BinaryIO = open(self._path, "wb")  # noqa: SIM115  (closed by seal or abandon)
        self._file.write(bytes(_NPY_HEADER_BYTES))
        self.items = 0

    def write(self, values: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(values, self._dtype).data.cast("B"))
        self.items += len(values)

    def seal(self) -> None:
        self._file.seek(0)
        description = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self.items, *self._row)}
        np.lib.format.write_array_header_1_0(self._file, description)
        assert self._file.tell() == _NPY_HEADER_BYTES  # numpy pads its headers so that a longer shape still fits
        sync_and_close(self._file)
        add_file(self._path, self._relative, self._files)

    def abandon(self) -> None:
        self._file.close()


class LineageWriter:
    """Parquet rows of where each document or example came from: ordinal, then the columns of `schema`, in groups of 65,536."""

    def __init__(self, root: Path, relative: str, schema: Mapping[str, str], files: Files) -> None:
        import pyarrow
        import pyarrow.parquet

        types = {"string": pyarrow.string(), "int64": pyarrow.int64()}
        self._schema = pyarrow.schema([("ordinal", pyarrow.int64()), *((name, types[kind]) for name, kind in schema.items())])
        self._path, self._relative, self._files = root / relative, relative, files
        self._writer = pyarrow.parquet.ParquetWriter(self._path, self._schema, compression="zstd")
        self._columns: dict[str, list[Any]] = {name: [] for name in schema}
        self._waiting = 0
        self.rows = 0

    def write(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append rows, given by column (all of `schema`, equally long)."""
        for name, values in self._columns.items():
            values.extend(columns[name])
        self._waiting += len(next(iter(columns.values())))
        if self._waiting >= _ROWS_PER_GROUP:
            self._flush()

    def seal(self) -> None:
        self._flush()
        self._writer.close()
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())
        add_file(self._path, self._relative, self._files)

    def abandon(self) -> None:
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow

        if self._waiting:
            ordinals = range(self.rows, self.rows + self._waiting)
            self._writer.write_table(pyarrow.table({"ordinal": ordinals, **self._columns}, schema=self._schema))
            self.rows += self._waiting
            self._waiting = 0
            for values in self._columns.values():
                values.clear()


def add_file(path: Path, relative: str, files: Files) -> None:
    """Record a finished file by reading it."""
    files[relative] = {"bytes": path.stat().st_size, "sha256": sha256_file(str(path))}


def sync_and_close(file: BinaryIO) -> None:
    """Put a file's bytes on the disk before anything refers to them."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
