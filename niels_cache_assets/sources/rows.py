"""Rows of JSON Lines and Parquet files, and the choice of their text field.

One place for what both pretrain and SFT sources need from row files; what the rows mean belongs to the sources. Cost: json.loads per line;
Parquet rows come as whole columns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from niels_cache_assets.documents import Document
from niels_cache_assets.sources.compressed import DamagedFile, OnDamage, compression_of
from niels_cache_assets.sources.files import SourceFile, open_bytes, reading, writable
from niels_cache_assets.sources.limits import MAX_DOCUMENT_BYTES, read_lines, refuse_length
from niels_cache_assets.sources.places import FilePass, FilePosition, RowsPass
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

BATCH_DOCUMENTS = 256
BATCH_CHARACTERS = 1 << 20
PARQUET_ROWS = 1024
_SCAN_BLOCK = 1 << 20  # no limit is smaller
PEEK_ROWS = 100  # rows looked at before a field counts as missing everywhere


def batched(documents: Iterable[Document], places: FilePass | RowsPass | None = None) -> Iterator[list[Document]]:
    """Group documents: up to 256, or about a million characters, so that large documents do not pile up.

    `places`: the pass that the documents come of; it reports where each next batch begins.
    """
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if len(batch) >= BATCH_DOCUMENTS or characters >= BATCH_CHARACTERS:
            if places is not None:
                places.report_place()
            yield batch
            batch, characters = [], 0
    if batch:
        if places is not None:
            places.report_place()
        yield batch


def row_id(value: Any, file: str, row: int) -> str:
    """A row's own id as text, or file#row where it has none."""
    return f"{file}#{row}" if value is None else writable(str(value))


def text_problem(text: Any) -> str | None:
    """Why a row's text is no document (the reason under which it is counted), or None."""
    if type(text) is not str:
        return "null_text" if text is None else "non_string_text"
    return "empty" if not text or text.isspace() else None


def json_rows(
    file: SourceFile, position: FilePosition | None = None, *, limit: int = MAX_DOCUMENT_BYTES, on_damage: OnDamage | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line index from 0, object) of a JSON Lines file from `position` on. Blank lines are passed over; what else is no object is an error.

    So is a line of more than `limit` bytes. With `on_damage` a compressed file ends with the last whole line before the damage that it is
    given (`open_bytes`).
    """
    damage: list[DamagedFile] = []

    def remember(error: DamagedFile) -> None:
        damage.append(error)
        on_damage(error)  # type: ignore[misc]

    with reading(file), open_bytes(file, remember if on_damage else None) as stream:
        for index, line in read_lines(stream, position or FilePosition(), file.name, limit):
            if index == 0:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.isspace():
                continue
            if damage and not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line.decode("utf-8", errors="replace"))
            except RecursionError as error:
                raise NielsCacheError(f"{file.name}: line {index + 1} is nested too deep to be read as JSON; take the line out") from error
            except ValueError as error:
                raise NielsCacheError(f"{file.name}: line {index + 1} is not valid JSON ({error}); a line must hold one object") from error
            if not isinstance(row, dict):
                raise NielsCacheError(f"{file.name}: line {index + 1} is a JSON {type(row).__name__}; each line must hold one object")
            yield index, row


def refuse_long_lines(file: SourceFile, limit: int) -> None:
    """Raise NielsCacheError for a local file with a line of more than `limit` bytes, for readers that know no limit.

    Reads it to its end where it is compressed or larger than that; otherwise its size says enough.
    """
    if "://" in file.url or (compression_of(file.name) is None and os.path.getsize(file.url) <= limit):
        return
    number = 1
    length = 0  # of line `number` until here
    with reading(file), open_bytes(file, lambda damage: None) as stream:  # its reader tells of damage
        while block := stream.read(_SCAN_BLOCK):
            head, newline, _ = block.partition(b"\n")
            if length + len(head) > limit:
                refuse_length(f"{file.name}: line {number}", limit)
            length = len(block) - block.rfind(b"\n") - 1 if newline else length + len(block)
            number += block.count(b"\n")


def parquet_columns(file: SourceFile) -> dict[str, Any]:
    """Names and Arrow types of a Parquet file's columns."""
    with open_parquet(file) as parquet:
        return {field.name: field.type for field in parquet.schema_arrow}


@contextmanager
def open_parquet(file: SourceFile) -> Iterator[pq.ParquetFile]:
    """A Parquet file whose errors, also later ones, name the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reading(file), open_bytes(file) as stream:
        try:
            source = stream if "://" in file.url else file.url  # Arrow reads a path faster than a Python stream
            yield pq.ParquetFile(source, pre_buffer=False)  # pre-buffered, memory grows with the file
        except pa.ArrowException as error:
            raise NielsCacheError(f"{file.name}: not a Parquet file, or damaged ({error}); replace the file") from error


def is_string_type(arrow_type: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(arrow_type) or types.is_large_string(arrow_type) or types.is_string_view(arrow_type))


def column_values(column: Any) -> list[Any]:
    """The Python values of an Arrow column; strings by way of NumPy, which is several times faster."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_string(column.type) or types.is_large_string(column.type):
        try:
            return cast(list[Any], column.to_numpy(zero_copy_only=False).tolist())
        except (UnicodeDecodeError, pa.ArrowException):  # invalid UTF-8: files may hold it, Arrow does not check
            return [None if value is None else value.decode("utf-8", errors="replace") for value in column.cast("large_binary").to_pylist()]
    return cast(list[Any], column.to_pylist())


def parquet_batches(
    parquet: pq.ParquetFile, *, batch_rows: int, start: int = 0, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(row of its first, rows) in batches, from row `start` on; row groups before it are not read."""
    group = first = 0
    while group < parquet.num_row_groups and first + (rows := parquet.metadata.row_group(group).num_rows) <= start:
        group, first = group + 1, first + rows
    for batch in parquet.iter_batches(batch_size=batch_rows, row_groups=range(group, parquet.num_row_groups), columns=columns):
        before = max(start - first, 0)
        if before < len(batch):
            yield first + before, batch.slice(before)
        first += len(batch)


def parquet_rows(
    file: SourceFile, position: FilePosition | None = None, *, limit: int = MAX_DOCUMENT_BYTES, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row index from 0, object) of a Parquet file from `position` on; of the asked columns, those that the file has.

    A row that takes more than `limit` bytes in Arrow is an error.
    """
    position = position or FilePosition()
    with open_parquet(file) as parquet:
        names, position.rows = parquet.schema_arrow.names, parquet.metadata.num_rows
        wanted = None if columns is None else [name for name in columns if name in names]
        for first, batch in parquet_batches(parquet, batch_rows=PARQUET_ROWS, start=position.row, columns=wanted):
            if batch.nbytes > limit:  # one of them may be longer by itself
                for row in range(len(batch)):
                    if batch.slice(row, 1).nbytes > limit:
                        refuse_length(f"{file.name}: row {first + row}", limit)
            for row, values in enumerate(batch.to_pylist(), first):
                position.row = row + 1
                yield row, values


def file_rows(
    file: SourceFile,
    position: FilePosition | None = None,
    *,
    limit: int = MAX_DOCUMENT_BYTES,
    on_damage: OnDamage | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a Parquet file (by its suffix; of `columns`, those that it has), else of JSON Lines (whole)."""
    if file.name.lower().endswith(".parquet"):
        return parquet_rows(file, position, limit=limit, columns=columns)
    return json_rows(file, position, limit=limit, on_damage=on_damage)


def choose_text_field(configured: str | None, fields: dict[str, bool], where: str) -> str:
    """The configured field, else `text`, else the first string field. `fields` maps each name to whether it holds strings."""
    names = ", ".join(fields) or "none"
    if configured is not None:
        if configured not in fields:
            raise NielsCacheError(f"{where}: no field {configured!r}; set text_field to one of: {names}")
        return configured
    if "text" in fields:
        return "text"
    for name, is_string in fields.items():
        if is_string:
            return name
    raise NielsCacheError(f"{where}: no text field found; set text_field to one of: {names}")
