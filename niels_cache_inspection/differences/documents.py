"""Documents (or examples) that only one of two builds has. Lineage identifies a document: id at the source, file and row.

1. Skip batches of rows that are equal on both sides. For every remaining row, write a digest to one of several temporary files, the parts.
   The digest of a row determines its part, so that each part stays small.
2. In each part, sort the digests, and count each digest by side and split.

A comparison takes one pass over both lineages, and 34 bytes of temporary files for each row of a batch that differs. One part is in memory.
A part has about two million rows, or more if both builds together have more than a billion rows. A document that occurs twice on side A and
once on side B counts as one difference.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np

from niels_cache_assets.disk.table_file import LineageFile, lineage_files
from niels_cache_assets.facts.lineage import Lineage, read_lineage
from niels_cache_runtime.errors import NotWrittenError
from niels_cache_runtime.format.layout import SPLITS, Array, Bools, Bytes, Ints, Split

if TYPE_CHECKING:
    import pyarrow as pa

Side = Literal["a", "b"]
SIDES: tuple[Side, Side] = ("a", "b")

_KINDS = ("a", "b", "moved", "resized")
_COLUMNS = ("source_id", "file", "row", "tokens")
_ROWS_AT_ONCE = 65_536
_ROWS_OF_A_PART = 2_000_000
_MAX_PARTS = 512  # each part is an open file
_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("tokens", "<i8"), ("ordinal", "<i8"), ("side", "u1"), ("split", "u1")])

LineagePaths = dict[Split, Path]


@dataclass(frozen=True, kw_only=True)
class DocumentDifferences:
    """The documents that differ between builds A and B.

    Attributes:
        rows: Number of rows by side and split.
        counts: Number of documents that only A has (`a`), that only B has (`b`), whose split differs (`moved`), and whose number of tokens
            differs (`resized`).
        first: The split and the lineage of the first few documents of each of these kinds. Documents of kind `b` have their lineage from
            build B; all others have it from build A.
    """

    rows: dict[Side, dict[Split, int]]
    counts: dict[str, int]
    first: dict[str, list[dict[str, Any]]]

    @property
    def differ(self) -> bool:
        return any(self.counts.values())


def compare_documents(a: LineagePaths, b: LineagePaths, *, shown: int) -> DocumentDifferences:
    """Compare the lineage files of each split.

    Args:
        a: Lineage files of build A.
        b: Lineage files of build B.
        shown: How many documents of each kind to list.

    Raises:
        NielsCacheError: If a file is missing or unreadable, or lacks a column.
        NotWrittenError: If the disk of temporary files is full.
    """
    rows = {side: {split: _row_count(path) for split, path in paths.items()} for side, paths in zip(SIDES, (a, b), strict=True)}
    parts = min(_MAX_PARTS, 1 + sum(sum(counts.values()) for counts in rows.values()) // _ROWS_OF_A_PART)
    counts, first = dict.fromkeys(_KINDS, 0), dict[str, list[tuple[int, int]]]((kind, []) for kind in _KINDS)
    with tempfile.TemporaryDirectory(prefix="niels_cache_diff_") as scratch, ExitStack() as stack:
        files = [stack.enter_context(open(Path(scratch) / str(part), "w+b")) for part in range(parts)]
        try:
            for split in SPLITS:
                _spread(a[split], b[split], SPLITS.index(split), files)
            for file in files:
                file.flush()
        except OSError as error:
            raise NotWrittenError(f"{scratch}: cannot be written: {error.strerror}; set TMPDIR to a folder with more space") from error
        for file in files:
            file.seek(0)
            for kind, chosen in _differing(np.frombuffer(file.read(), dtype=_ROW)).items():
                counts[kind] += len(chosen)
                locations = zip(chosen["split"].tolist(), chosen["ordinal"].tolist(), strict=True)
                first[kind] = heapq.nsmallest(shown, chain(first[kind], locations))
    listed = {kind: _listed_documents(b if kind == "b" else a, locations) for kind, locations in first.items()}
    return DocumentDifferences(rows=rows, counts=counts, first=listed)


def _row_count(path: Path) -> int:
    count = 0
    for table in lineage_files(path):
        with table.open(_COLUMNS) as parquet:
            count += int(parquet.metadata.num_rows)
    return count


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield batches of _ROWS_AT_ONCE rows. The last batch may be shorter.

    Two files with equal rows give equal batches, even if their row groups differ.
    """
    import pyarrow

    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in chain.from_iterable(map(_batches_of_file, lineage_files(path))):
        waiting.append(batch.select(list(_COLUMNS)))
        count += len(batch)
        if count >= _ROWS_AT_ONCE:
            table = pyarrow.Table.from_batches(waiting).combine_chunks()
            yield table.slice(0, _ROWS_AT_ONCE)
            waiting, count = table.slice(_ROWS_AT_ONCE).to_batches(), count - _ROWS_AT_ONCE
    if count:
        yield pyarrow.Table.from_batches(waiting)


def _batches_of_file(table: LineageFile) -> Iterator[pa.RecordBatch]:
    with table.open(_COLUMNS) as parquet:
        yield from parquet.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(_COLUMNS))


def _spread(a: Path, b: Path, split: int, files: Sequence[BinaryIO]) -> None:
    """Compare two lineage files batch by batch. If two batches differ, write the digest of each of their rows to the file of its part."""
    first = 0
    for ours, theirs in zip_longest(_batches(a), _batches(b)):
        if ours is None or theirs is None or not ours.equals(theirs):
            for side, table in enumerate((ours, theirs)):
                if table is not None:
                    _write(_digested(table, first, side, split), files)
        first += _ROWS_AT_ONCE


def _digested(table: pa.Table, first: int, side: int, split: int) -> Array:
    rows = np.empty(len(table), dtype=_ROW)
    keys = zip(*(table[name].to_pylist() for name in ("source_id", "file", "row")), strict=True)
    digests = b"".join(blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=16).digest() for key in keys)
    halves = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
    rows["high"], rows["low"] = halves[:, 0], halves[:, 1]
    rows["tokens"] = table["tokens"].to_numpy()
    rows["ordinal"] = np.arange(first, first + len(table))
    rows["side"], rows["split"] = side, split
    return rows


def _write(rows: Array, files: Sequence[BinaryIO]) -> None:
    part_of = rows["high"] % np.uint64(len(files))
    for part in np.unique(part_of).tolist():
        files[part].write(rows[part_of == part].tobytes())


def _differing(rows: Array) -> dict[str, Array]:
    """Return the rows of a part that differ, by kind. A document counts once: for `moved` and `resized`, its row is that of side A."""
    if not len(rows):
        return {}
    rows = rows[np.lexsort((rows["ordinal"], rows["split"], rows["side"], rows["low"], rows["high"]))]
    is_new = np.concatenate([[True], (rows["high"][1:] != rows["high"][:-1]) | (rows["low"][1:] != rows["low"][:-1])])
    starts, number = np.flatnonzero(is_new), np.cumsum(is_new) - 1
    copies, tokens = np.zeros((2, len(starts), 2), dtype=np.int64)
    np.add.at(copies, (number, rows["side"]), 1)
    np.add.at(tokens, (number, rows["side"]), rows["tokens"])
    resized = rows[starts[(copies[:, 0] == copies[:, 1]) & (tokens[:, 0] != tokens[:, 1])]]
    is_alone = ~_paired(number * len(SPLITS) + rows["split"], rows["side"])  # the other side has no such document in this split
    rows, number = rows[is_alone], number[is_alone]
    is_moved, is_of_a = _paired(number, rows["side"]), rows["side"] == 0
    return {"a": rows[~is_moved & is_of_a], "b": rows[~is_moved & ~is_of_a], "moved": rows[is_moved & is_of_a], "resized": resized}


def _paired(groups: Ints, sides: Bytes) -> Bools:
    """Return which rows have a counterpart: the n-th row of a group on one side, and the n-th row of this group on the other, (n,)."""
    keys = groups * (len(groups) + 1) + _earlier_equals(groups * 2 + sides)
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[inverse] == 2


def _earlier_equals(numbers: Ints) -> Ints:
    """Return for each number how many equal numbers come before it, (n,). Equal numbers are neighbours."""
    indices = np.arange(len(numbers))
    is_first = np.diff(numbers, prepend=-1) != 0
    return indices - np.maximum.accumulate(np.where(is_first, indices, 0))


def _listed_documents(paths: LineagePaths, locations: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    found: dict[Split, dict[int, Lineage]] = {
        split: read_lineage(paths[split], [ordinal for number, ordinal in locations if SPLITS[number] == split]) for split in SPLITS
    }
    return [{"split": SPLITS[number], **found[SPLITS[number]][ordinal]._asdict()} for number, ordinal in locations]
