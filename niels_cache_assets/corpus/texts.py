"""Texts of a corpus by ordinal, as shingle sets: what `verify = "jaccard"` compares.

Memory: 64 MB of shingles, and one row group of text per corpus.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from niels_cache_assets.corpus.reading import open_documents

_CACHE_BYTES = 64 << 20


class DocumentTexts:
    """The texts of documents by ordinal, read a row group at a time; the last group is kept. A context manager: it holds files open."""

    def __init__(self, paths: list[Path]) -> None:
        self._files = ExitStack()
        self._groups: list[tuple[Any, int]] = []  # file and index in it
        self._starts: list[int] = []  # ordinal of each group's first document
        self._held: tuple[int, Any] = (-1, None)
        first = 0
        for path in paths:
            parquet = self._files.enter_context(open_documents(path))
            for index in range(parquet.num_row_groups):
                self._groups.append((parquet, index))
                self._starts.append(first)
                first += parquet.metadata.row_group(index).num_rows

    def __enter__(self) -> DocumentTexts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._files.__exit__(kind, error, trace)

    def __getitem__(self, ordinal: int) -> str:
        group = bisect_right(self._starts, ordinal) - 1
        if self._held[0] != group:
            parquet, index = self._groups[group]
            self._held = (group, parquet.read_row_group(index, columns=["text"])["text"])
        return str(self._held[1][ordinal - self._starts[group]].as_py())


class ShingleSets:
    """Shingle sets of documents of several corpora, by (corpus, ordinal); those used last stay in memory."""

    def __init__(self, corpora: list[DocumentTexts], ngram: int) -> None:
        from niels_cache_assets.dedup.signatures import Signer

        self._corpora, self._signer = corpora, Signer(ngram=ngram)
        self._cache: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()
        self._bytes = 0

    def __getitem__(self, place: tuple[int, int]) -> np.ndarray:
        """Sorted unique shingle hashes, (n,) uint64."""
        if place in self._cache:
            self._cache.move_to_end(place)
            return self._cache[place]
        corpus, ordinal = place
        shingles = self._cache[place] = self._signer.shingle_hashes(self._corpora[corpus][ordinal])
        self._bytes += shingles.nbytes
        while self._bytes > _CACHE_BYTES and len(self._cache) > 1:
            self._bytes -= self._cache.popitem(last=False)[1].nbytes
        return shingles
