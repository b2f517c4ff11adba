"""What the steps of a build hand on: encoded documents, and how far the source was read for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from niels_cache_assets.documents import Document, Place


@dataclass(frozen=True, slots=True)
class EncodedDocuments:
    """Documents that survived encoding with their tokens back to back.

    `tokens`: uint16, each document followed by EOT where asked. `lengths`: int64, tokens per document, EOT included.
    `characters`: int64 per document. `dropped`: reasons of those left out here. `position`: of the last document that was encoded.
    `screened`: compared with val already (decontaminate.py).
    """

    documents: list[Document]
    tokens: np.ndarray
    lengths: np.ndarray
    characters: np.ndarray
    dropped: Counter[str]
    position: Position
    screened: bool = False

    def keep(self, kept: np.ndarray) -> EncodedDocuments:
        """These documents without those where `kept`, bool (documents,), is False."""
        if kept.all():
            return self
        documents = [document for document, keep in zip(self.documents, kept.tolist(), strict=True) if keep]
        tokens = self.tokens[np.repeat(kept, self.lengths)]
        return replace(self, documents=documents, tokens=tokens, lengths=self.lengths[kept], characters=self.characters[kept])


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point between two batches of a source: the items before it, those of them that had no split of their own, the place, the counts."""

    items: int
    unsplit: int
    place: Place
    dropped: dict[str, int]
    facts: dict[str, Any]


class Position(NamedTuple):
    """How far a source was read when it gave the last item of a chunk: items so far, the latest mark, and what the report said then."""

    items: int
    mark: Mark | None
    dropped: Counter[str]
    facts: dict[str, Any]
    share: float | None
