"""Writers of lineage, the origins of documents and examples.

A build cannot continue an unfinished Parquet file, because its footer is in the writer's memory until the end. A build therefore also
writes its rows to a second file, the spool, as consecutive Arrow IPC messages. The spool can be truncated after any message. A resumed
build reads the spool, and writes the Parquet file again from the beginning. The row groups of the Parquet file have exactly 65,536 rows, so
the file does not depend on the chunks of the stream. Each row is written twice. One row group is in memory. facts/lineage.py reads lineage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_cache_assets.base.strings import Strings, arrow_array, int64_array
from niels_cache_assets.disk.table_file import ParquetWriter, arrow_schema
from niels_cache_assets.disk.writers import Files, HashedFile
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_PER_GROUP = 65_536


class RowSpool(HashedFile):
    """A file of rows that can be read from the start at any time.

    Args:
        root: The folder of the data set.
        relative: The path of the file, relative to `root`.
        schema: {column name: "string" or "int64"}.
        resume_at: The number of bytes to keep.
    """

    def __init__(self, root: Path, relative: str, schema: Mapping[str, str], *, resume_at: int = 0) -> None:
        super().__init__(root, relative, resume_at=resume_at)
        self._schema = arrow_schema(schema)

    def write(self, columns: Mapping[str, Sequence[Any] | np.ndarray | Strings]) -> pa.RecordBatch:
        """Append rows, and return them as a batch. `columns` has all columns of the schema, with equal lengths; others are left out."""
        import pyarrow as pa

        arrays = [arrow_array(columns[field.name], field.type) for field in self._schema]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self.append(rows.serialize())
        return rows

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the written rows, in the batches in which they were written.

        Raises:
            NielsCacheError: If the file has been damaged in the meantime.
        """
        import pyarrow as pa

        self.file.flush()
        with pa.OSFile(str(self.path)) as file:
            try:
                for message in pa.ipc.MessageReader.open_stream(file):
                    yield pa.ipc.read_record_batch(message, self._schema)
            except (pa.ArrowException, OSError) as error:
                problem = str(error).partition("\n")[0]
                raise NielsCacheError(
                    f"{self.path}: the rows on the disk differ from those that were written ({problem}); build again with --force"
                ) from error


class LineageWriter:
    """A Parquet file of lineage in row groups of 65,536 rows. Its columns are `ordinal` and those of `schema`."""

    def __init__(self, root: Path, relative: str, schema: Mapping[str, str], files: Files) -> None:
        self._schema = arrow_schema(schema)
        self._file = ParquetWriter(root, relative, {"ordinal": "int64", **schema}, files)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self.rows = 0

    def write(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Append rows. `columns` has all columns of the schema, with equal lengths."""
        import pyarrow as pa

        self.write_batch(pa.RecordBatch.from_pydict(dict(columns), schema=self._schema))

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a batch, which must have the columns of `schema`."""
        self._waiting.append(batch)
        self._waiting_rows += len(batch)
        if self._waiting_rows >= _ROWS_PER_GROUP:
            rows = self._table()
            while len(rows) >= _ROWS_PER_GROUP:
                self._write_group(rows.slice(0, _ROWS_PER_GROUP))
                rows = rows.slice(_ROWS_PER_GROUP)
            self._waiting, self._waiting_rows = rows.to_batches(), len(rows)

    def seal(self) -> None:
        """Write the remaining rows and the footer, and close the file."""
        if self._waiting_rows:
            self._write_group(self._table())
        self._file.seal()

    def abandon(self) -> None:
        self._file.abandon()

    def _table(self) -> pa.Table:
        import pyarrow as pa

        return pa.Table.from_batches(self._waiting, self._schema)

    def _write_group(self, rows: pa.Table) -> None:
        ordinals = int64_array(np.arange(self.rows, self.rows + len(rows)))
        # The chunks are combined, because otherwise the pages of the file would depend on the batches.
        self._file.write_table(rows.combine_chunks().add_column(0, "ordinal", ordinals))
        self.rows += len(rows)
