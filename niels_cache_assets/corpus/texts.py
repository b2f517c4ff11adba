"""The sets of shingles that `verify = "jaccard"` compares, for documents of several corpora. One pass over the texts makes all sets.

A shingle is a run of consecutive words. Each text is read and cut into shingles once, in the order of the corpora, on all cores. The sets
take 8 bytes a word. If they take more than 64 MB, they are written to a file. The memory is 40 bytes for each document, a few row groups of
text, and 64 MB of recently used sets.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.corpus.prepared import document_files, document_rows
from niels_cache_assets.dedup.signatures import jaccard
from niels_cache_assets.streaming.in_flight import map_in_order
from niels_cache_runtime.format.reading import available_threads

if TYPE_CHECKING:
    from niels_cache_assets.corpus.order import Input, Inputs

_CACHE_BYTES = 64 << 20


class ShingleFile:
    """The shingle sets of some documents (a shingle is a run of consecutive words). The key is the position of a document in the order of
    all corpora.

    A ShingleFile is a context manager, because it holds its file open.
    """

    def __init__(self, inputs: Inputs, positions: NDArray[Any], *, ngram: int, path: Path) -> None:
        """Read the texts at `positions` ((n,) ascending). If their shingle sets do not fit in memory, write them to `path`. The caller
        removes the file.
        """
        self._positions = positions
        self._cache: OrderedDict[int, NDArray[np.uint64]] = OrderedDict()
        self._cache_bytes = 0
        corpora, ordinals = inputs.places(positions)
        order = np.lexsort((ordinals, corpora))
        self._place_in_file = np.empty(len(order), dtype=np.uint32)
        self._place_in_file[order] = np.arange(len(order), dtype=np.uint32)
        self._ends = np.zeros(len(order) + 1, dtype=np.int64)  # places in the file, in shingles; element 0 is the start of the file
        wanted = [(each, np.sort(ordinals[corpora == corpus])) for corpus, each in enumerate(inputs.all)]
        del corpora, ordinals, order
        self._held = np.empty(0, dtype=np.uint64)  # all sets, if they are not in the file
        self._file = open(path, "w+b")  # noqa: SIM115  (closed by __exit__)
        try:
            self._fill(wanted, ngram)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ShingleFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def similarity(self, position: int, other: int) -> float:
        """Return the exact Jaccard similarity of the documents at two positions."""
        return jaccard(self[position], self[other])

    def __getitem__(self, position: int) -> NDArray[np.uint64]:
        """Return the hashes of the shingles (runs of words) of one document, sorted and unique, (n,) uint64."""
        held = self._cache.get(position)
        if held is not None:
            self._cache.move_to_end(position)
            return held
        place = int(self._place_in_file[bisect_left(self._positions, position)])
        start, end = self._ends[place : place + 2].tolist()
        if len(self._held):
            return self._held[start:end]
        shingles = np.frombuffer(os.pread(self._file.fileno(), (end - start) * 8, start * 8), dtype=np.uint64)
        self._cache[position] = shingles
        self._cache_bytes += shingles.nbytes
        while self._cache_bytes > _CACHE_BYTES and len(self._cache) > 1:
            self._cache_bytes -= self._cache.popitem(last=False)[1].nbytes
        return shingles

    def _fill(self, wanted: list[tuple[Input, NDArray[np.int64]]], ngram: int) -> None:
        from niels_cache_assets.dedup.signatures import Signer

        signer = Signer(ngram=ngram)
        groups = (texts for each, ordinals in wanted for texts in _texts(each, ordinals))
        filled, waiting = 0, list[NDArray[np.uint64]]()  # sets that are not in the file
        with closing(
            map_in_order(signer.shingle_sets, groups, threads=available_threads(), size_of=lambda texts: sum(map(len, texts)))
        ) as found:
            for sets, ends in found:
                self._ends[filled + 1 : filled + 1 + len(ends)] = self._ends[filled] + ends
                filled += len(ends)
                waiting.append(sets)
                if self._ends[filled] * 8 > _CACHE_BYTES:
                    self._file.writelines(each.data for each in waiting)
                    waiting.clear()
        if self._ends[filled] * 8 > _CACHE_BYTES:
            self._file.flush()
        else:
            self._held = np.concatenate([self._held, *waiting])


def _texts(corpus: Input, ordinals: NDArray[np.int64]) -> Iterator[list[str]]:
    """Yield the texts of the documents with these ascending ordinals, one list for each row group. Row groups without such documents are
    not read.
    """
    for _, rows in document_rows(document_files(corpus.directory, corpus.meta), ordinals, ["text"]):
        yield rows["text"].to_pylist()
