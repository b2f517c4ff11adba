"""The documents that a search compares, and the files of the cuts that it finds.

The order decides which copy of a text stays: val comes before everything else over all data sets, then data sets in the given order, then
documents and their text in the order of the corpus. A document without a split (token budgets decide it later) is not in val.

Memory: a few row groups of text (2 MB each), the splits and the drop lists (2 bytes a document), and 65,536 cuts of each data set.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.documents import object_array
from niels_cache_assets.corpus.layout import CUTS, duplicates_file
from niels_cache_assets.corpus.prepared import PreparedCorpus
from niels_cache_assets.disk.table_file import ParquetWriter, sealing
from niels_cache_assets.disk.writers import Files
from niels_cache_assets.sources.reading.rows import column_values
from niels_cache_repeats.cuts import cut_text
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Bytes, Ints, Uints

DOCUMENT_BITS = 32
NOT_VAL = 1 << DOCUMENT_BITS  # set in the key of a document that is not in val
MAX_BYTES = 1 << 30  # of one document
_ROWS_PER_GROUP = 65_536
_SPLIT_NAMES = [*SPLITS, "unknown"]
_ASCII_BLANK = 32  # this byte and those below it are white space or control characters
_SHORT_REST = 64  # bytes: a rest up to this length may consist of white space beyond ASCII


class TextBatch(NamedTuple):
    """Texts of consecutive documents of one data set, without dropped documents.

    Attributes:
        corpus: The number of the data set.
        ordinals: The ordinals of the documents in their corpus, (n,) int64, ascending.
        keys: Their keys, (n,) uint64. Of two copies, the one in the document with the smaller key stays. A key is the number of the
            document, which counts the documents of all data sets, and NOT_VAL if it is not in val.
        data: The UTF-8 bytes of all texts.
        bounds: Where each text begins in `data`, and where the last one ends, (n + 1,) int64.
    """

    corpus: int
    ordinals: Ints
    keys: Uints
    data: Bytes
    bounds: Ints


class Cuts(NamedTuple):
    """The cuts in the documents of a batch, sorted by row and start. The cuts of a document do not overlap.

    Attributes:
        rows: The row of the document in its batch, (m,) int64.
        starts: Where the cut text begins, in bytes from the start of the document's text, (m,) int64. Never inside a character.
        ends: Where it ends, (m,) int64.
        kinds: The index into KINDS of the module, (m,) int8.
        because: The key of the document with the copy that stays, (m,) uint64.
        because_starts: Where this copy begins in its document's text, in bytes, (m,) int64.
    """

    rows: Ints
    starts: Ints
    ends: Ints
    kinds: np.ndarray
    because: Uints
    because_starts: Ints


class ComparedTexts:
    """The documents of several data sets, as the steps before have left them.

    Attributes:
        corpora: The data sets, in the order of comparison.
        documents: The number of documents, including dropped ones. Keys are below it, apart from NOT_VAL.
        text_bytes: About the number of bytes of all texts.
    """

    def __init__(self, corpora: Sequence[PreparedCorpus]) -> None:
        self.corpora = corpora
        self._starts = np.cumsum([0, *(int(each.meta["documents"]["kept"]) for each in corpora)])
        self.documents = int(self._starts[-1])
        self.text_bytes = sum(int(each.meta["bytes"]["after"]) for each in corpora)
        if self.documents >= NOT_VAL:
            raise NielsCacheError(
                f"{self.documents:,} documents are too many for one search; take a step out of `prepare` of some data sets"
            )

    def batches(self) -> Iterator[TextBatch]:
        """Yield all documents in reading order: data set by data set, in the order of the corpus. Each call reads them again."""
        for corpus, prepared in enumerate(self.corpora):
            for first, table in prepared.groups(0, int(prepared.meta["documents"]["kept"]), ["text"]):
                ordinals = np.arange(first, first + len(table))
                stays = ~prepared.is_dropped[ordinals]
                if not stays.any():
                    continue
                texts = table["text"] if stays.all() else table["text"].filter(stays)
                ordinals = ordinals[stays]
                if prepared.cuts:
                    cut = object_array(column_values(texts), len(texts))
                    for each in prepared.cuts:
                        each.apply(ordinals, cut)
                    texts = pa.chunked_array([pa.array(cut, pa.string())])
                data, bounds = _bytes_of(texts)
                if (longest := int(np.diff(bounds).max())) >= MAX_BYTES:
                    raise NielsCacheError(
                        f"{prepared.name}: a document has {longest:,} bytes; texts of 1 GiB and more cannot be searched for repeats"
                    )
                not_val = (prepared.splits[ordinals] != SPLITS.index("val")).astype(np.uint64)
                keys = (ordinals + self._starts[corpus]).astype(np.uint64) | not_val << np.uint64(DOCUMENT_BITS)
                yield TextBatch(corpus, ordinals, keys, data, bounds)

    def locate(self, keys: Uints) -> tuple[Ints, Ints, Ints]:
        """Return the number of the data set, the ordinal, and the split (an index into SPLITS, or NO_SPLIT) of documents, (n,) each."""
        numbers = (keys & np.uint64(NOT_VAL - 1)).astype(np.int64)
        corpora = np.searchsorted(self._starts, numbers, side="right") - 1
        ordinals = numbers - self._starts[corpora]
        splits = np.empty(len(keys), np.int64)
        for corpus in np.unique(corpora).tolist():
            own = corpora == corpus
            splits[own] = self.corpora[corpus].splits[ordinals[own]]
        return corpora, ordinals, splits


def _bytes_of(texts: pa.ChunkedArray) -> tuple[Bytes, Ints]:
    """Return the UTF-8 bytes of texts, without a copy if they are in one chunk, and the bounds of each text in them."""
    array = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    _, offsets, data = array.buffers()
    width = np.int64 if pa.types.is_large_string(array.type) else np.int32
    bounds = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    content.flags.writeable = False  # numba compiles the loops once for arrays that can be written, and once for others
    return content[bounds[0] : bounds[-1]], bounds - bounds[0]


def write_cuts(
    step: str,
    corpora: Sequence[PreparedCorpus],
    settings: Any,
    *,
    directory: Path,
    scratch: Path,
    files: Files,
    report: Callable[[float], None],
) -> dict[str, Any]:
    """Search, write the cuts of each data set to `directory`, and return the counts by data set, for meta.json.

    Args:
        step: The step, which names the module of this package that searches.
        corpora: The data sets, in the order of comparison.
        settings: The table of the step.
        directory: The folder to write to.
        scratch: An empty folder for files of the search. The caller removes it.
        files: The files of meta.json, to which those of the cuts are added.
        report: Called with the finished share, 0 to 1.

    Raises:
        NielsCacheError: If a corpus is replaced, or cannot be read.
    """
    module = load_beside("repeats", step)
    texts = ComparedTexts(corpora)
    found = module.find_cuts(texts, settings, scratch=scratch, report=report)
    counts: dict[str, Any] = {}
    waiting: tuple[TextBatch, Cuts] | None = next(found, None)
    for corpus, prepared in enumerate(corpora):
        own, groups = _CountedCuts(texts, module.KINDS), 0
        with sealing(ParquetWriter(directory, duplicates_file(prepared.name), CUTS, files)) as table:
            while waiting is not None and waiting[0].corpus == corpus:
                for group in own.add(*waiting):
                    table.write_group(group)
                    groups += 1
                waiting = next(found, None)
            if len((rest := own.rest())[0]) or not groups:  # a file without cuts still has its columns
                table.write_group(rest)
        counts[prepared.name] = own.meta(int(prepared.meta["documents"]["kept"]), prepared.kept)
    if waiting is not None:
        raise NielsCacheError(f"the search for repeated {step} returned cuts out of order; please report this as a bug")
    return counts


class _CountedCuts:
    """The cuts of one data set, which are counted, hashed, and collected into row groups."""

    def __init__(self, texts: ComparedTexts, kinds: Sequence[str]) -> None:
        self._texts, self._kinds = texts, kinds
        self._hash = hashlib.sha256()
        self._waiting: list[list[np.ndarray]] = []
        self._rows = 0
        self._emptied = self._cut_documents = self._characters = self._bytes = 0
        self._cuts: Counter[str] = Counter()
        self._pairs: dict[tuple[str, ...], list[int]] = {}

    def add(self, batch: TextBatch, cuts: Cuts) -> Iterator[list[np.ndarray]]:
        """Count the cuts of a batch, and yield the columns of each complete row group."""
        from niels_cache_repeats.line_kernels import measure

        if not len(cuts.rows):
            return
        names = np.array([each.name for each in self._texts.corpora], dtype=object)
        split_names = np.array([*SPLITS, None], dtype=object)
        begins = batch.bounds[cuts.rows]
        characters, visible = measure(batch.data, begins + cuts.starts, begins + cuts.ends)
        rows, firsts = np.unique(cuts.rows, return_index=True)
        totals, shown = measure(batch.data, batch.bounds[rows], batch.bounds[rows + 1])
        left = shown - np.add.reduceat(visible, firsts)
        emptied = left == 0
        sizes = np.diff(batch.bounds)[rows]
        lost = np.add.reduceat(cuts.ends - cuts.starts, firsts)
        for number in np.flatnonzero(~emptied & (left <= _SHORT_REST)).tolist():
            own = slice(firsts[number], firsts[number + 1] if number + 1 < len(firsts) else len(cuts.rows))
            emptied[number] = not _rest(batch, int(rows[number]), cuts.starts[own], cuts.ends[own]).strip()
        self._emptied += int(emptied.sum())
        self._cut_documents += len(rows)
        self._characters += int(np.where(emptied, totals, np.add.reduceat(characters, firsts)).sum())
        self._bytes += int(np.where(emptied, sizes, lost).sum())
        ordinals = batch.ordinals[cuts.rows]
        for column in (ordinals, cuts.starts, cuts.ends):
            self._hash.update(np.ascontiguousarray(column, "<i8").tobytes())
        corpora, because_ordinals, because_splits = self._texts.locate(cuts.because)
        splits = self._texts.corpora[batch.corpus].splits[ordinals].astype(np.int64)
        self._count_pairs(cuts, splits, corpora, because_splits)
        columns = [
            ordinals,
            split_names[splits],
            cuts.starts,
            cuts.ends,
            np.array(self._kinds, dtype=object)[cuts.kinds],
            names[corpora],
            because_ordinals,
            split_names[because_splits],
            cuts.because_starts,
            np.repeat(emptied, np.diff([*firsts, len(cuts.rows)])),
        ]
        self._waiting.append(columns)
        self._rows += len(ordinals)
        while self._rows >= _ROWS_PER_GROUP:
            joined = self.rest()
            yield [column[:_ROWS_PER_GROUP] for column in joined]
            self._waiting = [[column[_ROWS_PER_GROUP:] for column in joined]]
            self._rows = len(joined[0]) - _ROWS_PER_GROUP

    def rest(self) -> list[np.ndarray]:
        """Return the columns of the cuts that were not yielded."""
        if not self._waiting:
            return [np.empty(0, dtype={"int64": np.int64, "bool": bool}.get(kind, object)) for kind in CUTS.values()]
        return [np.concatenate(parts) for parts in zip(*self._waiting, strict=True)]

    def _count_pairs(self, cuts: Cuts, splits: Ints, corpora: Ints, because_splits: Ints) -> None:
        shape = (len(_SPLIT_NAMES), len(self._texts.corpora), len(_SPLIT_NAMES), len(self._kinds))
        codes = np.ravel_multi_index((splits % len(_SPLIT_NAMES), corpora, because_splits % len(_SPLIT_NAMES), cuts.kinds), shape)
        found, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
        sizes = np.bincount(inverse, weights=cuts.ends - cuts.starts).astype(np.int64)
        for code, count, size in zip(found.tolist(), counts.tolist(), sizes.tolist(), strict=True):
            split, corpus, because_split, kind = np.unravel_index(code, shape)
            key = (_SPLIT_NAMES[split], self._texts.corpora[corpus].name, _SPLIT_NAMES[because_split], self._kinds[kind])
            total = self._pairs.setdefault(key, [0, 0])
            total[0] += count
            total[1] += size
            self._cuts[self._kinds[kind]] += count

    def meta(self, documents: int, compared: int) -> dict[str, Any]:
        """Return the counts for meta.json."""
        keys = ("split", "because_dataset", "because_split", "kind")
        return {
            "documents": documents,
            "compared": compared,
            "cut_documents": self._cut_documents,
            "emptied": self._emptied,
            "cuts": {kind: self._cuts[kind] for kind in self._kinds},
            "characters": self._characters,
            "bytes": self._bytes,
            "pairs": [
                {**dict(zip(keys, pair, strict=True)), "cuts": cuts, "bytes": size} for pair, (cuts, size) in sorted(self._pairs.items())
            ],
            "cuts_sha256": self._hash.hexdigest(),
        }


def _rest(batch: TextBatch, row: int, starts: Ints, ends: Ints) -> str:
    """Return what cuts leave of a text."""
    return cut_text(bytes(batch.data[batch.bounds[row] : batch.bounds[row + 1]]).decode(), starts.tolist(), ends.tolist())
