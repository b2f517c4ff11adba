"""The order of the documents of several corpora.

Positions in this order are converted to (corpus, ordinal), where the ordinal is the number of the document in its corpus. Of several
duplicates, the document that comes first in this order is kept. The memory is 5 bytes a document, about 100 bytes for each dropped document
while they are sorted, and one or two blocks of signatures (8 MB each with 128 slots).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.base.parallel import map_in_order
from niels_cache_assets.corpus.layout import DIGESTS_NAME, SIGNATURES_NAME, corpus_dir
from niels_cache_assets.corpus.prepared import document_files, document_rows, document_splits
from niels_cache_assets.dedup.signatures import Signatures, Signer, estimated_jaccard, jaccard
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Array, Ints, Uints
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.reading import available_threads

if TYPE_CHECKING:
    from niels_cache_assets.dedup.greedy import DropDecisions

_BLOCK = 16_384  # number of documents whose signatures are read at once: 8 MB with 128 slots


class ArrayRows:
    """The (n, width) array of a .npy file, open for reading rows. It is a context manager.

    The file stays open, so it can be read even if a new file replaces it. The file is not memory-mapped. Reading scattered rows of a memory
    map would keep the pages around each row in memory, and soon the whole file. The returned rows take memory, and the longest run of
    consecutive rows takes it twice. Each run costs one system call.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115  (closed by __exit__)
        except OSError as error:
            raise NielsCacheError(f"{path}: cannot be read ({error.strerror}); prepare this data set again with force") from error
        try:
            version = np.lib.format.read_magic(self._file)
            read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            (self._rows, self._width), _, self._dtype = read_header(self._file)
        except ValueError as error:
            self._file.close()
            raise self._damaged() from error
        self._first = self._file.tell()

    def __enter__(self) -> ArrayRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return int(self._rows)

    @property
    def width(self) -> int:
        return int(self._width)

    def __getitem__(self, rows: NDArray[np.integer[Any]]) -> Array:
        """Return the rows with these numbers as an array, (n, width), in the requested order.

        Args:
            rows: (n,) integers.

        Raises:
            NielsCacheError: If a row does not exist.
        """
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self._rows:
            raise self._damaged()
        out = np.empty((len(rows), self._width), dtype=self._dtype)
        row_bytes = self._width * self._dtype.itemsize
        bounds = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)] if len(rows) else []
        for start, end in pairwise(bounds):
            size = (end - start) * row_bytes
            data = os.pread(self._file.fileno(), size, self._first + int(rows[start]) * row_bytes)
            if len(data) < size:
                raise self._damaged()
            out[start:end] = np.frombuffer(data, self._dtype).reshape(-1, self._width)
        return out

    def _damaged(self) -> NielsCacheError:
        return NielsCacheError(f"{self._path}: does not match its meta.json; prepare this data set again with force")


@dataclass(frozen=True, kw_only=True)
class CorpusInput:
    """One corpus.

    Attributes:
        name: The name of the data set.
        directory: The folder of the corpus.
        meta: Its meta.json.
        order: (documents,) uint32, or uint64 above 2^32 documents, the ordinals of the documents. All documents of val come first, then all
            remaining documents; both parts are in input order.
    """

    name: str
    directory: Path
    meta: Meta
    order: np.ndarray

    def signatures(self) -> Iterator[Signatures]:
        """Yield the signatures in blocks, in `order`."""
        with ArrayRows(self.directory / DIGESTS_NAME) as digests, self.slots() as slots:
            for first in range(0, len(self.order), _BLOCK):
                rows = self.order[first : first + _BLOCK]
                yield Signatures(digests=digests[rows], slots=slots[rows])

    def slots(self) -> ArrayRows:
        """Return the slots (the numbers of the signature) of all documents. Row i belongs to the document with ordinal i."""
        return ArrayRows(self.directory / SIGNATURES_NAME)


DROPPED_COLUMNS = "corpora ordinals splits exact similarity because_corpora because_ordinals because_splits"
"""The columns of the dropped documents, each (n,): the corpus, the ordinal and the split of a dropped document, whether it is an exact
duplicate, the similarity of the two documents, and the corpus, the ordinal and the split of the kept document that is the reason."""


class CorpusInputs:
    """The corpora, in the order of comparison. Of several duplicates, the first document in this order is kept.

    Attributes:
        all: The corpora.
        splits: The split of the document at each position, (n,) int8, see `document_splits`.
    """

    def __init__(self, registry: Registry, root: Path, metas: dict[str, Meta]) -> None:
        orders, splits = [], []
        for name, meta in metas.items():
            own = document_splits(meta, corpus_dir(root, name), registry.pretrain[name], registry.build.seed)
            order = np.argsort(own != SPLITS.index("val"), kind="stable")
            orders.append(order.astype(np.uint32 if len(own) <= 1 << 32 else np.uint64))
            splits.append(own[order])
        self._starts = np.cumsum([0, *map(len, orders)])
        self._ordinals, self.splits = np.concatenate(orders), np.concatenate(splits)
        self.all = [
            CorpusInput(name=name, directory=corpus_dir(root, name), meta=metas[name], order=order)
            for name, order in zip(metas, np.split(self._ordinals, self._starts[1:-1]), strict=True)
        ]

    def drops(self, dropped: DropDecisions) -> np.recarray:
        """Return the result of `drop_later`, with positions converted to corpus and ordinal, as records sorted by both (DROPPED_COLUMNS).

        If `drop_later` did not measure a similarity, it is estimated from the signatures.
        """
        own, because = self.locate(dropped.ordinals), self.locate(dropped.kept_copies)
        similarity = dropped.similarity.astype(np.float64)
        unknown = np.flatnonzero(np.isnan(similarity))  # not measured, so it is estimated
        for first in range(0, len(unknown), _BLOCK):
            block = unknown[first : first + _BLOCK]
            similarity[block] = estimated_jaccard(self.slots(dropped.ordinals[block]), self.slots(dropped.kept_copies[block]))
        columns = [*own, self.splits[dropped.ordinals], dropped.exact, similarity, *because, self.splits[dropped.kept_copies]]
        formats = [column.dtype for column in columns]
        found = np.rec.fromarrays(columns, formats=formats, names=DROPPED_COLUMNS.split(), aligned=True)
        return found[np.lexsort((found.ordinals, found.corpora))].view(np.recarray)

    def locate(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (corpus, ordinal) for positions in the order of all corpora, (n,) int16 and (n,) int64."""
        positions = positions.astype(np.int64)
        corpora = (np.searchsorted(self._starts, positions, side="right") - 1).astype(np.int16)
        return corpora, self._ordinals[positions].astype(np.int64)

    def slots(self, positions: np.ndarray) -> np.ndarray:
        """Return the slots of the documents at these positions, (n, num_perm) uint32."""
        corpora, ordinals = self.locate(positions)
        with ExitStack() as stack:
            readers = [stack.enter_context(each.slots()) for each in self.all]
            slots = np.empty((len(positions), readers[0].width), dtype=np.uint32)
            for corpus, rows in enumerate(readers):
                own = corpora == corpus
                slots[own] = rows[ordinals[own]]
        return slots

    def similarity(self, positions: Array, *, ngram: int, units: str, path: Path) -> Callable[[int, int], float]:
        """Return a function that returns the exact Jaccard similarity of the documents at two positions in the order of all corpora.

        Each text at `positions` is read once, in the order of the corpora, and cut into shingles (runs of words), on all cores. The sets of
        shingles, 8 bytes a word, are written to `path`, and mapped into memory. The memory is 24 bytes for each document, and a few row
        groups of text.

        Args:
            positions: (n,) ascending.
            ngram: The number of words of a shingle.
            units: What a word is (`Signer`).
            path: The file of the shingles, which the caller removes.
        """
        corpora, ordinals = self.locate(positions)
        order = np.lexsort((ordinals, corpora))
        index_in_file = np.empty(len(order), dtype=np.int64)
        index_in_file[order] = np.arange(len(order))
        ends = np.zeros(len(order) + 1, dtype=np.int64)  # positions in the file, in shingles; element 0 is the start of the file
        groups = (texts for corpus, each in enumerate(self.all) for texts in _texts(each, np.sort(ordinals[corpora == corpus])))
        filled = 0
        sets = map_in_order(
            Signer(ngram=ngram, units=units).shingle_sets, groups, threads=available_threads(), size_of=lambda texts: sum(map(len, texts))
        )
        with open(path, "wb") as file, closing(sets) as found:
            for hashes, ends_of_group in found:
                ends[filled + 1 : filled + 1 + len(ends_of_group)] = ends[filled] + ends_of_group
                filled += len(ends_of_group)
                file.write(hashes.data)
        shingles = np.memmap(path, np.uint64, "r", shape=(int(ends[-1]),)) if ends[-1] else np.empty(0, np.uint64)

        def shingles_of(position: int) -> Uints:
            index = index_in_file[bisect_left(positions, position)]
            return shingles[ends[index] : ends[index + 1]]

        return lambda position, other: jaccard(shingles_of(position), shingles_of(other))


def _texts(corpus: CorpusInput, ordinals: Ints) -> Iterator[list[str]]:
    """Yield the texts of the documents with these ascending ordinals, one list for each row group.

    Row groups without such documents are not read.
    """
    for _, rows in document_rows(document_files(corpus.directory, corpus.meta), ordinals, ["text"]):
        yield rows["text"].to_pylist()
