"""Parquet and Arrow files, decoded in batches of limited size.

`ParquetTable.batches` yields all rows, and never many long rows at once. A file of ten kilobytes may hold gigabytes: in a column with a
dictionary, a row is a number, and decoding replaces the number by the whole text.

Three lengths therefore determine how many rows are decoded together: the longest value of each dictionary, the average length of the rows
in a row group, and the length of the preceding rows. The limit is 64 MiB, or one row. It can be exceeded only in a larger row group without
a dictionary, by a run of rows that are far longer than the average. In a row group with a dictionary, the first row is decoded twice.

What the rows mean is up to the sources.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import accumulate, islice
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from niels_cache_assets.base.first_bytes import HEAD_BYTES, describe_content
from niels_cache_assets.sources.reading.compressed import DamagedFileError, OnDamage
from niels_cache_assets.sources.reading.files import SourceFile, file_errors, open_seekable
from niels_cache_assets.sources.reading.positions import FilePosition
from niels_cache_assets.sources.text_column import nested_value
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Ints

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

BATCH_BYTES = 64 << 20
_AVERAGE_BYTES = 1 << 20  # size of a batch with rows of average length, because some rows may be much longer
_WORST_BYTES = 256 << 20  # size of a batch if each row had all bytes of its columns; finding the real maximum takes milliseconds
_ENOUGH_ROWS = 64  # with more rows decoded together, the cost per row hardly falls
_AHEAD_BYTES = 4 << 20  # after a larger batch, nothing is decoded ahead
_BATCHES_AHEAD = 4
_JOINED_BYTES = 1 << 20
_MAX_SEARCHED_ROWS = 16  # rows that are searched for a dictionary, because a row without a value does not show it
_BYTES = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_REPEATING = "DELTA_BYTE_ARRAY"  # an encoding in which a value repeats the beginning of the value before it


Result = TypeVar("Result")


class NumberedRows(NamedTuple):
    """Rows of a file, with their numbers.

    Attributes:
        numbers: (n,) int64, the number of each row in the file.
        rows: The rows.
    """

    numbers: Ints
    rows: pa.RecordBatch

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes


@contextmanager
def open_parquet(file: SourceFile, text_field: str | None = None) -> Iterator[ParquetTable]:
    """Open a Parquet file.

    All errors name the file, including errors that occur later, while rows are read.

    Args:
        file: The file.
        text_field: A nested field (see `nested_value`), which becomes a column of its own if the file has text there, or None.
    """
    with open_for_arrow(file, "Parquet") as source:
        yield ParquetTable(source, file.name, text_field)


@contextmanager
def open_for_arrow(file: SourceFile, format_name: str, on_damage: OnDamage | None = None) -> Iterator[str | IO[bytes]]:
    """Open a file for Arrow's readers, as a path or a stream. All errors in the block name the file and its format.

    Args:
        file: The file.
        format_name: The format, for messages.
        on_damage: Called for a damaged file, instead of raising.
    """
    import pyarrow as pa

    with file_errors(file), open_seekable(file) as stream:
        try:
            # Arrow reads a path faster than a Python stream.
            yield stream if file.is_remote else file.url
        except NielsCacheError:
            raise
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):  # of the disk or network
                raise
            stream.seek(0)
            kind = describe_content(stream.read(HEAD_BYTES), format_name)
            advice = "" if format_name == "Parquet" else ", or set keep_damaged = true"
            damage = DamagedFileError(f"{file.name}: not a file of {format_name}, or damaged ({error}); replace the file{advice}{kind}")
            if on_damage is None:
                raise damage from error
            on_damage(damage)
        except (ValueError, LookupError, ArithmeticError) as error:
            raise NielsCacheError(f"{file.name}: holds a value that cannot be read ({error}); correct the file, or leave it out") from error


def prefetch_batches(batches: Iterator[Any]) -> Generator[Any]:
    """Yield batches of `ParquetTable.batches`, or values computed from them (with `nbytes`), decoded ahead by a thread.

    While the caller uses a batch, the thread prepares up to four batches after it. Decoding does not hold the GIL. With one batch only, the
    caller would often wait until the thread is scheduled. A large batch is not kept in memory next to others: after a batch of more than 4
    MiB, the next one is decoded only when the caller asks for it.
    """
    is_large = False  # whether the batch that was decoded last is large, and in memory

    def decode() -> Any:
        nonlocal is_large
        if is_large:
            return "later"
        batch = next(batches, None)
        is_large = batch is not None and batch.nbytes > _AHEAD_BYTES
        return batch

    with ThreadPoolExecutor(1, thread_name_prefix="decode") as executor:
        waiting = deque([executor.submit(decode)])
        while (batch := waiting.popleft().result()) is not None:
            if batch == "later":
                is_large = False
            else:
                waiting.extend(executor.submit(decode) for _ in range(_BATCHES_AHEAD - len(waiting)))
                yield batch
            del batch
            if not waiting:
                waiting.append(executor.submit(decode))


def map_ahead(batches: Iterator[NumberedRows], function: Callable[[NumberedRows], Result]) -> Generator[Result]:
    """Yield what `function` returns for each of the batches, as `prefetch_batches` does.

    One thread decodes, and another thread calls `function`. A single thread for both would limit a build that encodes fast.
    """
    with closing(prefetch_batches(batches)) as decoded:
        yield from prefetch_batches(map(function, decoded))


def join_batches(batches: Iterable[tuple[int, pa.RecordBatch]], *, most_rows: int, of: int) -> Iterator[NumberedRows]:
    """Yield the small batches of `ParquetTable.batches`, joined into larger ones.

    Every batch costs a fixed time in each step of a build, and row groups are often small. A batch of more than a megabyte is not copied.
    If `batches` fails, the rows before the error come first.

    Args:
        batches: Pairs of the number of the first row, and rows.
        most_rows: The number of rows of a joined batch, which ends earlier at about a megabyte.
        of: The number of rows of a joined batch is a multiple of this number, unless a large batch follows.
    """
    import pyarrow as pa

    numbers: list[Ints] = []
    parts: list[pa.RecordBatch] = []
    rows = nbytes = 0

    def whole() -> NumberedRows:
        return NumberedRows(numbers[0], parts[0]) if len(parts) == 1 else NumberedRows(np.concatenate(numbers), pa.concat_batches(parts))

    try:
        for first, batch in batches:
            if parts and batch.nbytes >= _JOINED_BYTES:
                yield whole()
                numbers, parts, rows, nbytes = [], [], 0, 0
            numbers.append(np.arange(first, first + len(batch)))
            parts.append(batch)
            rows, nbytes = rows + len(batch), nbytes + batch.nbytes
            del batch
            if rows < most_rows and nbytes < _JOINED_BYTES:
                continue
            count = rows if len(parts) == 1 or rows < of else min(rows, most_rows) // of * of
            found, table = whole()
            numbers, parts, rows = ([found[count:]], [table.slice(count)], rows - count) if count < rows else ([], [], 0)
            nbytes = sum(part.nbytes for part in parts)
            yield NumberedRows(found[:count], table.slice(0, count))
            del table
    except Exception:
        if rows:
            yield whole()
        raise
    if rows:
        yield whole()


class ParquetTable:
    """A Parquet file with its rows.

    Args:
        source: A path or a seekable stream.
        name: The name of the file, for messages.
        text_field: See `open_parquet`.

    Attributes:
        rows: The number of rows.
        columns: The Arrow type of each column after decoding, by name.
    """

    def __init__(self, source: str | IO[bytes], name: str, text_field: str | None = None) -> None:
        import pyarrow as pa

        self._source, self._name = source, name
        self._parquet = self._open()
        schema = self._parquet.schema_arrow
        self.rows: int = self._parquet.metadata.num_rows
        self.columns: dict[str, pa.DataType] = {field.name: _plain_type(field.type) for field in schema}
        self._nested = ""
        leaves = map(self._parquet.schema.column, range(len(self._parquet.schema)))
        texts = [re.sub(r"\.list\.\w+", "", leaf.path) for leaf in leaves if leaf.physical_type in _BYTES]
        if text_field and text_field not in self.columns and text_field.replace("[]", "") in texts:
            self._nested = text_field
            self.columns[text_field] = pa.large_string()

    def _open(self, **settings: Any) -> pq.ParquetFile:
        import pyarrow.parquet as pq

        return pq.ParquetFile(self._source, pre_buffer=False, **settings)  # with pre-buffering, memory grows with the file

    @property
    def first_rows(self) -> list[int]:
        """The number of the first row of each row group that has rows."""
        counts = [self._parquet.metadata.row_group(group).num_rows for group in range(self._parquet.num_row_groups)]
        return [first for first, count in zip(accumulate(counts, initial=0), counts, strict=False) if count]

    def uncompressed_bytes(self, column: str) -> int:
        """Return an estimate of the bytes in a column of strings, before compression. It is too small for dictionaries and nulls."""
        groups = map(self._parquet.metadata.row_group, range(self._parquet.num_row_groups))
        chunks = (group.column(index) for group in groups for index in range(group.num_columns))
        sizes = (chunk.total_uncompressed_size - 4 * chunk.num_values for chunk in chunks if chunk.path_in_schema == column)
        return sum(max(0, size) for size in sizes)

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        most_rows: int,
        start: int = 0,
        group_filter: Callable[[Any], bool] | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (number of the first row, rows) in batches.

        A batch never crosses a row group. Row groups before `start` are not read.

        Args:
            columns: The columns to read. None reads all.
            most_rows: The maximum number of rows of a batch.
            start: The number of the first row to yield.
            group_filter: Returns whether to read a row group, from its `pyarrow.parquet.RowGroupMetaData`. None reads all row groups.

        Raises:
            NielsCacheError: If the file has two columns with the same requested name.
        """
        import pyarrow as pa

        requested = self.columns if columns is None else columns
        outer = self._nested.partition(".")[0].rstrip("[]")
        chosen = list(dict.fromkeys(outer if name == self._nested else name for name in requested))
        if repeated := [".".join(path) for path in _repeated_names(self._parquet.schema_arrow) if path[0] in chosen]:
            raise NielsCacheError(
                f"{self._name}: has more than one column named {' and '.join(map(repr, repeated))}; keep only one of them"
            )
        first, rows_at_once = 0, 1  # start with one row, in case the sizes in the file are wrong
        for group in range(self._parquet.num_row_groups):
            metadata = self._parquet.metadata.row_group(group)
            end = first + metadata.num_rows
            if end > start and (group_filter is None or group_filter(metadata)):
                most = self._rows_together(group, chosen, most_rows)
                rows_at_once = min(rows_at_once, most)
                row = first
                for batch in self._parquet.iter_batches(rows_at_once, row_groups=[group], columns=chosen, use_threads=False):
                    decoded = _decoded(batch)
                    rows_at_once = max(1, min(2 * rows_at_once, most, BATCH_BYTES * len(decoded) // max(decoded.nbytes, 1)))
                    self._parquet.reader.set_batch_size(rows_at_once)  # applies to the next batches
                    begin, row = max(row, start), row + len(decoded)
                    if begin < row:
                        found = decoded.slice(len(decoded) - (row - begin))
                        if self._nested in requested:
                            texts = [nested_value(values, self._nested) for values in found.select([outer]).to_pylist()]
                            found = found.append_column(self._nested, pa.array(texts, pa.large_string()))
                        yield begin, found
            first = end

    def _rows_together(self, group: int, columns: Sequence[str], most: int) -> int:
        """Return how many rows of a row group may be decoded at once, from the sizes of its columns in the file."""
        metadata = self._parquet.metadata.row_group(group)
        rows = max(metadata.num_rows, 1)
        most = min(most, rows)
        size = fixed = 0  # bytes of all columns; maximum bytes per row of columns of which only the size is known
        dictionaries: dict[str, tuple[int, int]] = {}  # for columns with dictionaries: (values per row, maximum bytes per row)
        for chunk in map(metadata.column, range(metadata.num_columns)):
            path = chunk.path_in_schema
            if path not in columns and path.partition(".")[0] not in columns:
                continue
            size += chunk.total_uncompressed_size
            values = -(-chunk.num_values // rows)
            bound = values * chunk.total_uncompressed_size  # no value is longer than the whole column
            if chunk.physical_type not in _BYTES:
                continue
            has_dictionary = any("DICTIONARY" in encoding for encoding in chunk.encodings)
            if _REPEATING in chunk.encodings or (has_dictionary and chunk.physical_type != _BYTES[0]):
                fixed += bound
            elif has_dictionary:
                dictionaries[path] = values, bound
        row_bytes = fixed + sum(bound for _, bound in dictionaries.values())
        worst = _WORST_BYTES
        if dictionaries and worst // max(row_bytes, 1) < min(most, _ENOUGH_ROWS):
            longest, worst = self._longest_values(group, list(dictionaries)), BATCH_BYTES
            row_bytes = fixed + sum(min(bound, values * longest.get(path, bound)) for path, (values, bound) in dictionaries.items())
        if row_bytes:
            most = min(most, worst // row_bytes)
        if size > BATCH_BYTES:
            most = min(most, _AVERAGE_BYTES * rows // size)
        return max(most, 1)

    def _longest_values(self, group: int, paths: list[str]) -> dict[str, int]:
        """Return the length in bytes of the longest value in each column's dictionary.

        A column is left out if none of the first rows shows its dictionary.
        """
        encoded = self._open(metadata=self._parquet.metadata, read_dictionary=paths)
        longest: dict[str, int] = {}
        for batch in islice(encoded.iter_batches(1, row_groups=[group], columns=paths), _MAX_SEARCHED_ROWS):
            for column, name in zip(batch.columns, batch.schema.names, strict=True):
                longest.update((path, length) for path, length in _dictionaries(column, name) if length)
            if len(longest) == len(paths):
                break
        return longest


def arrow_batches(
    file: SourceFile, position: FilePosition, *, most_rows: int, on_damage: OnDamage | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (number of the first row, rows) of an Arrow file (Feather is the same) or stream, as `datasets` writes it, in batches.

    A local file is mapped into memory, so its rows are not copied. A compressed record batch is decompressed as a whole.

    Args:
        file: The file.
        position: Where to begin. It receives an estimate of the number of rows, from those read so far.
        most_rows: The maximum number of rows of a batch. Rows of a large average size come in smaller batches.
        on_damage: Called for a damaged file, instead of raising, after the record batches before the damage.

    Raises:
        NielsCacheError: If two columns have the same name, or if a stream lacks its end marker.
    """
    import pyarrow as pa
    from pyarrow import ipc

    start, first, size = position.row, 0, 1  # start with one row, because a value of a dictionary may be long
    with open_for_arrow(file, "Arrow", on_damage) as source:
        stream = pa.memory_map(source) if isinstance(source, str) else source
        damage = None
        is_stream = stream.read(6) != b"ARROW1"  # with which the file format begins
        end = stream.seek(0, 2)
        stream.seek(0)
        if not is_stream:
            try:
                reader = ipc.open_file(stream)
            except pa.ArrowInvalid as error:
                if on_damage is None:
                    raise
                damage = error
                stream.seek(8)  # what follows is a stream, until the damage
        if is_stream or damage:
            reader = ipc.open_stream(stream)
        for path in _repeated_names(reader.schema):
            raise NielsCacheError(f"{file.name}: has more than one column named {'.'.join(path)!r}; keep only one of them")
        count = None if is_stream or damage else reader.num_record_batches
        for number, batch in enumerate(reader if count is None else map(reader.get_batch, range(count)), 1):
            row = max(0, start - first)
            if row < len(batch):
                position.rows = round((first + len(batch)) * (end / stream.tell() if count is None else count / number))
                for column in batch.columns:
                    column.view(with_bytes(column.type)).validate(full=True)  # strings need not be UTF-8
            while row < len(batch):
                decoded = _decoded(batch.slice(row, size))
                yield first + row, decoded
                row += size
                size = max(1, min(2 * size, most_rows, _AVERAGE_BYTES * len(decoded) // max(decoded.nbytes, 1)))
            first += len(batch)
        if damage:
            raise damage
        if is_stream:
            stream.seek(-8, 2)  # from the end
            if stream.read() != b"\xff\xff\xff\xff\0\0\0\0":
                raise pa.ArrowInvalid("it lacks the end marker, so rows may be missing")


def is_string_type(arrow_type: Any) -> bool:
    """Return whether a column of this type holds strings."""
    from pyarrow import types

    return bool(types.is_string(arrow_type) or types.is_large_string(arrow_type) or types.is_string_view(arrow_type))


def is_bytes_type(arrow_type: Any) -> bool:
    """Return whether a column of this type holds bytes. Old writers store strings as bytes."""
    from pyarrow import types

    binary = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return any(is_kind(arrow_type) for is_kind in binary)


def may_hold_text(arrow_type: Any) -> bool:
    """Return whether a column of this type holds strings, or bytes that may be strings."""
    return is_string_type(arrow_type) or is_bytes_type(arrow_type)


def is_text_type(arrow_type: Any) -> bool:
    """Return whether a column of this type may hold strings. A column of nulls has no type yet, so it may."""
    from pyarrow import types

    return may_hold_text(arrow_type) or bool(types.is_null(arrow_type))


def as_strings(column: pa.Array) -> pa.Array:
    """Return a column of bytes as a column of strings, which need not be UTF-8. Other columns are returned unchanged.

    Bytes are not copied, except those of views and of fixed-size values.
    """
    import pyarrow as pa
    from pyarrow import types

    if not is_bytes_type(column.type):
        return column
    if types.is_binary(column.type):
        return column.view(pa.string())
    return column.cast(pa.large_binary()).view(pa.large_string())


def _repeated_names(fields: Iterable[pa.Field], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each column or struct field whose name occurs more than once at its level."""
    from pyarrow import types

    fields = list(fields)
    yield from ((*path, name) for name, count in Counter(field.name for field in fields).items() if count > 1)
    for field in fields:
        kind = field.type
        while types.is_list(kind) or types.is_large_list(kind):
            kind = kind.value_type
        if types.is_struct(kind):
            yield from _repeated_names(kind, (*path, field.name))


def with_bytes(kind: pa.DataType) -> pa.DataType:
    """Return the type with bytes in place of strings, as which a column can be viewed."""
    import pyarrow as pa
    from pyarrow import types

    if is_string_type(kind):
        return {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(kind, pa.binary_view())
    if types.is_list(kind) or types.is_large_list(kind):
        return (pa.list_ if types.is_list(kind) else pa.large_list)(with_bytes(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, with_bytes(field.type)) for field in kind])
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, with_bytes(kind.value_type), kind.ordered)
    return kind


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with plain columns instead of dictionaries and views.

    The schema of a file may ask for dictionaries, and each row would then keep a whole dictionary in memory.
    """
    import pyarrow as pa

    if all(kind == _plain_type(kind) for kind in batch.schema.types):
        return batch
    return pa.RecordBatch.from_arrays([*map(_plain_column, batch.columns)], names=batch.schema.names)


def _plain_column(column: pa.Array) -> pa.Array:
    from pyarrow import types

    if types.is_dictionary(column.type):
        return _plain_column(column.dictionary).take(column.indices)  # `dictionary_decode` cannot decode views
    return column.cast(_plain_type(column.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column after `_decoded`."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if types.is_binary_view(kind) else kind


def _dictionaries(column: Any, path: str) -> Iterator[tuple[str, int]]:
    """Yield (path of the leaf, length of the longest value in bytes) for each dictionary in an Arrow array."""
    from pyarrow import compute, types

    if types.is_dictionary(column.type):
        yield path, compute.max(compute.binary_length(column.dictionary)).as_py() or 0
    elif types.is_list(column.type) or types.is_large_list(column.type):
        yield from _dictionaries(column.values, f"{path}.list.{column.type.value_field.name}")
    elif types.is_struct(column.type):
        for index, field in enumerate(column.type):
            yield from _dictionaries(column.field(index), f"{path}.{field.name}")
