"""Changes to the tables of the hub's library: origin of rows, smaller batches, and original values in columns of mixed types.

Each row gets its file and row number, in two added columns of numbers.

The library has no public interface for this, so these functions change the loaders of the library. Each docstring names the internals that
the function relies on. `hub.data` chooses the data set and the columns.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import lru_cache
from types import FunctionType, MethodType, SimpleNamespace
from typing import IO, Any

from niels_cache_assets.base.documents import SourceReport
from niels_cache_assets.sources.reading.compressed import IteratorStream
from niels_cache_assets.sources.reading.encodings import (
    CARRIED_MARKS,
    MARK,
    MARKS,
    UTF8,
    Damage,
    Values,
    damage_of,
    decoded_blocks,
    encode_marks,
    encoding_of,
    unmarked,
)
from niels_cache_assets.sources.reading.files import SourceFile, file_errors, open_bytes
from niels_cache_assets.sources.reading.parquet_files import BATCH_BYTES, ParquetTable, in_pieces
from niels_cache_assets.sources.reading.rows import column_values
from niels_cache_assets.sources.text_column import count_file_without
from niels_cache_runtime.errors import NielsCacheError

ITER_ROWS = 1024  # rows that become Python values at once; smaller batches cost more per row
FILE, ROW, DAMAGE = "__niels_cache_file", "__niels_cache_row", "__niels_cache_damage"
_TEXT_CHARACTERS = 1 << 20  # characters that are read at a time
_ENDS_IN_NULL = re.compile(rb"null[ \t\r]*(?:\n|\Z)")  # the pattern begins with a literal, so that the search is fast
_NULL_ROW = re.compile(rb"^[ \t\r]*null[ \t\r]*$", re.MULTILINE)


def file_name(url: str, local_names: dict[str, str]) -> str:
    """Return the name of a file: the one in `local_names`, or else the path in its repository."""
    return local_names.get(url) or re.sub(r"^hf://datasets/[^@]+@[^/]+/", "", url)


class FilesWithoutText:
    """The files of a pass in which no row so far has the text field.

    A loader fills missing columns with nulls, so a row does not show whether its file has the column.

    Attributes:
        names: The names of the files.
        column: The text field.
        fields: The fields of the table that is read now, or None if its loader does not report them.
    """

    def __init__(self, report: SourceReport) -> None:
        self._report = report
        self.names: set[str] = set()
        self.column = ""
        self.fields: list[str] | None = None

    def watched(self, file: str, tables: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Yield the tables of a file. If the file ends without the text field, count it in the report."""
        fields: dict[str, None] = {}
        self.fields, has_column, rows = None, False, 0
        for key, table in tables:
            has_column = has_column or self.fields is None or self.column in self.fields
            rows += len(table)
            if has_column:
                self.names.discard(file)
            else:
                self.names.add(file)
                fields |= dict.fromkeys(self.fields or ())
            yield key, table
        if rows and not has_column:
            count_file_without(self._report, file, fields)


def with_origin(
    dataset: Any,
    columns: list[str],
    local_names: dict[str, str],
    start: tuple[str, int] | None,
    read_tables: Callable[..., Iterator[tuple[Any, Any]]] | None = None,
    *,
    without: FilesWithoutText,
) -> tuple[Any, list[str]]:
    """Return the data set with columns for the origin of each row: the index of its file, and its number in this file.

    Hugging Face's streams do not provide the origin of a row, and there is no public hook between the file reader and the shuffle. So this
    function wraps the generator that yields the Arrow tables of a file (the generator of the loader, or `read_tables`). The library calls
    the generator for one file at a time, and the order after a shuffle does not change.

    Args:
        dataset: The streaming data set.
        columns: The columns to keep.
        local_names: The names of local files by URL.
        start: The file and row at which to begin; earlier rows are left out. None is the beginning.
        read_tables: Yields the tables of a file, in place of the generator of the loader.
        without: Records the files without the first of `columns`.

    Returns:
        The data set, and the file names by index.

    Raises:
        NielsCacheError: If the data set has no rows of text, or the file of `start` is missing. While rows are read, if a file is damaged.
    """
    import pyarrow as pa
    from datasets import Features, IterableDataset, Value
    from datasets.iterable_dataset import ArrowExamplesIterable

    without.column, inner = columns[0], dataset._ex_iterable
    if not isinstance(inner, ArrowExamplesIterable):
        raise NielsCacheError("this data set does not hold rows of text; choose one in Parquet, JSON, CSV or text files")
    urls = _shard_urls(inner.kwargs)
    names = [file_name(url, local_names) for url in urls]
    index_of = {url: index for index, url in enumerate(urls)}
    if start is not None and start[0] not in names:
        raise NielsCacheError(f"{start[0]}: is no longer in its place among the files of this build; build again with --force")
    first, first_row = (names.index(start[0]), start[1]) if start else (0, 0)

    # For files of the hub, an OSError may come from the network; hub_errors distinguishes the two causes.
    damaged = (pa.ArrowException, ValueError, EOFError, zlib.error, OSError if local_names else gzip.BadGzipFile)

    def tables_with_origin(**kwargs: Any) -> Iterator[tuple[Any, pa.Table]]:
        (url,) = _shard_urls(kwargs)
        index, row = index_of[url], 0
        if index < first:
            return
        try:
            for key, table in without.watched(names[index], (read_tables or inner.generate_tables_fn)(**kwargs)):
                end = row + len(table)
                before = min(first_row - row, len(table)) if index == first and row < first_row else 0
                row += before
                table = table.select([*columns, *({DAMAGE} & {*table.column_names})]).slice(before)
                if len(table) or not before:
                    table = table.append_column(FILE, pa.repeat(pa.scalar(index, pa.int32()), len(table)))
                    yield key, table.append_column(ROW, pa.array(range(row, end), pa.int64()))
                row = end
        except NielsCacheError:
            raise
        except damaged as error:
            detail = "a record is not a JSON object" if is_not_an_object_error(error) else error
            raise NielsCacheError(f"{names[index]}: damaged, or not in the format its name says ({detail})") from error

    info = dataset.info.copy()
    if info.features is not None:
        kept = {name: info.features[name] for name in columns}
        info.features = Features({**kept, FILE: Value("int32"), ROW: Value("int64")})
    traced = ArrowExamplesIterable(tables_with_origin, inner.kwargs, sleep_on_threads_shutdown=inner.sleep_on_threads_shutdown)
    return IterableDataset(traced, info=info, split=dataset.split, token_per_repo_id=dataset._token_per_repo_id), names


def _shard_urls(kwargs: dict[str, Any]) -> list[str]:
    """Return the files in a loader's arguments: `files` of the Parquet loader, `base_files` of the JSON, CSV and text loaders."""
    return list(kwargs.get("base_files") or kwargs["files"])


def is_not_an_object_error(error: BaseException) -> bool:
    """Return whether the JSON loader failed on a record that is not an object, by the text of the error from the loader or Arrow."""
    return "Column() changed from object" in str(error) or (isinstance(error, TypeError) and "is not iterable" in str(error))


@lru_cache(maxsize=1)
def patch_null_rows() -> None:
    """Make the JSON loader pass `{}` to Arrow for a row that is `null`. Both give the same row.

    If a block begins with `null`, Arrow's parser ends the process (pyarrow 26).
    """
    from datasets.packaged_modules.json import json as loader

    read_json = loader.paj.read_json

    def without_null_rows(source: io.BytesIO, **settings: Any) -> Any:
        content = source.getvalue()
        if _ENDS_IN_NULL.search(content):
            source = io.BytesIO(_NULL_ROW.sub(b"{}", content))
        return read_json(source, **settings)

    loader.paj = SimpleNamespace(**{**vars(loader.paj), "read_json": without_null_rows})


def values_of(column: Any, encoding: str, damaged: dict[int, str], *, recoded: bool) -> list[Any]:
    """Return the Python values of a column, decoded if the JSON loader encoded the column as JSON because of mixed types.

    The loader does not encode a string that is already JSON, so the string "6" and the number 6 cannot be distinguished.

    Args:
        column: The Arrow column.
        encoding: See `column_values`.
        damaged: See `column_values`.
        recoded: Whether the bytes come from `patch_json_encoding`. Such bytes are UTF-8, and may already hold marks (characters in place
            of damaged bytes).
    """
    import pyarrow as pa

    if isinstance(column.type, pa.JsonType):
        return [_decoded(value) for value in column.to_pylist()]
    return column_values(column, UTF8, damaged, CARRIED_MARKS) if recoded else column_values(column, encoding, damaged)


def _decoded(value: str | None) -> Any:
    try:
        return None if value is None else json.loads(value)
    except (ValueError, RecursionError):
        return value


def patch_mixed_types(builder: Any, without: FilesWithoutText) -> None:
    """Decode columns whose values have different types only after the first 10 MB, when the schema already says string.

    The JSON loader of `datasets` then encodes the values of such a column as JSON strings, and nothing in the schema shows this encoding.
    This function decodes the strings. Every value that is not a string becomes null, because the schema has no type for it.

    It also leaves out columns that are not in the schema because they are not in the first rows; the library would reject their file.

    Args:
        builder: The JSON loader.
        without: Receives the fields of each table.
    """
    import pyarrow as pa
    from datasets import Json

    cast = builder._cast_table

    def decode_and_cast(table: Any, json_field_paths: Any = ()) -> Any:
        for name in {path[0] for path in json_field_paths if len(path) == 1} & set(table.column_names):
            if not isinstance((builder.info.features or {}).get(name), Json):
                values = [_decoded(value) for value in table[name].to_pylist()]
                strings = pa.array([value if isinstance(value, str) else None for value in values], pa.string())
                table = table.set_column(table.column_names.index(name), name, strings)
        without.fields = [*table.column_names]
        if builder.info.features is None:
            json_field_paths = [path for path in json_field_paths if len(path) > 1]
        else:
            table = table.select([name for name in table.column_names if name in builder.info.features])
        return cast(table, json_field_paths=json_field_paths)

    builder._cast_table = decode_and_cast


def text_tables(local_names: dict[str, str], encoding: str, *, keep_linebreaks: bool) -> Callable[..., Iterator[tuple[Any, Any]]]:
    """Return a reader of the user's files in place of the reader of the text loader.

    It yields one row per line, with a column DAMAGE.

    Args:
        local_names: The names of local files by URL.
        encoding: The encoding, unless there is a byte order mark.
        keep_linebreaks: Whether rows keep their line ends.
    """
    import pyarrow as pa

    def tables(base_files: list[str], **_: Any) -> Iterator[tuple[Any, pa.Table]]:
        for index, url in enumerate(base_files):
            file = SourceFile(url, local_names.get(url, url))
            with file_errors(file), open_bytes(file) as stream:
                text = io.TextIOWrapper(stream, encoding=encoding_of(stream, encoding), errors=MARKS)  # any line end becomes a line feed
                for number, marked in enumerate(_pieces(text)):
                    lines = marked.split("\n")
                    last = lines.pop()
                    if keep_linebreaks:
                        lines = [f"{line}\n" for line in lines]
                    lines += [last] if last else []
                    damage = [found.size << 32 | found.characters for found in map(damage_of, lines)] if MARK.search(marked) else None
                    texts = lines if damage is None else [*map(unmarked, lines)]
                    columns = {"text": pa.array(texts, pa.string()), DAMAGE: pa.array(damage or [0] * len(lines), pa.int64())}
                    yield (index, number), pa.table(columns)

    return tables


def _pieces(text: io.TextIOWrapper) -> Iterator[str]:
    """Yield whole lines, about a million characters at a time. The byte order mark is removed."""
    piece = text.read(_TEXT_CHARACTERS).removeprefix("\ufeff")
    while piece:
        yield piece + text.readline()
        piece = text.read(_TEXT_CHARACTERS)


def damage_of_rows(packed: Sequence[int]) -> dict[int, Damage]:
    """Return the damage of each damaged row, by index, from the packed numbers of the column DAMAGE."""
    return {index: Damage(value >> 32, value & 0xFFFFFFFF) for index, value in enumerate(packed) if value} if any(packed) else {}


def patch_json_encoding(builder: Any, local_names: dict[str, str], encoding: str) -> None:
    """Make this JSON loader, which reads only UTF-8, read local files in `encoding` or in that of their byte order mark.

    The loader calls `open` as a global of its module. This function replaces it with one that puts marks in place of damaged bytes
    (`encode_marks`).
    """
    from datasets.packaged_modules.json import json as loader

    def open_decoded(path: str, mode: str = "r", **_: Any) -> IO[Any]:
        url = path.rsplit("::", 1)[-1]
        stream = open_bytes(SourceFile(url, local_names.get(url, url)))
        file_encoding = encoding_of(stream, encoding)
        if file_encoding != UTF8:
            stream = io.BufferedReader(IteratorStream(_recoded(stream, file_encoding), stream))
        return stream if mode == "rb" else io.TextIOWrapper(stream, encoding=UTF8, errors="replace")

    function = type(builder)._generate_tables
    reader = FunctionType(
        function.__code__, {**vars(loader), "open": open_decoded}, function.__name__, function.__defaults__, function.__closure__
    )
    builder._generate_tables = MethodType(reader, builder)


def _recoded(stream: IO[bytes], encoding: str) -> Iterator[bytes]:
    """Yield the content of a stream in UTF-8, without its byte order mark. Marks (lone surrogates) stand for damaged bytes."""
    is_start = True
    for text in decoded_blocks(stream, encoding):
        if text and is_start:
            text, is_start = text.removeprefix("\ufeff"), False
        yield encode_marks(text)


def parquet_tables(
    builder: Any, local_names: dict[str, str], *, by_bytes: bool, without: FilesWithoutText
) -> Callable[..., Iterator[tuple[Any, Any]]]:
    """Return a reader in place of the reader of the Parquet loader, which yields up to a thousand rows at a time.

    The loader's own scanner reads up to 1 GiB of decoded text ahead of a slow consumer, and tokenizing is slow. No setting changes this.

    Args:
        builder: The Parquet loader.
        local_names: The names of local files by URL.
        by_bytes: Whether to yield fewer rows at a time if rows are long. The order of the library's shuffle depends on the boundaries of
            the tables, so this must be False for a shuffle.
        without: Receives the fields of each file.
    """
    import pyarrow as pa
    from datasets import DownloadConfig
    from datasets.utils.file_utils import xopen

    download = DownloadConfig(token=builder.token, storage_options=builder.storage_options)

    def tables(files: list[str], **_: Any) -> Iterator[tuple[Any, pa.Table]]:
        for index, file in enumerate(files):
            with xopen(file, "rb", download_config=download) as stream:
                parquet = ParquetTable(stream, file_name(file, local_names))
                batches = parquet.batches(builder.config.columns, most_rows=ITER_ROWS, by_bytes=by_bytes)
                for first, batch in batches:
                    without.fields = [*parquet.columns]
                    yield (index, first), builder._cast_table(pa.Table.from_batches([batch]))

    return tables


def row_batches(dataset: Any, *, shuffled: bool) -> Generator[Any]:
    """Yield the rows of a data set as Arrow tables if the schema is known, otherwise as columns of Python values.

    A batch has about a thousand rows, or fewer if rows are long. Arrow gives the same order as plain iteration at a quarter of the cost.
    The library's own `iter` collects a thousand rows of any length, so without a shuffle, this function reads the tables of the library
    directly.
    """
    if dataset.features is None:
        from datasets.iterable_dataset import _examples_to_batch

        for rows in _by_size(dataset):
            yield _examples_to_batch(rows)
        return
    tables = dataset.with_format("arrow").iter(ITER_ROWS) if shuffled else (table for _, table in dataset._ex_iterable.iter_arrow())
    for table in tables:
        for first in range(0, len(table), ITER_ROWS):
            yield from in_pieces(table.slice(first, ITER_ROWS))


def _by_size(rows: Iterable[Values]) -> Iterator[list[Values]]:
    batch: list[Values] = []
    characters = 0
    for row in rows:
        batch.append(row)
        characters += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(batch) == ITER_ROWS or characters >= BATCH_BYTES:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
