"""Types that the steps of a build exchange: encoded documents, and the positions in the source up to which it was read for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from niels_cache_assets.documents import DocumentBatch, Place


@dataclass(frozen=True, slots=True)
class EncodedDocuments:
    """Encoded documents, with all their tokens in one array.

    `tokens`: of the cache's dtype, one document after the other; each document ends with EOT if EOT was requested. `lengths`: (n,) int64,
    the tokens of each document, including EOT. `dropped`: the number of documents that were dropped since they were read, by reason.
    `chunks`: the chunks that were read, which still contain the dropped documents. `screened`: whether these documents were already
    compared with val (decontaminate.py).
    """

    documents: DocumentBatch
    tokens: np.ndarray
    lengths: np.ndarray
    dropped: Counter[str]
    chunks: Sequence[PositionedChunk]
    screened: bool = False

    @property
    def position(self) -> Position:
        """The position in the source after the last document."""
        return self.chunks[-1][1]

    def keep(self, kept: np.ndarray) -> EncodedDocuments:
        """Return only the documents for which `kept`, bool (documents,), is True."""
        if kept.all():
            return self
        tokens = self.tokens[np.repeat(kept, self.lengths)]
        return replace(self, documents=self.documents[kept], tokens=tokens, lengths=self.lengths[kept])


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point between two batches of a source, at which the source can be opened again.

    `items`: the number of items before this point. `unsplit`: how many of these items have no split of their own. `place`: the point in the
    form that the source understands. `dropped`, `facts`: the counts and facts of the source's report at this point.
    """

    items: int
    unsplit: int
    place: Place
    dropped: dict[str, int]
    facts: dict[str, Any]


class Position(NamedTuple):
    """A record of how far a source was read when it yielded the last item of a chunk.

    `items`: the number of items so far. `mark`: the latest Mark, or None if there is no Mark yet. `dropped`, `facts`: the counts and facts
    of the source's report at that moment. `share`: the share of the source that was read, 0 to 1, or None if unknown.
    """

    items: int
    mark: Mark | None
    dropped: Counter[str]
    facts: dict[str, Any]
    share: float | None


PositionedChunk = tuple[DocumentBatch, Position]
"""Up to 256 documents, and the position after the last document."""
