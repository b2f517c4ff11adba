"""A reader of lineage, the origin of documents or examples, in `{split}_documents.parquet` or `{split}_examples.parquet`.

Lineage is looked up by ordinal, the number of the document or example in its split. A look-up reads the footer of the file and the row
groups that contain a requested ordinal, one row group at a time. In our files, each row group has 65,536 rows.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from niels_cache_assets.disk.table_file import lineage_files, rows_of
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta


class Lineage(NamedTuple):
    """The origin of one document or example.

    Attributes:
        ordinal: Its number in the split.
        source_id: Its id at the source.
        file: Its file at the source, relative to the root of the source.
        row: Its row in this file.
        tokens: Its number of tokens.
        kept: The values of the columns in `keep` as a JSON object, or None.
    """

    ordinal: int
    source_id: str
    file: str
    row: int
    tokens: int
    kept: str | None = None


def read_lineage(path: str | Path, ordinals: Iterable[int], meta: Meta | None = None) -> dict[int, Lineage]:
    """Return the lineage of these ordinals, by ordinal.

    Args:
        path: The Parquet file of the split, or the path that stands for the files of a split joined from parts (see `lineage_files`).
        ordinals: The numbers of the documents or examples.
        meta: The content of meta.json (see `lineage_files`).

    Raises:
        NielsCacheError: If the file is missing or unreadable, or lacks a column or one of the ordinals.
    """
    requested = np.unique(np.fromiter(ordinals, dtype=np.int64))
    found: dict[int, Lineage] = {}
    path, rows = Path(path), 0
    for table_file in lineage_files(path, meta):
        path = table_file.path  # for the messages
        with table_file.open(name for name in Lineage._fields if name not in Lineage._field_defaults) as parquet:
            columns = [name for name in Lineage._fields if name in parquet.schema_arrow.names]
            for _, table in rows_of(parquet, requested, columns, first=rows):
                lineages = (Lineage(**{**row, "ordinal": row["ordinal"] + rows}) for row in table.to_pylist())
                found.update((lineage.ordinal, lineage) for lineage in lineages)
            rows += parquet.metadata.num_rows
    if len(requested) and not 0 <= requested[0] <= requested[-1] < rows:
        outside = requested[0] if requested[0] < 0 else requested[-1]
        raise NielsCacheError(f"{path}: has {rows:,} rows, so there is no ordinal {outside:,}; rebuild this data set")
    if found.keys() != set(requested.tolist()):
        raise NielsCacheError(f"{path}: its ordinals do not match its rows; rebuild this data set")
    return found


def files_of_lineage(path: str | Path) -> set[str]:
    """Return the names of all source files in the lineage of a split. This reads one column.

    Args:
        path: See `lineage_files`.

    Raises:
        NielsCacheError: If the file is missing or unreadable.
    """
    import pyarrow.compute

    found: set[str] = set()
    for table_file in lineage_files(Path(path)):
        with table_file.open(["file"]) as parquet:
            for batch in parquet.iter_batches(columns=["file"]):
                found.update(pyarrow.compute.unique(batch.column(0)).to_pylist())
    return found
