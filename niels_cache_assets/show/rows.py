"""Single rows of large parquet tables, by position.

Costs the footers of the files and those row groups that hold a row asked for, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_assets.corpus.prepared import open_documents
from niels_cache_assets.show.lineage import rows_of
from niels_cache_runtime.errors import NielsCacheError


def rows_at(paths: Sequence[Path], positions: Iterable[int], columns: Sequence[str]) -> dict[int, dict[str, Any]]:
    """The rows at these positions, counted over all files in order, by position. Raises NielsCacheError for one that is not there."""
    wanted = np.unique(np.fromiter(positions, dtype=np.int64))
    found: dict[int, dict[str, Any]] = {}
    first = 0
    for path in paths:
        with open_documents(path) as parquet:
            for inside, rows in rows_of(parquet, wanted, columns, first=first):
                found.update(zip(inside.tolist(), rows.to_pylist(), strict=True))
            first += parquet.metadata.num_rows
    missing = [position for position in wanted.tolist() if position not in found]
    if missing:
        raise NielsCacheError(
            f"{paths[0].parent if paths else 'no file'}: has {first:,} rows, none of number {missing[0]:,}; make it again"
        )
    return found


def column(path: Path, name: str) -> np.ndarray:
    """One column of a whole file."""
    with open_documents(path) as parquet:
        values: np.ndarray = parquet.read(columns=[name])[name].to_numpy()
    return values
