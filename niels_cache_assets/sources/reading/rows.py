"""Rows of JSON, CSV, Parquet and Arrow files, as the Python values that JSON Lines hold.

Pretrain and SFT sources share these readers. What the rows mean is up to the sources. A line costs one json.loads. `parquet_files.py`
describes the cost of Parquet.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice, repeat, zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from niels_cache_assets.base.first_bytes import describe_content
from niels_cache_assets.sources.reading.compressed import endings_with_compressions, is_damaged
from niels_cache_assets.sources.reading.encodings import (
    MARK,
    MARKS,
    PLAIN,
    SET_ENCODING,
    UTF8,
    DamagedRow,
    RowStream,
    TextOptions,
    Values,
    damage_of,
    decode,
    decoded_lines,
    encoding_of,
    marked_json,
    read_items,
    read_lines,
    refuse_length,
    unmarked,
)
from niels_cache_assets.sources.reading.files import SourceFile, first_bytes, open_bytes, valid_unicode
from niels_cache_assets.sources.reading.parquet_files import arrow_batches, is_bytes_type, may_hold_text, open_parquet, with_bytes
from niels_cache_assets.sources.reading.positions import FilePass, FilePosition
from niels_cache_assets.sources.text_column import ROWS, TEXT, count_file_without, nested_value
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import unique_keys

if TYPE_CHECKING:
    import pyarrow as pa

Item = TypeVar("Item")
Row = TypeVar("Row", bound=tuple[Any, ...])  # a tuple whose last element holds the values of the row

ARROW = (".arrow", ".feather")
CSV = endings_with_compressions(".csv", ".tsv")
BATCH_DOCUMENTS = 256
BATCH_CHARACTERS = 1 << 20
PARQUET_ROWS = 1024
_BLANKS = " \t\n\r\x0b\f"  # ASCII blanks, as in bytes.isspace; a line of other blanks is not valid JSON
_WHOLE_JSON = re.compile(r"\ufeff?\s*(\[|\{([^\n]*[,:{\[])?[ \t\r]*\n)")  # an array, or an object that the first line does not end
_decode_json = json.JSONDecoder(object_pairs_hook=unique_keys).decode  # json.loads makes a decoder for each line
LABELS = ("label", "kto_tag")  # the fields of KTO's labels, as trl and LLaMA-Factory name them
# A label in CSV, as spreadsheets and pandas write it.
_LABEL_VALUES: dict[str, int | None] = {"true": True, "false": False, "1": 1, "0": 0, "1.0": 1, "0.0": 0, "": None}
SEARCH_LIMITS = 10_000, 1 << 25  # rows and characters without a field after which the field counts as missing


def batched(
    items: Iterable[Item], files: FilePass | None = None, *, length: Callable[[Any], int] = lambda item: len(item.text)
) -> Iterator[list[Item]]:
    """Group documents into batches of up to 256, or about a million characters, so that large documents do not accumulate.

    Args:
        items: The documents.
        files: The pass that reads them. Before each batch is yielded, it reports where the next batch begins.
        length: Returns the length of an item. The default is for documents.
    """
    batch: list[Item] = []
    characters = 0
    for item in items:
        batch.append(item)
        characters += length(item)
        if files is not None:
            files.mark_used()
        if len(batch) >= BATCH_DOCUMENTS or characters >= BATCH_CHARACTERS:
            if files is not None:
                files.report_position()
            yield batch
            batch, characters = [], 0
    if batch:
        if files is not None:
            files.report_position()
        yield batch


def first_rows(stream: Iterator[Row], count: int, characters: int = 1 << 24) -> Iterator[Row]:
    """Yield the first rows of a stream.

    After SEARCH_LIMITS, a field that no row had counts as missing.

    Args:
        stream: Tuples whose last element holds the values of a row.
        count: The maximum number of rows.
        characters: The number of characters of text after which to stop, because the caller may hold all of these rows in memory.
    """
    for row in islice(stream, count):
        yield row
        characters -= _characters(row[-1])
        if characters <= 0:
            return


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_characters, inner))


def string_fields(rows: Iterable[Row]) -> dict[str, bool]:
    """Return for each field whether it holds a string in any of these rows, which are tuples as in `first_rows`."""
    fields: dict[str, bool] = {}
    for *_, values in rows:
        for name, value in values.items():
            fields[name] = fields.get(name, False) or isinstance(value, str)
    return fields


def row_id(value: Any, file: str, row: int) -> str:
    """Return the id of a row as text, or file#row if the row has no id."""
    return f"{file}#{row}" if value is None else valid_unicode(str(value))


def row_title(value: Any) -> str | None:
    """Return the title of a row, or None if it is no string."""
    return valid_unicode(value) if isinstance(value, str) else None


def text_problem(text: Any) -> str | None:
    """Return the drop reason if the text of a row cannot be a document, otherwise None."""
    if type(text) is not str:
        return "null_text" if text is None else "non_string_text"
    return "empty" if not text or text.isspace() else None


class TextFieldCheck:
    """A record of whether a field holds text in any row of a pass, and of the first row in which it holds something else.

    A single wrong row is counted as `non_string_text` and skipped. If no row has text, the configuration is wrong.

    Attributes:
        field: The field, which may be set during the pass.
        has_text: Whether some row has text.
    """

    def __init__(self, field: str = "text") -> None:
        self.field = field
        self.has_text = False
        self._other: tuple[str, int, str] | None = None

    def problem(self, text: Any, file: str, row: int) -> str | None:
        """Return the `text_problem` of the field's value in a row, and remember whether the value is text."""
        found = text_problem(text)
        if found is None or found == "empty":
            self.has_text = True
        elif found == "non_string_text" and self._other is None:
            self._other = (file, row, kind_of(text))
        return found

    @property
    def is_wrong(self) -> bool:
        """Whether no row had text in the field, but some row had another value."""
        return not self.has_text and self._other is not None

    def report_hint(self, context: StreamContext, fields: Mapping[str, bool] | None = None, kind: str | None = None) -> None:
        """Add the hint to the report at the end of a pass, if the field `is_wrong`.

        Args:
            context: The pass.
            fields: See `hint`.
            kind: See `hint`.
        """
        if self.is_wrong and context.start is None:  # the values in rows of an earlier run are unknown
            context.report.hints.append(self.hint(fields, kind))

    def hint(self, fields: Mapping[str, bool] | None, kind: str | None = None) -> str:
        """Return the problem of a field that `is_wrong`, and advice.

        Args:
            fields: For each field of the rows, whether it holds strings. None if the source has no key `text_field`.
            kind: The type of the column, if the file has types.
        """
        assert self._other is not None
        file, row, found = self._other
        advice = "this source reads only that field"
        if fields is not None:
            others = ", ".join(name for name, is_string in fields.items() if is_string and name != self.field)
            advice = f"set text_field to one of: {others}" if others else "text_field cannot help: no other field holds text"
        return f"{file}: row {row}: {self.field!r} holds {kind or found}, and no row has text there; {advice}"


def kind_of(value: Any) -> str:
    """Return a name for the type of a value in a row, for messages."""
    names = {bool: "true or false", int: "numbers", float: "numbers", str: "text", list: "lists", dict: "objects", bytes: "binary data"}
    return names.get(type(value), type(value).__name__)


def json_rows(file: SourceFile, position: FilePosition | None = None, options: TextOptions = PLAIN) -> RowStream:
    """Yield (index from 0, object) of a JSON Lines file, a JSON array or objects over several lines, beginning at `position`.

    The index is that of the line, or of the object in the other forms. Blank lines are skipped; any other line must be an object. If bytes
    of a line are invalid in the encoding, its object is a DamagedRow.

    Args:
        file: The file.
        position: Where to begin. None is the start.
        options: How to read it. With `on_damage`, the rows end with the last whole line or object before the damage.

    Raises:
        NielsCacheError: If a line or item is too long or is not a JSON object.
    """
    with open_bytes(file, options.on_damage) as stream:
        head, has_rows = first_bytes(stream), False
        are_lines = not _WHOLE_JSON.match(head.decode(encoding_of(stream, options.encoding), "ignore"))
        read, unit = (read_lines, "line") if are_lines else (read_items, "item")
        for index, line, marked in read(stream, position or FilePosition(), file.name, options):
            if not line.strip(_BLANKS):
                continue
            if are_lines and not line.endswith("\n") and is_damaged(stream):
                return
            try:
                row = _decode_json(line)
            except RecursionError as error:
                raise NielsCacheError(f"{file.name}: {unit} {index + 1} is nested too deep to be read as JSON; remove it") from error
            except ValueError as error:
                kind = "" if has_rows else describe_content(head, "JSON")
                raise NielsCacheError(
                    f"{file.name}: {unit} {index + 1} is not valid JSON ({error}); each {unit} must hold one object{kind}"
                ) from error
            if not isinstance(row, dict):
                raise NielsCacheError(f"{file.name}: {unit} {index + 1} is a JSON {type(row).__name__}; each {unit} must hold one object")
            yield index, row if marked is None else DamagedRow(row, *marked_json(marked), damage_of(marked).size)
            has_rows = True


def line_rows(file: SourceFile, position: FilePosition | None = None, options: TextOptions = PLAIN, *, keep_ends: bool = True) -> RowStream:
    """Yield (line index from 0, object with the line as `text`) of a text file, beginning at `position`.

    Args:
        file: See `json_rows`, like the other arguments.
        position: See `json_rows`.
        options: See `json_rows`.
        keep_ends: Whether a line includes its end. Every end is a line feed then.

    Raises:
        NielsCacheError: If a line is too long.
    """

    def whole(line: str) -> str:
        text = line.removesuffix("\n").removesuffix("\r")
        return text + "\n" if keep_ends and line.endswith("\n") else text

    with open_bytes(file, options.on_damage) as stream:
        for index, line, marked in read_lines(stream, position or FilePosition(), file.name, options):
            values = {TEXT: whole(line)}
            yield index, values if marked is None else DamagedRow(values, {TEXT: whole(marked)}, MARK, damage_of(marked).size)


def _delimiter_of(name: str, header: str) -> str:
    """Return which of comma, tab, `;` and `|` is most frequent in the header.

    If none is, or if several are equally frequent, the name of the file decides. A tab in the header of a .tsv file always counts.
    """
    named = "\t" if re.search(r"\.tsv(\.\w+)?$", name, re.IGNORECASE) else ","
    if named == "\t" and named in header:
        return named
    return max([named, *",\t;|"], key=re.sub(r'"[^"]*"', "", header).count)


def csv_rows(
    file: SourceFile,
    position: FilePosition | None = None,
    options: TextOptions = PLAIN,
    *,
    delimiter: str | None = None,
    quote: str = '"',
    columns: Sequence[str] = (),
    on_delimiter: Callable[[str], object] | None = None,
) -> RowStream:
    """Yield (index of the record from 0, object) of a CSV file. All values are strings.

    A blank line is no record. A value that a record lacks is null. With `on_damage`, a record that the damage cuts is left out.

    Args:
        file: See `json_rows`, like the other arguments.
        position: See `json_rows`. The records before are parsed again.
        options: See `json_rows`. `limit` is the maximum number of characters of a record.
        delimiter: The character between values. None: a tab in .tsv files, otherwise a comma, but see `on_delimiter`.
        quote: The character around values with delimiters or line ends, or "" if there is none.
        columns: The names of the columns of a file without a header.
        on_delimiter: Receives the delimiter, which the header may decide (`_delimiter_of`). None: only the name decides, as on the
            hub. A first line like `sep=;`, as Excel writes it, has precedence.

    Raises:
        NielsCacheError: If a record is too long or has more values than the header, if two columns have the same name, or if the header is
            not of the encoding.
    """
    position, limit = position or FilePosition(), options.limit
    with open_bytes(file, options.on_damage) as stream:
        position.seek(stream)
        lines = (
            line
            for line in decoded_lines(stream, file.name, limit, encoding_of(stream, options.encoding))
            if line.endswith("\n") or not is_damaged(stream)  # otherwise the damage cuts the line
        )
        first = next(lines, "").removeprefix("\ufeff")
        blank = before = 0  # lines before the header, and before the record that is read next
        if re.match("sep=.\r?\n", first):
            delimiter = delimiter or first[4]
            first = "\n"
        while first in ("\n", "\r\n"):
            first, blank = next(lines, ""), blank + 1
        csv.field_size_limit(limit)
        delimiter = delimiter or _delimiter_of(file.name, first if on_delimiter else "")
        if on_delimiter:
            on_delimiter(delimiter)
        reader = csv.reader(
            chain(repeat("\n", blank), [first], lines),  # blank lines count in the numbers of lines
            delimiter=delimiter,
            quotechar=quote or None,
            quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
            strict=True,
        )

        def records() -> Iterator[list[str]]:
            nonlocal before
            for record in reader:
                before = reader.line_num
                if record:  # not a blank line
                    yield record

        try:
            header = list(columns) or next(records(), [])
            if on_delimiter and MARK.search("".join(header)):
                raise NielsCacheError(f"{file.name}: the header is not {options.encoding}; {SET_ENCODING}")
            if repeated := [name for name, count in Counter(header).items() if count > 1]:
                raise NielsCacheError(f"{file.name}: has more than one column named {repeated[0]!r}; rename them, or keep only one")
            for row, record in enumerate(records()):
                if row < position.row:
                    continue
                position.row = row + 1
                if len(record) > len(header):
                    raise NielsCacheError(f"{file.name}: record {row + 1} has {len(record)} values for {len(header)} columns; correct it")
                text, values = "".join(record), dict(zip_longest(header, record))
                if len(text) > limit:
                    refuse_length(f"{file.name}: record {row + 1}", limit)
                if size := damage_of(text).size:
                    values = DamagedRow({name: value and unmarked(value) for name, value in values.items()}, values, MARK, size)
                yield row, values
        except csv.Error as error:
            if is_damaged(stream) and "end of data" in str(error):
                return
            where = f"{file.name}: line {before + 1}"
            if "field limit" in str(error):
                refuse_length(where, limit)
            raise NielsCacheError(f"{where}: not CSV ({error}); correct the file, or the quotes and delimiter") from error


def column_values(column: Any, encoding: str = UTF8, damaged: dict[int, str] | None = None) -> list[Any]:
    """Return the Python values of an Arrow column. Bytes count as strings.

    Strings are converted with NumPy, which is several times faster than Arrow.

    Args:
        column: The Arrow column.
        encoding: The encoding of strings that are not UTF-8.
        damaged: Receives the marked text of each string with replaced bytes, by index.
    """
    import pyarrow as pa
    from pyarrow import types

    if not is_bytes_type(column.type):
        if not (types.is_string(column.type) or types.is_large_string(column.type)):
            return column.to_pylist()
        with suppress(UnicodeDecodeError, pa.ArrowException):  # invalid UTF-8: files may hold it, Arrow does not check
            return column.to_numpy(zero_copy_only=False).tolist()
    values = column.cast("large_binary").to_pylist()
    for index, value in enumerate(values):
        if value is not None:
            try:
                values[index] = value.decode()
            except UnicodeDecodeError:
                values[index], marked = decode(value, encoding)
                if damaged is not None and marked is not None:
                    damaged[index] = marked
    return values


def rows_in(batch: pa.RecordBatch, encoding: str) -> list[Values]:
    """Return the rows of a batch.

    Strings that are not UTF-8 are decoded as `encoding`, even inside lists and structs. Bytes are decoded too, because old writers store
    strings as bytes. Bytes stay bytes if they have a NUL, or if a quarter of them would be replaced, as in images.
    """
    if not any(map(_has_bytes, batch.schema.types)):
        with suppress(UnicodeDecodeError):
            return batch.to_pylist()
    columns = [
        [_marked(value, column.type, encoding) for value in column.view(with_bytes(column.type)).to_pylist()] for column in batch.columns
    ]
    rows = [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]
    return [_as_damaged_row(row) for row in rows]


def _has_bytes(kind: pa.DataType) -> bool:
    return is_bytes_type(kind) or any(_has_bytes(kind.field(index).type) for index in range(kind.num_fields))


def _marked(value: Any, kind: pa.DataType, encoding: str) -> Any:
    """Return the value with marked text in place of the bytes of strings.

    Args:
        value: A value of a column that was viewed as `with_bytes(kind)`.
        kind: The type of the value of the column itself.
        encoding: The encoding of strings that are not UTF-8.
    """
    from pyarrow import types

    if value is None:
        return None
    if types.is_dictionary(kind):
        return _marked(value, kind.value_type, encoding)
    if may_hold_text(kind):
        try:
            return value.decode()
        except UnicodeDecodeError:
            if is_bytes_type(kind) and b"\0" in value:
                return value
            marked = value.decode(encoding, MARKS)
            return value if is_bytes_type(kind) and damage_of(marked).size * 4 > len(value) else marked
    if types.is_list(kind) or types.is_large_list(kind):
        return [_marked(inner, kind.value_type, encoding) for inner in value]
    if types.is_struct(kind):
        return {field.name: _marked(value[field.name], field.type, encoding) for field in kind}
    return value


def _as_damaged_row(marked: Values) -> Values:
    """Return a row that contains marks as a DamagedRow. A row without marks is returned unchanged."""
    size = 0

    def clean(value: Any) -> Any:
        nonlocal size
        if isinstance(value, list):
            return [clean(inner) for inner in value]
        if isinstance(value, dict):
            return {key: clean(inner) for key, inner in value.items()}
        if not isinstance(value, str):
            return value
        size += damage_of(value).size
        return unmarked(value)

    values = clean(marked)
    return DamagedRow(values, marked, MARK, size) if size else marked


def json_form(arrow_type: Any) -> Callable[[Any], Any] | None:
    """Return a function that converts the Python values of a nested column to those that JSON Lines would hold.

    In Arrow, every struct has all keys of its type, and the keys that a row lacks are null, so null keys of structs are left out. A key
    that was null in the data cannot be distinguished from such padding. Nulls in lists and maps stay. Maps become objects, and texts of the
    type `arrow.json` (Json of `datasets`) are decoded.

    Returns:
        The function, or None if the values already have this form.
    """
    from pyarrow import types

    if getattr(arrow_type, "extension_name", None) == "arrow.json":
        return lambda value: None if value is None else json.loads(value, object_pairs_hook=unique_keys)
    if types.is_struct(arrow_type):
        inner = {field.name: json_form(field.type) or _unchanged for field in arrow_type}
        return lambda value: None if value is None else {key: inner[key](each) for key, each in value.items() if each is not None}
    if types.is_map(arrow_type):
        of_item = json_form(arrow_type.item_type) or _unchanged
        return lambda value: None if value is None else {key: of_item(each) for key, each in value}
    if types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type):
        of_value = json_form(arrow_type.value_type)
        return of_value and (lambda value: None if value is None else [of_value(each) for each in value])
    return None


def _unchanged(value: Any) -> Any:
    return value


def parquet_rows(
    file: SourceFile,
    position: FilePosition | None = None,
    options: TextOptions = PLAIN,
    *,
    columns: Sequence[str] | None = None,
) -> RowStream:
    """Yield (row index from 0, object) of a Parquet file, beginning at `position`.

    Nested values are those that JSON Lines would hold (`json_form`). A row with replaced bytes is a DamagedRow.

    Args:
        file: The file.
        position: Where to begin. None is the start.
        options: How to read it. `limit` is the maximum size of a row in Arrow's memory format, in bytes.
        columns: The columns to read, if the file has one of them. None reads all.

    Raises:
        NielsCacheError: If a row is larger than the limit.
    """
    position = position or FilePosition()
    with open_parquet(file) as parquet:
        position.rows = parquet.rows
        chosen = [name for name in columns or () if name in parquet.columns] or None
        yield from _rows_of_batches(file, parquet.batches(chosen, most_rows=PARQUET_ROWS, start=position.row), position, options)


def _rows_of_batches(
    file: SourceFile, batches: Iterable[tuple[int, pa.RecordBatch]], position: FilePosition, options: TextOptions
) -> RowStream:
    for first, batch in batches:
        if batch.nbytes > options.limit:  # a single row may be longer than the limit
            for row in range(len(batch)):
                if batch.slice(row, 1).nbytes > options.limit:
                    refuse_length(f"{file.name}: row {first + row}", options.limit)
        forms = {field.name: form for field in batch.schema if (form := json_form(field.type)) is not None}
        for row, values in enumerate(rows_in(batch, options.encoding), first):
            position.row = row + 1
            for each in (values, values.marked) if isinstance(values, DamagedRow) else (values,):
                each.update((name, form(each[name])) for name, form in forms.items() if name in each)
            yield row, values


def rows_of_files(
    files: FilePass,
    read: Callable[[SourceFile, FilePosition], RowStream],
    context: StreamContext,
    field: str | None = None,
) -> Iterator[tuple[str, int, Values]]:
    """Yield (name of the file, row, values) for the unfinished files of the current split.

    Args:
        files: The pass.
        read: Yields the rows of a file, beginning at a position.
        context: The pass over the source. Files in which no row has `field` are recorded in its report.
        field: The text field, or None. The text of a nested field (see `nested_value`) becomes a field of the row, under the whole name.
            A pass that resumes inside a file begins after a text, so that file has the field.
    """
    for file in files.files():
        fields, has_field = dict[str, None](), field is None or files.position.row > 0
        for row, values in read(file, files.position):
            if field is not None and field not in values:
                for each in (values, values.marked) if isinstance(values, DamagedRow) else (values,):
                    if (text := nested_value(each, field)) is not None:
                        each[field] = text
            if not has_field:
                has_field = field in values
                if len(fields) < ROWS:
                    fields |= dict.fromkeys(values)
            yield file.name, row, values
        if fields and not has_field:
            count_file_without(context.report, file.name, fields)


def arrow_rows(file: SourceFile, position: FilePosition | None = None, options: TextOptions = PLAIN) -> RowStream:
    """Yield what `parquet_rows` does, of an Arrow file or stream. With `on_damage`, the rows end with the last batch before the damage."""
    position = position or FilePosition()
    batches = arrow_batches(file, position, most_rows=PARQUET_ROWS, on_damage=options.on_damage)
    return _rows_of_batches(file, batches, position, options)


def file_rows(
    file: SourceFile, position: FilePosition | None = None, options: TextOptions = PLAIN, *, labels: Iterable[str] = LABELS
) -> RowStream:
    """Yield the rows of a file: Parquet, Arrow, CSV or JSON, according to its suffix. `labels` of CSV become true and false, or 1 and 0."""
    name = file.name.lower()
    if name.endswith(CSV):
        return map(partial(_with_labels, labels), csv_rows(file, position, options, on_delimiter=str))
    return (parquet_rows if name.endswith(".parquet") else arrow_rows if name.endswith(ARROW) else json_rows)(file, position, options)


def _with_labels(labels: Iterable[str], row: tuple[int, Values]) -> tuple[int, Values]:
    values = row[1]
    values.update((name, _LABEL_VALUES.get(str(values[name]).lower(), values[name])) for name in labels if name in values)
    return row
