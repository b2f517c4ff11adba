"""Columns of rows as batches of documents, so that a source that reads tables need not create an object for each row.

In most rows, the text becomes a document unchanged. The few other rows are handled one by one, in order, because each drop reason is
counted. A Collector groups the documents into new batches of up to 256 documents or about a million characters (like `rows.batched`), and
yields several groups of short documents as one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from niels_cache_assets.base.documents import BatchDivider, DocumentBatch, object_array
from niels_cache_assets.base.strings import Objects, Strings, buffers_of, int64_array
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.reading.parquet_files import as_strings
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_runtime.errors import NielsCacheError, did_you_mean
from niels_cache_runtime.format.layout import Ints

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_NOT_ASCII = 0x7F  # DEL is not a blank, but it is rare
_AFTER_FOLLOWERS = np.int8(-64)  # as signed numbers, all bytes of a UTF-8 character after its first are below this one
_TOGETHER_CHARACTERS = 2 << 20  # maximum size of a batch whose groups are yielded together
_SHORT_BYTES = 4096  # average size of a text above which texts become Python strings, each of which is freed separately


class Texts(NamedTuple):
    """The texts of rows.

    Attributes:
        text: A column of n strings.
        characters: (n,) int64, the length of each text.
        odd: The ascending indices of the rows that cannot become a document unchanged.
    """

    text: Strings | Objects
    characters: np.ndarray
    odd: Sequence[int]


def texts_of(values: Sequence[Any], *, limit: int, judged: bool, damaged: Collection[int]) -> Texts:
    """Return the texts of a column of Python values. A value that is not a str becomes an empty text.

    Args:
        values: The values.
        limit: A text of more than this number of characters is odd. So is a row without text, or with a blank text.
        judged: Whether a text with a NUL is odd.
        damaged: The indices of rows with replaced bytes, which are odd.
    """
    if set(map(type, values)) != {str}:
        values = [value if type(value) is str else "" for value in values]
    odd = {row for row, text in enumerate(values) if not text or text.isspace() or len(text) > limit or (judged and "\0" in text)}
    characters = np.fromiter(map(len, values), np.int64, len(values))
    return Texts(object_array(values, len(values)), characters, sorted(odd.union(damaged)))


def texts_of_column(
    column: pa.Array, *, encoding: str, limit: int, judged: bool
) -> tuple[Sequence[Any] | Strings | Objects, Texts, dict[int, str]]:
    """Return the values of an Arrow column, its texts (see `texts_of`), and the marked text of each row with replaced bytes.

    A column of valid strings without nulls is checked in Arrow's buffers, and only rows that may be odd are examined one by one. Bytes are
    treated as strings, because old writers store strings as bytes.

    Args:
        column: The Arrow column.
        encoding: The encoding of strings that are not UTF-8.
        limit: A text of more than this number of characters is odd.
        judged: Whether a text with a NUL is odd.
    """
    column = as_strings(column)
    strings = valid_strings(column)
    if strings is None:
        damaged: dict[int, str] = {}
        values = rows.column_values(column, encoding, damaged)
        return values, texts_of(values, limit=limit, judged=judged, damaged=damaged), damaged
    content, offsets = buffers_of(column)
    characters = _characters_of(column, content, offsets)
    maybe = (offsets[1:] == offsets[:-1]) | (characters > limit)
    first = content[np.minimum(offsets[:-1], len(content) - 1)] if len(content) else np.zeros(len(strings), np.uint8)
    maybe |= (first <= ord(" ")) | (first >= _FIRST_NOT_ASCII)  # the first character of a blank text
    if judged and len(content) and not content.min():
        maybe[:] = True
    candidates = np.flatnonzero(maybe)
    odd = texts_of(strings[candidates].tolist(), limit=limit, judged=judged, damaged=()).odd if len(candidates) else ()
    return strings, Texts(strings, characters, candidates[list(odd)].tolist()), {}


def valid_strings(column: pa.Array) -> Strings | Objects | None:
    """Return an Arrow column of strings as a column of a batch, or None for another type, for nulls, and for invalid UTF-8."""
    import pyarrow as pa
    from pyarrow import types

    if not (types.is_string(column.type) or types.is_large_string(column.type)) or column.null_count:
        return None
    content, offsets = buffers_of(column)
    try:
        if len(content) > _SHORT_BYTES * len(column):
            return column.to_numpy(zero_copy_only=False)
        if len(content) and content.max() > _FIRST_NOT_ASCII:
            column.validate(full=True)
    except (UnicodeDecodeError, pa.ArrowException):
        return None
    return Strings.of_buffers(pa.py_buffer(content), offsets)


def _characters_of(column: pa.Array, content: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the length of each string of an Arrow column of valid strings, (n,) int64.

    Args:
        column: The Arrow column.
        content: The bytes of all strings; see `strings.buffers_of`.
        offsets: The offset of each string; see `strings.buffers_of`.
    """
    from pyarrow import compute

    sizes = np.diff(offsets)
    if not len(content) or content.max() < _FIRST_NOT_ASCII:
        return sizes
    followers = np.flatnonzero(content.view(np.int8) < _AFTER_FOLLOWERS)
    if len(followers) > len(content) >> 4:  # Arrow counts many of them faster
        return compute.utf8_length(column).to_numpy().astype(np.int64)
    return sizes - np.bincount(np.searchsorted(offsets[1:], followers, side="right"), minlength=len(sizes))


def ids_of(column: pa.Array | None, files: Strings | Objects, numbers: Ints, encoding: str) -> Strings | Objects:
    """Return the id of each row (see `rows.row_id`), a column of n strings.

    Args:
        column: The ids in the data, of any type, or None if the rows have no ids.
        files: The file of each row, a column of n strings.
        numbers: The number of each row in its file.
        encoding: The encoding of strings that are not UTF-8.
    """
    values: Sequence[Any] | Strings | Objects = [None] * len(numbers)
    if column is not None:
        column = as_strings(column)
        if (strings := valid_strings(column)) is not None:
            return strings
        values = rows.column_values(column, encoding)
    elif isinstance(files, Strings):
        import pyarrow as pa
        from pyarrow import compute

        joint = pa.scalar("#", pa.large_string())
        return Strings(compute.binary_join_element_wise(files.arrow(), int64_array(numbers).cast(pa.large_string()), joint))
    return object_array(map(rows.row_id, values, files, numbers), len(numbers))


def require_columns(key: str, names: Iterable[str], columns: Iterable[str], where: str) -> None:
    """Check that the columns that a configuration key names exist.

    Args:
        key: The configuration key.
        names: The columns that it names.
        columns: The existing columns.
        where: The name of the file, for the error.

    Raises:
        NielsCacheError: If a column is missing. The message suggests the nearest column.
    """
    existing = list(columns)
    for name in names:
        if name not in existing:
            hint = did_you_mean(name, existing)
            raise NielsCacheError(
                f"{where}: {key}: no column {name!r}; {hint and f'{hint} '}The columns are: {', '.join(existing[:20]) or 'none'}"
            )


def is_plain(text: Any) -> bool:
    """Return whether a value can become the text of a document unchanged: a str that is not blank and has no NUL."""
    return type(text) is str and text != "" and not text.isspace() and "\0" not in text


class Collector:
    """A collector of the documents of a pass, which holds those that were read but not yet yielded.

    Args:
        files: The pass over the files.
        left_out: Called before the position moves past rows that the batches of a file skip, with their number and the number of the first
            row that may be one of them.
    """

    def __init__(self, files: FilePass, *, left_out: Callable[[int, int], None] | None) -> None:
        self._files, self._left_out = files, left_out
        self._parts: list[DocumentBatch] = []
        self._divider = BatchDivider(most_items=rows.BATCH_DOCUMENTS, most_characters=rows.BATCH_CHARACTERS)

    def add(self, batch: DocumentBatch, *, odd: Sequence[int], is_document: Callable[[int], bool]) -> Iterator[DocumentBatch]:
        """Add the rows of a batch, and yield each batch of documents that is full.

        Immediately before each yield, the position after the yielded documents is reported.

        Args:
            batch: The rows, in the order of their file.
            odd: The indices of the rows to handle one by one.
            is_document: Returns whether such a row is a document. If not, it counts the reason.
        """
        start = 0
        for row in odd:
            yield from self._add(batch[start:row])
            start = row
            if not is_document(row):
                start = row + 1
                self.advance_to(int(batch.row[row]) + 1, rows=1)
        yield from self._add(batch[start:])

    def advance_to(self, row: int, *, rows: int = 0) -> None:
        """Move the position to a row of the file.

        Args:
            row: The number of the row.
            rows: The number of rows before it that the batches contain. All others were left out.
        """
        if self._left_out is not None and (between := row - self._files.position.row - rows):
            self._left_out(between, self._files.position.row)
        self._files.position.row = row

    def _add(self, batch: DocumentBatch) -> Iterator[DocumentBatch]:
        if len(batch):
            self._files.mark_used()
        for part, is_full in self._runs(batch):
            self._parts.append(batch[part])
            self.advance_to(int(batch.row[part.stop - 1]) + 1, rows=part.stop - part.start)
            if is_full:
                yield from self.flush()

    def _runs(self, batch: DocumentBatch) -> Iterator[tuple[slice, bool]]:
        """Yield the parts of a batch as the divider does, but consecutive groups within this batch as one part.

        Each batch of documents costs a fixed time in each step of a build. Rows that are left out must be counted for each group, so their
        groups stay separate.
        """
        together = self._left_out is None and int(batch.characters.sum()) <= _TOGETHER_CHARACTERS
        run: slice | None = None
        for part, is_full in self._divider.cuts(batch.characters):
            if run is not None:
                if is_full and together:
                    run = slice(run.start, part.stop)
                    continue
                yield run, True
                run = None
            if is_full and not self._parts:
                run = part
            else:
                yield part, is_full
        if run is not None:
            yield run, True

    def flush(self) -> Iterator[DocumentBatch]:
        """Yield the remaining documents as one batch."""
        if self._parts:
            parts, self._parts = self._parts, []
            self._files.report_position()
            yield DocumentBatch.joined(parts)
