"""Parquet files of a cache: lineage (the origin of documents), corpora, and lists of dropped duplicates.

They are written from start to end, one row group at a time, and their rows are read by ordinal (the number of the row). Python opens each
file, so that disk errors name the file. One row group is in memory. The callers define the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from niels_cache_assets.base.processes import delay_signals
from niels_cache_assets.disk.space import name_path
from niels_cache_assets.disk.writers import Files, add_file, sync_and_close
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, Ints
from niels_cache_runtime.format.meta import Meta, read_meta

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Sealable = TypeVar("Sealable", bound=Any)  # a writer with `seal` and `abandon`
TEXT_HASH = "text_hash"  # the column of hashes of canonical texts (dedup/signatures.py)


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return the Arrow schema for {column name: "string", "int64", "double" or "bool"}."""
    import pyarrow as pa

    _finish_importing()
    kinds = {"int64": pa.int64(), "string": pa.string(), "double": pa.float64(), "bool": pa.bool_()}
    return pa.schema([(name, kinds[kind]) for name, kind in columns.items()])


@cache
def _finish_importing() -> None:
    """Make Arrow import pandas now, which takes half a second. Otherwise Arrow imports it in the middle of a build, with its first array.

    During that import, Ctrl-C would be lost: importlib's weakref callbacks and the initialization of extension modules ignore
    KeyboardInterrupt.
    """
    import pyarrow as pa

    with delay_signals():
        pa.array([], pa.int64())


class ParquetWriter:
    """A Parquet file with these columns, compressed with zstd."""

    def __init__(self, root: Path, relative: str, columns: Mapping[str, str], files: Files) -> None:
        import pyarrow.parquet

        self._path, self._relative, self._files = root / relative, relative, files
        self._schema = arrow_schema(columns)
        self._file = open(self._path, "wb")  # noqa: SIM115  (closed by seal or abandon)
        self._writer = pyarrow.parquet.ParquetWriter(self._file, self._schema, compression="zstd")

    def write_group(self, columns: Iterable[Sequence[Any] | np.ndarray]) -> None:
        """Append one row group. `columns` has the values of each column, in the order of the schema."""
        import pyarrow as pa

        arrays = [pa.array(values, kind) for values, kind in zip(columns, self._schema.types, strict=True)]
        self.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def write_table(self, table: pa.Table) -> None:
        """Append a table with the same schema as one row group."""
        with name_path(self._path):
            self._writer.write_table(table)

    def seal(self) -> None:
        """Write the footer, and close the file."""
        with name_path(self._path):
            self._writer.close()
        sync_and_close(self._file)
        add_file(self._path, self._relative, self._files)

    def abandon(self) -> None:
        with suppress(OSError):  # the error of a full disk was already raised
            self._writer.close()
        with suppress(OSError):
            self._file.close()


@contextmanager
def sealing(writer: Sealable) -> Iterator[Sealable]:
    """Seal what a writer writes at the end of the block, or abandon it if the block or the seal fails."""
    try:
        yield writer
        writer.seal()
    except BaseException:
        writer.abandon()
        raise


@contextmanager
def open_table(path: Path, advice: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file of ours.

    Raises:
        NielsCacheError: If the file is missing, or if it cannot be read at any time in the block. The message ends with the advice.
    """
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as parquet:
            yield parquet
    except FileNotFoundError as error:
        raise NielsCacheError(f"{path}: no such file; {advice}") from error
    except (OSError, pyarrow.ArrowException) as error:
        raise NielsCacheError(
            f"{path}: cannot be read: not a readable parquet file (cut short?): {str(error).splitlines()[0]}; {advice}"
        ) from error


class LineageFile(NamedTuple):
    """A Parquet file of lineage.

    Attributes:
        path: The file.
        rows: The number of rows that meta.json lists, or None if the lineage is one file.
    """

    path: Path
    rows: int | None

    @contextmanager
    def open(self, columns: Iterable[str] = ()) -> Iterator[pq.ParquetFile]:
        """Open the file.

        Args:
            columns: Columns that the file must have.

        Raises:
            NielsCacheError: If the file is missing or has a wrong number of rows, or if it cannot be read at any time in the block.
        """
        with open_table(self.path, "rebuild this data set") as parquet:
            found = parquet.metadata.num_rows
            if self.rows not in (None, found):
                raise NielsCacheError(f"{self.path}: has {found:,} rows, but meta.json says {self.rows:,}; rebuild this data set")
            missing = [name for name in columns if name not in parquet.schema_arrow.names]
            if missing:
                raise NielsCacheError(f"{self.path}: has no column {missing[0]!r}; rebuild this data set")
            yield parquet


def lineage_files(path: Path, meta: Meta | None = None) -> list[LineageFile]:
    """Return the Parquet files of a lineage, in order.

    Usually this is `path` itself. If the split was joined from parts, it is one file for each part with documents, in a folder named like
    `path` without its ending. The meta.json next to `path` then lists these files; a file may be missing. Ordinals in such a file start at
    0.

    Args:
        path: The path of the lineage.
        meta: The content of this meta.json. None: it is read.

    Raises:
        NielsCacheError: If the meta.json does not list the parts of such a folder.
    """
    folder, meta_path = path.with_suffix(""), path.with_name(META_NAME)
    if path.exists() or not folder.is_dir():
        return [LineageFile(path, None)]
    split = folder.name.partition("_")[0]
    parts = (read_meta(meta_path) if meta is None else meta).get("parts")
    if not isinstance(parts, list):
        raise NielsCacheError(f"{meta_path}: does not list the parts of {folder.name}; rebuild this data set")
    counted = [(part["name"], part["documents"][split]) for part in parts]
    return [LineageFile(folder / f"{name}{path.suffix}", documents) for name, documents in counted if documents]


class NoTextHashesError(NielsCacheError):
    """A lineage without hashes of texts."""


def read_text_hashes(path: Path, meta: Meta | None = None) -> Iterator[Ints]:
    """Yield the hashes of each row group, in order.

    Args:
        path: See `lineage_files`.
        meta: See `lineage_files`.

    Raises:
        NoTextHashesError: If the lineage has none.
        NielsCacheError: If a file is missing or unreadable.
    """
    for table in lineage_files(path, meta):
        with table.open() as parquet:
            if TEXT_HASH not in parquet.schema_arrow.names:
                raise NoTextHashesError(f"{table.path}: has no hashes of texts")
            for group in range(parquet.num_row_groups):
                yield parquet.read_row_group(group, columns=[TEXT_HASH], use_threads=False).column(0).to_numpy()


def rows_of(parquet: pq.ParquetFile, ordinals: Ints, columns: Sequence[str], *, first: int = 0) -> Iterator[tuple[Ints, pa.Table]]:
    """Yield (ordinals, rows) for each row group that contains some of `ordinals`.

    Args:
        parquet: The open file.
        ordinals: The ordinals, strictly ascending. Those beyond the end of the file are ignored.
        columns: The columns to read.
        first: The ordinal of the first row of the file.
    """
    for group in range(parquet.num_row_groups):
        end = first + parquet.metadata.row_group(group).num_rows
        inside = ordinals[np.searchsorted(ordinals, first) : np.searchsorted(ordinals, end)]
        if len(inside):
            rows = parquet.read_row_group(group, columns=list(columns))
            yield inside, rows if len(inside) == len(rows) else rows.take(inside - first)
        first = end
