"""Parquet files of a cache, which hold lineage (the origin of documents), corpora, and lists of dropped duplicates. They are written from
start to end, one row group at a time.

Rows are read by ordinal (the number of the row). Python opens each file, so that errors of the disk name the file. One row group is in
memory. The callers define the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.disk.space import naming
from niels_cache_assets.disk.writers import Files, add_file, sync_and_close
from niels_cache_assets.processes import signals_afterwards

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return the Arrow schema for {column name: "string", "int64" or "double"}."""
    import pyarrow as pa

    _finish_importing()
    kinds = {"int64": pa.int64(), "string": pa.string(), "double": pa.float64()}
    return pa.schema([(name, kinds[kind]) for name, kind in columns.items()])


@cache
def _finish_importing() -> None:
    """Make Arrow import pandas now, which takes half a second. Otherwise Arrow imports it in the middle of a build, with its first array.

    During that import, Ctrl-C would be lost: importlib's weakref callbacks and the start of extension modules ignore KeyboardInterrupt.
    """
    import pyarrow as pa

    with signals_afterwards():
        pa.array([], pa.int64())


class TableFile:
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
        """Append a table, which must have the same schema, as one row group."""
        with naming(self._path):
            self._writer.write_table(table)

    def seal(self) -> None:
        with naming(self._path):
            self._writer.close()
        sync_and_close(self._file)
        add_file(self._path, self._relative, self._files)

    def abandon(self) -> None:
        with suppress(OSError):  # the error of a full disk was already raised
            self._writer.close()
        with suppress(OSError):
            self._file.close()


@contextmanager
def closing_table(table: TableFile) -> Iterator[TableFile]:
    """Seal the table at the end of the block, or close it if the block fails."""
    try:
        yield table
    except BaseException:
        table.abandon()
        raise
    table.seal()


def table_files(path: Path) -> list[Path]:
    """Return the Parquet files of a lineage, in order.

    This is `path` itself. If the split was joined from parts, it is one file for each part, in a folder with the name of `path` without its
    ending. Ordinals in such a file begin at 0.
    """
    folder = path.with_suffix("")
    return [path] if path.exists() or not folder.is_dir() else sorted(folder.glob(f"*{path.suffix}"))


def rows_of(
    parquet: pq.ParquetFile, ordinals: NDArray[np.int64], columns: Sequence[str], *, first: int = 0
) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
    """Yield (ordinals, rows) for each row group that contains some of `ordinals`.

    `ordinals` must be ascending. `first`: the ordinal of the first row of the file. Ordinals beyond the end of the file are left out.
    """
    for group in range(parquet.num_row_groups):
        end = first + parquet.metadata.row_group(group).num_rows
        inside = ordinals[np.searchsorted(ordinals, first) : np.searchsorted(ordinals, end)]
        if len(inside):
            yield inside, parquet.read_row_group(group, columns=list(columns)).take(inside - first)
        first = end
