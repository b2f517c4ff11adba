"""Types that the steps of a build exchange: encoded documents, and the positions in the source up to which it was read for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from niels_cache_assets.base.documents import DocumentBatch, DropReport, SourcePosition


@dataclass(frozen=True, slots=True)
class EncodedDocuments:
    """Encoded documents, with all their tokens in one array.

    Attributes:
        documents: The documents.
        tokens: (tokens,) of the cache's dtype, one document after the other. Each document ends with EOT if EOT was requested.
        lengths: (n,) int64, the number of tokens of each document, including EOT.
        hashes: (n,) int64, the hashes of the whole canonical texts.
        drops: The documents that were dropped since they were read.
        chunks: The chunks that were read, which still contain the dropped documents.
        screened: Whether these documents were already compared with val (decontaminate.py).
        overlaps: Examples of documents that were dropped because of `decontaminate_against`, as rows for meta.json.
        copies: The documents in each copy of train (`DocumentCopy` in niels_cache_corpora/fim.py). Empty if train has no copies.
    """

    documents: DocumentBatch
    tokens: np.ndarray
    lengths: np.ndarray
    hashes: np.ndarray
    drops: DropReport
    chunks: Chunks
    screened: bool = False
    overlaps: tuple[dict[str, Any], ...] = ()
    copies: Sequence[Any] = ()

    @property
    def position(self) -> StreamPosition:
        """The position in the source after the last document."""
        return self.chunks.positions[-1]

    def keep(self, kept: np.ndarray) -> EncodedDocuments:
        """Return only the documents for which `kept`, bool (documents,), is True."""
        if kept.all():
            return self
        tokens = self.tokens[np.repeat(kept, self.lengths)]
        columns = {name: getattr(self, name)[kept] for name in ("documents", "lengths", "hashes")}
        return replace(self, tokens=tokens, copies=[copy.keep(kept) for copy in self.copies], **columns)


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """A point between two batches of a source, at which the source can be opened again.

    Attributes:
        items: The number of items before this point.
        unsplit: The number of these items that have no split of their own.
        place: The position in the form that the source understands. The journal has this key.
        dropped: The counts of the source's report at this point.
        facts: The facts of the source's report at this point.
    """

    items: int
    unsplit: int
    place: SourcePosition
    dropped: dict[str, int]
    facts: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class BuildPosition:
    """The position that a build has reached in a stream. The default is the beginning.

    Attributes:
        items: The number of items so far.
        mark: The latest point before this position, where the stream can be opened. None if there is none.
        share: The share of the source that was read, 0 to 1. None if unknown.
    """

    items: int = 0
    mark: ResumePoint | None = None
    share: float | None = None


class StreamPosition(NamedTuple):
    """A record of how far a source was read when it yielded the last item of a chunk.

    Attributes:
        reached: The position.
        dropped: The counts of the source's report at that moment.
        facts: The facts of the source's report at that moment.
    """

    reached: BuildPosition
    dropped: Counter[str]
    facts: dict[str, Any]


PositionedChunk = tuple[DocumentBatch, StreamPosition]
"""Up to 256 documents, and the position after the last document."""


class Chunks:
    """Chunks that are encoded together. Their documents are stored as one batch. Iteration yields each chunk.

    Attributes:
        positions: The position after each chunk.
        size: The number of documents.
        characters: The length of all texts.
    """

    def __init__(self) -> None:
        self._parts: list[DocumentBatch] = []
        self._ends = [0]  # the number of documents up to the end of each chunk, after that before the first
        self.positions: list[StreamPosition] = []
        self.size = self.characters = 0

    @classmethod
    def of(cls, documents: DocumentBatch, position: StreamPosition) -> Chunks:
        """Return one chunk."""
        chunks = cls()
        chunks.add(documents)
        chunks.end_chunk(position)
        return chunks

    def add(self, documents: DocumentBatch) -> None:
        """Append documents to the chunk that is not ended yet."""
        self._parts.append(documents)
        self.size += len(documents)
        self.characters += int(documents.characters.sum())

    def end_chunk(self, position: StreamPosition) -> None:
        """End a chunk after the documents so far.

        Args:
            position: The position in the source after them.
        """
        self._ends.append(self.size)
        self.positions.append(position)

    @property
    def has_unfinished_chunk(self) -> bool:
        return self.size > self._ends[-1]

    def drop_unfinished_chunk(self) -> None:
        """Remove the documents after the last chunk."""
        if self.has_unfinished_chunk:
            kept = self.documents[: self._ends[-1]]
            self._parts, self.size, self.characters = [kept], len(kept), int(kept.characters.sum())

    @property
    def documents(self) -> DocumentBatch:
        """The documents of all chunks."""
        if len(self._parts) > 1:
            self._parts = [DocumentBatch.joined(self._parts)]
        return self._parts[0]

    def __iter__(self) -> Iterator[PositionedChunk]:
        for (start, end), position in zip(pairwise(self._ends), self.positions, strict=True):
            yield self.documents[start:end], position
