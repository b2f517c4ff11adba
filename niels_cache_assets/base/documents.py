"""The data that pass through a build: documents, batches of documents by column, conversations, and counters of dropped items.

Documents and conversations are named tuples, which are immutable and cost a third as much as frozen data classes. If a source yields
columns, a build does not create an object for each document: a DocumentBatch contains one array for each column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.base.reasons import DropCounts, is_asked
from niels_cache_assets.base.strings import Objects, Strings, as_objects, join_columns
from niels_cache_runtime.format.layout import SPLITS, Array, Ints, Split

NO_SPLIT = -1

Role = Literal["system", "developer", "user", "assistant", "tool"]


class Message(TypedDict):
    """One turn of a conversation.

    With a chat template, a message may have further keys with JSON values, which reach the template unchanged.

    Attributes:
        role: The speaker. Only chat templates know the speakers "developer" and "tool".
        content: The text.
    """

    role: Role
    content: str


class Document(NamedTuple):
    """One pretraining text and its origin.

    Attributes:
        text: The text.
        source_id: The id of the text at the source, or `file#row`.
        file: The file, relative to the source's root.
        row: The number of the row in that file, from 0.
        title: The title of the text, or None.
        split: The split of the document. With None, the default, val_frac or the token budgets decide it.
        kept: The values of the columns in `keep` as a JSON object, or None without this key.
    """

    text: str
    source_id: str = ""
    file: str = ""
    row: int = 0
    title: str | None = None
    split: Split | None = None
    kept: str | None = None


def truncate_texts(texts: Iterable[str], characters: int | None) -> Iterator[str]:
    """Yield non-empty texts until they have `characters` characters in total, and truncate the last one there. With None, yield all."""
    for text in texts:
        if text:
            yield text[:characters]
        if characters is not None:
            characters -= len(text)
            if characters <= 0:
                return


def object_array(values: Iterable[Any], count: int) -> Objects:
    """Return the values as an object array, (count,).

    `np.array` is not used, because it would also look into values that are themselves sequences.
    """
    return np.fromiter(values, dtype=object, count=count)


@dataclass(slots=True, eq=False, kw_only=True)
class DocumentBatch:
    """A batch of documents by column, in stream order. Iteration yields a Document for each row.

    The columns of a batch are not changed after its creation. The class is not frozen, because that would double the cost of a slice.

    Attributes:
        text: The texts, a column of n strings (strings.py).
        source_id: The ids, a column of n strings.
        file: The files, a column of n strings.
        row: The rows in the files, (n,) int64.
        split: The splits, (n,) int8: an index into SPLITS, or NO_SPLIT.
        characters: The length of each text in characters, (n,) int64.
        title: The titles, an object array (n,) of str or None, or None instead of the array if no document has a title.
        kept: The kept values as JSON, an object array (n,) of str or None, or None instead of the array if no document has any.
        edges: After encoding, the first token of each file of a document and the token after its last, in turns, counted from the first
            token of the document: an object array (n,) of int64 arrays. None if the documents have one file each.
    """

    text: Strings | Objects
    source_id: Strings | Objects
    file: Strings | Objects
    row: Ints
    split: NDArray[np.int8]
    characters: Ints
    title: Objects | None = None
    kept: Objects | None = None
    edges: Objects | None = None

    @classmethod
    def of(cls, documents: Sequence[Document] | DocumentBatch) -> DocumentBatch:
        """Return the documents as a DocumentBatch. A DocumentBatch is returned unchanged."""
        if isinstance(documents, DocumentBatch):
            return documents
        count = len(documents)
        texts, source_ids, files, rows, titles, splits, kept = zip(*documents, strict=True) if count else [()] * 7
        return cls(
            text=object_array(texts, count),
            source_id=object_array(source_ids, count),
            file=object_array(files, count),
            row=np.array(rows, dtype=np.int64),
            split=np.fromiter((NO_SPLIT if split is None else SPLITS.index(split) for split in splits), np.int8, count),
            characters=np.fromiter(map(len, texts), np.int64, count),
            title=object_array(titles, count) if any(title is not None for title in titles) else None,
            kept=object_array(kept, count) if any(each is not None for each in kept) else None,
        )

    @classmethod
    def joined(cls, batches: Sequence[DocumentBatch]) -> DocumentBatch:
        """Return one batch with the documents of all `batches`. At least one batch is required."""
        if len(batches) == 1:
            return batches[0]
        return cls(**{name: _joined_column([getattr(batch, name) for batch in batches], batches) for name in cls.__slots__})

    def with_objects(self) -> DocumentBatch:
        """Return the batch with an object array of str for each column of strings."""
        return replace(self, text=as_objects(self.text), source_id=as_objects(self.source_id), file=as_objects(self.file))

    def __reduce__(self) -> tuple[Any, ...]:
        columns = {name: getattr(self, name) for name in self.__slots__}
        if not isinstance(self.text, Strings):
            columns["text"] = Strings.of(self.text.tolist()) or self.text  # lone surrogates cross as objects
        return partial(DocumentBatch, **columns), ()

    def __len__(self) -> int:
        return len(self.row)

    def __iter__(self) -> Iterator[Document]:
        count = len(self)
        titles = [None] * count if self.title is None else self.title.tolist()
        kept = [None] * count if self.kept is None else self.kept.tolist()
        splits = [None if split == NO_SPLIT else SPLITS[split] for split in self.split.tolist()]
        columns = (self.text.tolist(), self.source_id.tolist(), self.file.tolist(), self.row.tolist(), titles, splits, kept)
        return map(Document._make, zip(*columns, strict=True))

    def document(self, number: int) -> Document:
        """Return one document."""
        return next(iter(self[number : number + 1]))

    def __getitem__(self, index: slice | Array) -> DocumentBatch:
        """Return the documents that a slice, a mask (bool, (n,)) or an array of positions (int, (m,)) selects."""
        if isinstance(index, slice) and index.indices(len(self)) == (0, len(self), 1):
            return self  # columns are never changed
        columns = ((name, getattr(self, name)) for name in self.__slots__)
        chosen: dict[str, Any] = {name: column if column is None else column[index] for name, column in columns}
        return DocumentBatch(**chosen)


def _joined_column(columns: Sequence[Any], batches: Sequence[DocumentBatch]) -> Any:
    """Return the joined column, or None if no batch has it. Documents of batches without it get None."""
    if all(column is None for column in columns):
        return None
    filled = (np.full(len(batch), None) if column is None else column for column, batch in zip(columns, batches, strict=True))
    return join_columns(list(filled))


class BatchDivider:
    """A rule that divides a stream of batches into groups.

    A group ends after `most_items` items, or when it has `most_characters` characters.
    """

    def __init__(self, *, most_items: int, most_characters: int) -> None:
        self._most_items, self._most_characters = most_items, most_characters
        self._items = self._characters = 0  # of the unfinished group

    def cuts(self, characters: Ints) -> Iterator[tuple[slice, bool]]:
        """Yield the slices of the next batch, each with whether it completes its group.

        Args:
            characters: The length of each item of the batch, (n,).
        """
        ends = np.cumsum(characters)
        is_short = not len(ends) or self._characters + int(ends[-1]) < self._most_characters  # then only items fill a group
        start = before = 0
        while start < len(ends):
            full = len(ends)
            if not is_short:
                full = int(np.searchsorted(ends, before + self._most_characters - self._characters, side="left")) + 1
            stop = min(full, start + self._most_items - self._items, len(ends))
            end = int(ends[stop - 1])
            self._items += stop - start
            self._characters += end - before
            is_full = self._items == self._most_items or self._characters >= self._most_characters
            if is_full:
                self._items = self._characters = 0
            yield slice(start, stop), is_full
            start, before = stop, end


Documents = Sequence[Document] | DocumentBatch
"""A batch that a source yields: a list of Documents, or a DocumentBatch."""


class Conversation(NamedTuple):
    """One SFT example: its messages and their origin.

    A preference pair has its chosen side in `messages`, and its rejected side in `rejected`. Both are whole conversations with the prompt.

    Attributes:
        messages: The messages, in order.
        source_id: The id of the example at the source, or `file#row`.
        file: The file, relative to the source's root.
        row: The number of the row in that file, from 0.
        group: If a data set splits by group, all examples with the same group get the same split. In oasst1, a group is a tree of messages.
        category: The category of the example, or None.
        split: The split of the example, or None if upstream does not decide it.
        rejected: The rejected side of a preference pair, or None.
        tools: The JSON schemas of the tools, for a chat template, or None.
    """

    messages: list[Message]
    source_id: str = ""
    file: str = ""
    row: int = 0
    group: str | None = None
    category: str | None = None
    split: Split | None = None
    rejected: list[Message] | None = None
    tools: list[Any] | None = None


SourcePosition = dict[str, Any]
"""Where a stream can resume, as JSON values: "file" (a name), "row" (the index of the next row), and further keys of the source."""


FIRST_DROPPED = "first_dropped"  # in `facts`: where the first dropped item is, by unasked reason
DROPPED_OF_VAL = "dropped_of_val"  # in `facts`: the number of dropped items in val, by reason
FILES_WITHOUT_ITEMS = "files_without_items"  # in `facts`: the number of files without items (`files`), and the name of the first


def describe_origin(item: Document | Conversation, number: int = 0) -> str:
    """Return where an item is, for messages. `number` is its number in the source, for an item without a file and an id."""
    return f"{item.file}: row {item.row}" if item.file else item.source_id or str(number)


class DropReport:
    """The number of dropped items by reason, with further facts about them.

    The values of `facts` are never changed in place, because positions of a stream refer to them.

    Attributes:
        dropped: The number of dropped items by reason.
        facts: Entries for meta.json: where the first dropped item of each unasked reason is (FIRST_DROPPED), and the number of items that
            are known to be in val (DROPPED_OF_VAL).
    """

    def __init__(self, dropped: Mapping[str, int] | None = None, facts: Mapping[str, Any] | None = None) -> None:
        self.dropped = DropCounts(dropped)
        self.facts = dict(facts or {})

    def drop(self, reason: str, where: str, *, count: int = 1, of_val: int = 0) -> None:
        """Count dropped items.

        Args:
            reason: The reason.
            where: The position of the first of them, for messages.
            count: The number of items.
            of_val: How many of them are in val.

        Raises:
            ValueError: If the reason is not in the table of reasons.
        """
        self.dropped[reason] += count
        first, val = self.facts.get(FIRST_DROPPED, {}), self.facts.get(DROPPED_OF_VAL, {})
        if reason not in first and not is_asked(reason):
            self.facts[FIRST_DROPPED] = {**first, reason: where}
        if of_val:
            self.facts[DROPPED_OF_VAL] = {**val, reason: val.get(reason, 0) + of_val}

    def join(self, later: DropReport) -> None:
        """Add drops from later in the stream."""
        self.dropped.update(later.dropped)
        self.facts.update(merge_facts([self.facts, later.facts]))

    def copy(self) -> DropReport:
        return DropReport(self.dropped, self.facts)

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the arguments that create an equal object, as JSON values."""
        return {"dropped": dict(self.dropped), "facts": dict(self.facts)}


def merge_facts(every: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of several passes or parts together. Numbers are added; of other values, the first one is used."""
    found: dict[str, Any] = {}
    for facts in every:
        for key, value in facts.items():
            if isinstance(value, Mapping):
                found[key] = merge_facts([found.get(key, {}), value])
            elif isinstance(value, int | float) and not isinstance(value, bool):
                found[key] = found.get(key, 0) + value
            else:
                found.setdefault(key, value)
    return found


class SourceReport(DropReport):
    """The report of a source about one pass over its items.

    A source that can start in the middle (`StreamContext.start`) sets `position` immediately before it yields a batch. At that moment,
    `dropped` and `facts` must cover all rows before `position`, and no later rows. A source that cannot start in the middle is read from
    the beginning, and the builder skips the items that it has already written.

    Attributes:
        dropped: The number of dropped items by reason. A source counts them with `drop_row`.
        facts: Entries for meta.json, such as the number of replaced bytes.
        within: A prefix for file names in `facts`, if the source is a member of another source.
        position: A new dictionary that says where the next batch begins, or None.
        share: The part of the source that was read, from 0 to 1, or None if it is expensive to compute.
        split: The split of the rows that are being read, if upstream decides it, otherwise None.
        hints: Possible mistakes in the configuration. If the source yields no usable item, the error message shows them. They are never
            stored in metadata.
        drops_of_files: Whether a file that yields nothing (`FilePass`) needs no further note, because the settings ask for all its drops,
            or because its missing field was reported.
    """

    def __init__(self, within: str = "") -> None:
        super().__init__()
        self.within = within
        self.position: SourcePosition | None = None
        self.share: float | None = None
        self.split: Split | None = None
        self.hints: list[str] = []
        self.drops_of_files: dict[str, bool] | None = None

    def drop_row(self, reason: str, file: str, row: int | None = None, *, count: int = 1) -> None:
        """Count dropped rows of a file.

        Args:
            reason: The reason.
            file: The file.
            row: The number of the first of the rows, or None for a whole file.
            count: The number of rows.
        """
        where = f"{self.within}{file}" if row is None else f"{self.within}{file}: row {row}"
        self.drop(reason, where, count=count, of_val=count if self.split == "val" else 0)
        if self.drops_of_files is not None:
            self.drops_of_files[file] = is_asked(reason) and self.drops_of_files.get(file, True)

    def note_file_without_items(self, file: str) -> None:
        """Record that a file has yielded nothing."""
        found = self.facts.get(FILES_WITHOUT_ITEMS, {"files": 0, "first": f"{self.within}{file}"})
        self.facts[FILES_WITHOUT_ITEMS] = {**found, "files": found["files"] + 1}
