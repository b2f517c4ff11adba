"""Columns of rows as batches of documents. With batches, a source that reads tables need not make an object for each row.

In most rows, the text can become a document without a change. The few other rows are handled one by one, in order, because each reason for
dropping is counted. A Collector groups the documents into new batches of up to 256 documents or about a million characters (like
`rows.batched`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from niels_cache_assets.documents import NO_SPLIT, Divider, DocumentBatch, Objects, object_array
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.reading.places import FilePass
from niels_cache_runtime.format.layout import SPLITS, Split


class Texts(NamedTuple):
    """The texts of rows.

    text: (n,) object array of str. characters: (n,) int64, the length of each text. odd: the ascending indices of the rows that cannot
        become a document without a change.
    """

    text: Objects
    characters: np.ndarray
    odd: Sequence[int]


def texts_of(values: list[Any], *, limit: int, judged: bool, damaged: Collection[int]) -> Texts:
    """Return the texts of a column.

    A row is odd if it has no text, a blank text, a text of more than `limit` characters, or replaced bytes (`damaged`). If `judged` is set,
    a row with a NUL is odd, too. A value that is not a str becomes an empty text.
    """
    if set(map(type, values)) != {str}:
        values = [value if type(value) is str else "" for value in values]
    odd = {row for row, text in enumerate(values) if not text or text.isspace() or len(text) > limit or (judged and "\0" in text)}
    characters = np.fromiter(map(len, values), np.int64, len(values))
    return Texts(object_array(values, len(values)), characters, sorted(odd.union(damaged)))


def batch_of(
    texts: Texts,
    *,
    files: Sequence[str],
    numbers: Sequence[int],
    ids: list[Any] | None,
    titles: list[str | None] | None = None,
    split: Split | None = None,
) -> DocumentBatch:
    """Return rows as a batch of documents. files, numbers: the file and the number of each row.

    ids: the ids in the data, of any type (see `rows.row_id`), or None if the rows have no ids. split: the split of all rows.
    """
    count = len(texts.text)
    return DocumentBatch(
        text=texts.text,
        source_id=_ids_of(ids, files, numbers),
        file=object_array(files, count),
        row=np.array(numbers, dtype=np.int64),
        split=np.full(count, NO_SPLIT if split is None else SPLITS.index(split), np.int8),
        characters=texts.characters,
        title=None if titles is None else object_array(titles, count),
    )


def _ids_of(values: list[Any] | None, files: Sequence[str], numbers: Sequence[int]) -> Objects:
    count = len(numbers)
    if values is not None:
        with suppress(TypeError):
            if "".join(values).isascii():
                return object_array(values, count)
    return object_array(map(rows.row_id, [None] * count if values is None else values, files, numbers), count)


def is_plain(text: Any) -> bool:
    """Return whether a value can be the text of a document without a change: a str that is not blank and has no NUL."""
    return type(text) is str and text != "" and not text.isspace() and "\0" not in text


class RowCollector:
    """A collector of the documents of a pass, for files whose rows come one by one."""

    def __init__(self, files: FilePass) -> None:
        self._files = files
        self._rows: list[tuple[str, Any, str, int, str | None]] = []
        self._characters = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, text: str, source_id: Any, file: str, row: int, title: str | None) -> bool:
        """Add a document, and return whether the batch is full now. source_id: the id in the data, of any type (see `rows.row_id`)."""
        self._rows.append((text, source_id, file, row, title))
        self._characters += len(text)
        return len(self._rows) >= rows.BATCH_DOCUMENTS or self._characters >= rows.BATCH_CHARACTERS

    def batch(self) -> DocumentBatch:
        """Return the collected documents, and report the place after them."""
        count = len(self._rows)
        texts, ids, files, numbers, titles = map(list, zip(*self._rows, strict=True))
        self._rows.clear()
        self._characters = 0
        self._files.report_place()
        return batch_of(
            Texts(object_array(texts, count), np.fromiter(map(len, texts), np.int64, count), ()),
            files=files,
            numbers=numbers,
            ids=ids,
            titles=titles if any(title is not None for title in titles) else None,
        )


class Collector:
    """A collector of the documents of a pass. It holds documents that were read, but not yielded yet."""

    def __init__(self, files: FilePass) -> None:
        self._files = files
        self._parts: list[DocumentBatch] = []
        self._divider = Divider(most_items=rows.BATCH_DOCUMENTS, most_characters=rows.BATCH_CHARACTERS)

    def add(self, batch: DocumentBatch, *, first: int, odd: Sequence[int], is_document: Callable[[int], bool]) -> Iterator[DocumentBatch]:
        """Add the rows of a batch, and yield each batch of documents that is full.

        Immediately before each yield, the place after the yielded documents is reported. first: the number of the batch's first row in its
        file. odd: the indices of the rows to handle one by one. is_document: returns whether such a row is a document; if not, it counts
        the reason.
        """
        start = 0
        for row in odd:
            yield from self._add(batch[start:row], first + start)
            start = row
            if not is_document(row):
                start = row + 1
                self._files.position.row = first + start
        yield from self._add(batch[start:], first + start)

    def _add(self, batch: DocumentBatch, first: int) -> Iterator[DocumentBatch]:
        for part, is_full in self._divider.cuts(batch.characters):
            self._parts.append(batch[part])
            self._files.position.row = first + part.stop
            if is_full:
                yield from self.rest()

    def rest(self) -> Iterator[DocumentBatch]:
        """Yield the remaining documents as one batch."""
        if self._parts:
            parts, self._parts = self._parts, []
            self._files.report_place()
            yield DocumentBatch.joined(parts)
