"""The types that the steps of a build exchange: encoded documents, and how far the source was read for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from niels_cache_assets.documents import DocumentBatch, Place


@dataclass(frozen=True, slots=True)
class EncodedDocuments:
    """Encoded documents, with their tokens back to back.

    `tokens`: uint16, each document followed by EOT if requested. `lengths`: (n,) int64, tokens per document, EOT included. `dropped`: the
    reasons of documents that were dropped here. `chunks`: the documents before that, in the chunks in which they were read. `screened`:
    already compared with val (decontaminate.py).
    """

    documents: DocumentBatch
    tokens: np.ndarray
    lengths: np.ndarray
    dropped: Counter[str]
    chunks: Sequence[PositionedChunk]
    screened: bool = False

    @property
    def position(self) -> Position:
        """The position of the last document."""
        return self.chunks[-1][1]

    def keep(self, kept: np.ndarray) -> EncodedDocuments:
        """Return these documents without those for which `kept`, bool (documents,), is False."""
        if kept.all():
            return self
        tokens = self.tokens[np.repeat(kept, self.lengths)]
        return replace(self, documents=self.documents[kept], tokens=tokens, lengths=self.lengths[kept])


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point between two batches of a source: the items before it, those of them without a split of their own, the place, the counts."""

    items: int
    unsplit: int
    place: Place
    dropped: dict[str, int]
    facts: dict[str, Any]


class Position(NamedTuple):
    """How far a source was read when it yielded the last item of a chunk: items so far, the latest mark, and the report at that moment."""

    items: int
    mark: Mark | None
    dropped: Counter[str]
    facts: dict[str, Any]
    share: float | None


PositionedChunk = tuple[DocumentBatch, Position]
"""Up to 256 documents, and the position of the last one."""
