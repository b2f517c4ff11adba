"""The two buffers of a shuffle: one for documents in Arrow's form (base/strings.py), and one for documents with Python strings.

`ColumnBuffer` appends the bytes of each new document to one array, and a slot is the number of a document in it. So an exchange copies a
text once, and moves only numbers after that. The texts of documents that left stay in the array until it is full. Then the documents of the
slots are copied to a new array. During the copy, both arrays are in memory: three times the texts of the buffer, and 8 MB. Therefore a
buffer with more than 64 MB of text holds Python strings instead, each of which is freed after its use.

Titles are left out, because no step after a shuffle reads them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from niels_cache_assets.base.documents import DocumentBatch
from niels_cache_assets.base.strings import Strings
from niels_cache_runtime.format.layout import Array, Bools, Bytes, Ints

_MAX_BYTES = 64 << 20  # of texts in a ColumnBuffer
_SHORT_CHARACTERS = 4096  # on average; longer Python strings are not copied to columns
_ROOM_BYTES = 8 << 20  # beside twice the texts in the buffer, and beside twice their ids
_ROOM_ROWS = 1 << 15  # beside twice the documents
_COPIED_TOGETHER = 1024  # documents
_STRINGS = ("text", "source_id", "file")
_COLUMNS = (*_STRINGS, "row", "split", "characters", "kept")


def buffer_of(batches: list[DocumentBatch]) -> Buffer:
    """Return a buffer with the documents of `batches`, in their order, and empty the list.

    Each batch is freed as soon as it is converted, so that a large buffer is not in memory in two forms.
    """
    if any(isinstance(batch.text, Strings) for batch in batches) and sum(map(_text_bytes, batches)) <= _MAX_BYTES:
        columns = [_as_columns(batch) for batch in batches]
        if None not in columns:
            batches.clear()
            return ColumnBuffer(cast("list[DocumentBatch]", columns))
    batches.reverse()
    converted = []
    while batches:
        converted.append(batches.pop().with_objects())
    return ObjectBuffer(replace(DocumentBatch.joined(converted), title=None))


def _text_bytes(batch: DocumentBatch) -> int:
    """Return the bytes of the texts in Arrow's form, or the characters of Python strings, which are not more."""
    return len(batch.text.buffers()[0]) if isinstance(batch.text, Strings) else int(batch.characters.sum())


def _moves(slots: Ints) -> tuple[Bools, Ints, Ints]:
    """Return the moves of an exchange in which some slots are drawn twice.

    Returns:
        First, bool (n,), the incoming documents that stay in the buffer. Then two arrays with pairs of incoming documents that have the
        same slot, one directly after the other.
    """
    order = np.argsort(slots, kind="stable")
    again = slots[order][1:] == slots[order][:-1]
    before, after = order[:-1][again], order[1:][again]
    stays = np.ones(len(slots), dtype=bool)
    stays[before] = False
    return stays, before, after


class ObjectBuffer:
    """A buffer with a Python string for each text."""

    def __init__(self, documents: DocumentBatch) -> None:
        objects = _with_kept(documents.with_objects())
        self._documents = objects[np.arange(len(objects))]  # a copy, because `exchange` writes into its columns

    def __len__(self) -> int:
        return len(self._documents)

    def with_objects(self) -> Buffer:
        return self

    def documents(self, slots: Ints) -> DocumentBatch:
        return self._documents[slots]

    def exchange(self, incoming: DocumentBatch, slots: Ints) -> DocumentBatch:
        incoming = _with_kept(incoming.with_objects())
        stays, before, after = _moves(slots)
        leaving = self._documents[slots]
        for name in _COLUMNS:
            column, new = getattr(leaving, name), getattr(incoming, name)
            column[after] = new[before]
            getattr(self._documents, name)[slots[stays]] = new[stays]
        return leaving


def _with_kept(documents: DocumentBatch) -> DocumentBatch:
    return documents if documents.kept is not None else replace(documents, kept=np.full(len(documents), None, dtype=object))


class ColumnBuffer:
    """A buffer of columns, in which a slot is the number of a document."""

    def __init__(self, batches: list[DocumentBatch]) -> None:
        """Fill the buffer with documents, in the order of their slots, and empty the list `batches`."""
        self._arrivals = _ArrivedDocuments.of(batches)
        self._arrived = np.arange(self._arrivals.count)  # for each slot, the number of its document

    def __len__(self) -> int:
        return len(self._arrived)

    def with_objects(self) -> Buffer:
        return ObjectBuffer(self._arrivals.documents(self._arrived))

    def documents(self, slots: Ints) -> DocumentBatch:
        return self._arrivals.documents(self._arrived[slots])

    def exchange(self, incoming: DocumentBatch, slots: Ints) -> DocumentBatch | None:
        columns = _as_columns(incoming)
        if columns is None:
            return None
        new = self._arrivals.append(columns)
        if new is None:
            if self._arrivals.text_bytes(self._arrived) + _bytes(columns.text) > _MAX_BYTES:
                return None
            self._arrivals, self._arrived = self._arrivals.compacted(self._arrived, columns), np.arange(len(self))
            new = self._arrivals.append(columns)
            assert new is not None
        stays, before, after = _moves(slots)
        leaving = self._arrived[slots]
        leaving[after] = new[before]
        self._arrived[slots[stays]] = new[stays]
        return self._arrivals.documents(leaving)


Buffer = ObjectBuffer | ColumnBuffer


def _as_columns(documents: DocumentBatch) -> DocumentBatch | None:
    """Return documents with all strings in Arrow's form, with texts and ids in arrays of their own.

    Return None if a string is not valid Unicode, if texts are long on average, or if documents have kept values.
    """
    if documents.kept is not None:
        return None
    strings = [getattr(documents, name) for name in _STRINGS]
    if not isinstance(documents.text, Strings) and int(documents.characters.sum()) > _SHORT_CHARACTERS * len(documents):
        return None
    columns = [column if isinstance(column, Strings) else Strings.of(column.tolist()) for column in strings]
    if any(column is None for column in columns):
        return None
    text, source_id, file = (cast(Strings, column) for column in columns)
    return replace(documents, text=text.copied(), source_id=source_id.copied(), file=file)


def _bytes(strings: Any) -> int:
    return len(strings.buffers()[0])


class _AppendedStrings:
    """A column to which strings are appended. `values` has room for all of them, and begins with those that are there."""

    def __init__(self, size: int, *, rows: int) -> None:
        """Prepare an empty column.

        Args:
            size: The maximum number of bytes of the strings.
            rows: The maximum number of strings.
        """
        import pyarrow as pa

        self._content, self._offsets = np.empty(size, np.uint8), np.zeros(rows + 1, np.int64)
        self._offsets[-1] = size  # Arrow computes the average length from it
        self.values = pa.LargeStringArray.from_buffers(rows, pa.py_buffer(self._offsets), pa.py_buffer(self._content))

    def append(self, count: int, content: Bytes, offsets: Ints) -> bool:
        """Append strings after the first `count`, and return whether there was room.

        Args:
            count: The number of strings in the column.
            content: The bytes of the new strings (see Strings.buffers).
            offsets: Their offsets (see Strings.buffers).
        """
        start, end = int(self._offsets[count]), count + len(offsets)
        if end > len(self._offsets) or start + len(content) > len(self._content):
            return False
        self._content[start : start + len(content)] = content
        np.add(offsets[1:], start, out=self._offsets[count + 1 : end])
        return True

    def size(self, rows: Ints) -> int:
        """Return the bytes of the strings with these numbers."""
        return int((self._offsets[rows + 1] - self._offsets[rows]).sum())


class _ArrivedDocuments:
    """Documents in the order of their arrival. Documents are appended, and none is changed or removed.

    So a batch of documents may refer to rows of these columns, and another thread may copy their texts later.

    Attributes:
        count: The number of documents.
    """

    def __init__(self, names: Strings, *, rows: int, text_bytes: int, id_bytes: int) -> None:
        """Prepare empty columns.

        Args:
            names: The names of the files of the first documents.
            rows: The maximum number of documents.
            text_bytes: The maximum number of bytes of their texts.
            id_bytes: The maximum number of bytes of their ids.
        """
        self._text, self._source_id = _AppendedStrings(text_bytes, rows=rows), _AppendedStrings(id_bytes, rows=rows)
        self._numbers: list[Array] = [np.empty(rows, np.int64), np.empty(rows, np.int8), np.empty(rows, np.int64), np.empty(rows, np.int64)]
        self._names = names.arrow()  # of all files, in the order of their arrival
        self._added = self._names  # the names of the batch that came last
        self._base = 0  # the index of their first one in `_names`
        self.count = 0

    @classmethod
    def of(cls, batches: list[DocumentBatch]) -> _ArrivedDocuments:
        """Return the columns of these documents, with room for others, and empty the list. Each batch is freed when it is copied."""
        arrivals = cls(
            cast(Strings, Strings.of([])),
            rows=2 * sum(len(documents.row) for documents in batches) + _ROOM_ROWS,
            text_bytes=2 * sum(_bytes(documents.text) for documents in batches) + _ROOM_BYTES,
            id_bytes=2 * sum(_bytes(documents.source_id) for documents in batches) + _ROOM_BYTES,
        )
        batches.reverse()
        while batches:
            arrivals.append(batches.pop())
        return arrivals

    def compacted(self, numbers: Ints, incoming: DocumentBatch) -> _ArrivedDocuments:
        """Return columns of the documents with these numbers only, with room for others, and for `incoming` too.

        The documents are copied in pieces, so that their texts are in memory only twice: in these columns and in the new ones.
        """
        used, file = np.unique(self._numbers[-1][numbers], return_inverse=True)
        arrivals = type(self)(
            Strings(self._names, used),
            rows=2 * len(numbers) + _ROOM_ROWS + len(incoming.row),
            text_bytes=2 * self.text_bytes(numbers) + _ROOM_BYTES + _bytes(incoming.text),
            id_bytes=2 * self._source_id.size(numbers) + _ROOM_BYTES + _bytes(incoming.source_id),
        )
        for start in range(0, len(numbers), _COPIED_TOGETHER):
            piece = slice(start, start + _COPIED_TOGETHER)
            columns = _as_columns(replace(self.documents(numbers[piece]), file=Strings(arrivals._names, file[piece])))
            assert columns is not None
            arrivals.append(columns)
        return arrivals

    def text_bytes(self, numbers: Ints) -> int:
        """Return the bytes of the texts of the documents with these numbers."""
        return self._text.size(numbers)

    def append(self, documents: DocumentBatch) -> Ints | None:
        """Append documents, and return their numbers, (n,). Return None if there is no room."""
        import pyarrow as pa

        first, end = self.count, self.count + len(documents.row)
        text, source_id, file = (cast(Strings, getattr(documents, name)) for name in _STRINGS)
        if not (self._text.append(first, *text.buffers()) and self._source_id.append(first, *source_id.buffers())):
            return None
        if file.values is not self._added:
            self._base, self._added = len(self._names), file.values
            self._names = pa.concat_arrays([self._names, self._added])
        new = (documents.row, documents.split, documents.characters, file.rows + self._base)
        for column, values in zip(self._numbers, new, strict=True):
            column[first:end] = values
        self.count = end
        return np.arange(first, end)

    def documents(self, numbers: Ints) -> DocumentBatch:
        """Return the documents with these numbers."""
        row, split, characters, file = (column[numbers] for column in self._numbers)
        return DocumentBatch(
            text=Strings(self._text.values, numbers),
            source_id=Strings(self._source_id.values, numbers),
            file=Strings(self._names, file),
            row=row,
            split=split,
            characters=characters,
        )
