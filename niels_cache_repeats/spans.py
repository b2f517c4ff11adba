"""The search for repeated spans: text of at least `width` bytes that occurs earlier, byte for byte.

A window is `width` consecutive bytes of one document. Windows have an order: documents of val come before all others, then documents in
reading order, then positions in the document. A window is repeated if an earlier window has the same bytes, in whatever document. The
bytes of all repeated windows are struck, as intervals that are as long as possible: windows that overlap or touch are one interval. An
interval is cut inwards to whole lines, and nothing is struck if fewer than `width` bytes of it remain. So a text that repeats itself keeps
its first copy, and every byte that is struck has a copy that stays, except perhaps the line break after the last line.

    texts   ->  one file, and the start of each document
    scan    ->  (hash, position) of sampled grams, in ranges of hashes           about 1 in 50 positions
    ranges  ->  marks at the grams that occur twice
    scan    ->  (hash, position) of the windows whose sampled gram is marked     these are the candidates
    ranges  ->  pairs (position, first position with the same hash), in buckets of text
    verify  ->  the bytes of each pair are compared; runs of pairs
    cuts    ->  intervals, cut to lines

Equal windows have the same sampled gram (see `span_kernels.scan`), so a window is left out of the second scan only if it is not repeated.
Windows with the same hash and different bytes are hashed again in another base, so a collision changes nothing. The result depends only on
the texts and `width`. The numbers of ranges, buckets and threads change only time and memory.

A million copies of a line are a million records, each looked up once, and each has one pair, with the first copy. So time and disk are
linear in the text, whatever it repeats. A suffix array needs sorting, and 8 bytes of disk, for each byte of text; here only candidates do.
Disk: the text, and 16 bytes for each candidate and for each repeated window, of which a part is there at the same time. Memory: 25 bytes
for each document, 2 MB for each GB of text, up to 400 MB for each thread, and the result.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np

from niels_cache_assets.base.parallel import map_in_order
from niels_cache_assets.dedup.hashing import SHINGLE_BASE, mix
from niels_cache_assets.dedup.settings import SpansSettings
from niels_cache_repeats import span_kernels as kernels
from niels_cache_repeats.search import NOT_VAL, ComparedTexts, Cuts, TextBatch
from niels_cache_runtime.format.layout import Bools, Bytes, Ints, Uints
from niels_cache_runtime.format.reading import available_threads

CODE_VERSION = "1"  # raise this by hand if other text is cut for the same documents
KINDS = ("span",)
Step = Literal["texts", "scan grams", "compare grams", "scan windows", "compare windows", "verify"]
STEPS = get_args(Step)
_SHARES = (0.05, 0.3, 0.05, 0.35, 0.1, 0.15)  # of the time, for each step
DOCUMENTS = 1 << 18  # documents that are divided into pieces at once
PIECE = 1 << 21  # windows that are scanned at once
BUCKET = 1 << 24  # positions of a bucket, a power of two
MOST_RECORDS = 1 << 23  # of a file; a longer one is divided again
MOST_RANGES, MOST_BUCKETS = 256, 256
_PARTS = 16  # of a file or bucket that is too long
_FIRST_SHIFT, _LAST_SHIFT = 40, 28  # the bits of a key that divide files; those below choose a slot
_SLOTS = 1 << 10  # of a hash table at first
_RECORDS = 1 << 20  # records that are read at once
_BUFFER = 1 << 17  # bytes of the buffer of a file
_KEY_MASK = np.uint64(0xFFFFFFFFFFFFFFFF)
_U64 = (1 << 64) - 1

Item = TypeVar("Item")
Result = TypeVar("Result")
Texts = tuple[Bytes, Ints, Bools]
"""The bytes of consecutive texts, the bounds of each text in them, (n + 1,), and whether each is in val, (n,)."""


class RepeatedSpans(NamedTuple):
    """The spans to strike, sorted by document and start, (n,) int64 each.

    Attributes:
        documents: Number of the document, in reading order.
        starts: First byte in the UTF-8 text of the document.
        ends: End in bytes.
        kept_documents: The document that keeps the text at the start of the span.
        kept_starts: Where it is, in bytes.
    """

    documents: Ints
    starts: Ints
    ends: Ints
    kept_documents: Ints
    kept_starts: Ints


def scratch_bytes(text_bytes: int, settings: SpansSettings) -> int:
    """Estimate the size of the files of a search: the text, and 16 bytes for each candidate, about a quarter of all windows."""
    return 5 * text_bytes


def find_cuts(
    texts: ComparedTexts, settings: SpansSettings, *, scratch: Path, report: Callable[[float], None]
) -> Iterator[tuple[TextBatch, Cuts]]:
    """Yield the cuts of all batches that have some, in reading order.

    Args:
        texts: The documents.
        settings: The table [spans].
        scratch: An empty folder for files, which the caller removes.
        report: Called with the finished share, 0 to 1.
    """
    numbers = array("Q")  # the keys of all documents

    def read() -> Iterator[Texts]:
        for batch in texts.batches():
            numbers.frombytes(batch.keys.tobytes())
            yield batch.data, batch.bounds, batch.keys < NOT_VAL

    found = find_spans(
        read(), width=settings.min_bytes, scratch=scratch, ranges=settings.ranges, text_bytes=texts.text_bytes, report=report
    )
    keys, first = np.frombuffer(numbers, np.uint64), 0
    for batch in texts.batches() if len(found.documents) else ():
        last = first + len(batch.keys)
        own = slice(*np.searchsorted(found.documents, [first, last]))
        documents, starts, ends, kept_documents, kept_starts = (column[own] for column in found)
        if len(documents):
            report(1.0)
            yield batch, Cuts(documents - first, starts, ends, np.zeros(len(documents), np.int8), keys[kept_documents], kept_starts)
        first = last


def find_spans(
    texts: Iterable[Texts],
    *,
    width: int,
    scratch: Path,
    ranges: int | None = None,
    threads: int | None = None,
    text_bytes: int = 0,
    report: Callable[[float], None] = lambda share: None,
) -> RepeatedSpans:
    """Return the repeated spans of texts.

    Args:
        texts: The texts, in reading order.
        width: Bytes of the shortest span.
        scratch: An empty folder for files, which the caller removes.
        ranges: The number of ranges of hashes. None: one for each 4 MB of text, at most MOST_RANGES.
        threads: None: one for each core.
        text_bytes: About how many bytes the texts have, for the report.
        report: Called with the finished share, 0 to 1.
    """

    def report_step(step: Step, share: float) -> None:
        before = sum(_SHARES[: STEPS.index(step)])
        report(before + _SHARES[STEPS.index(step)] * min(1.0, share))

    documents = _Documents.write(texts, scratch, lambda size: report_step("texts", size / max(text_bytes, size)))
    if len(documents.text) == 0:
        return _result(documents, np.empty((0, 3), np.int64), width)
    search = _Search(
        documents=documents,
        width=width,
        gram=(width + 1) // 2,
        scratch=scratch,
        ranges=ranges or min(MOST_RANGES, 1 + (len(documents.text) >> 22)),
        threads=threads or available_threads(),
        report=report_step,
    )
    return _result(documents, search.runs(), width)


@dataclass(frozen=True, kw_only=True)
class _Documents:
    """All texts in one array, with a newline after each.

    Attributes:
        text: The bytes of all texts, mapped into memory.
        starts: Start of each document, and the end of the last one, (documents + 1,).
        is_val: Whether each document is in val, (documents,).
    """

    text: Bytes
    starts: Ints
    is_val: Bools

    @classmethod
    def write(cls, texts: Iterable[Texts], scratch: Path, report: Callable[[int], None]) -> _Documents:
        """Write the texts to a file, and open it."""
        path, starts, is_val, size = scratch / "texts", array("q", [0]), bytearray(), 0
        with open(path, "wb", buffering=1 << 20) as file:
            for data, bounds, in_val in texts:
                for start, end in pairwise(bounds.tolist()):
                    file.write(data[start:end].data)
                    file.write(b"\n")
                starts.frombytes((size + bounds[1:] + np.arange(1, len(bounds))).tobytes())
                is_val += in_val.tobytes()
                size = starts[-1]
                report(size)
        text = np.memmap(path, np.uint8, "r").view(np.ndarray) if size else np.empty(0, np.uint8)
        return cls(text=text, starts=np.frombuffer(starts, np.int64), is_val=np.frombuffer(is_val, np.bool_))

    def locate(self, positions: Ints) -> Ints:
        """Return the documents of positions, (n,)."""
        return np.searchsorted(self.starts, positions, side="right") - 1

    def pieces(self, width: int) -> Iterator[tuple[Ints, Ints]]:
        """Yield start and end of the windows of documents, in the order in which copies are kept, about PIECE windows at a time."""
        for in_val in (True, False):
            for block in range(0, len(self.is_val), DOCUMENTS):
                numbers = block + np.flatnonzero(self.is_val[block : block + DOCUMENTS] == in_val)
                starts = self.starts[numbers]
                windows = np.maximum(0, self.starts[numbers + 1] - starts - width)  # without the newline
                ends = np.cumsum(windows)
                for begin in range(0, int(ends[-1]) if len(ends) else 0, PIECE):
                    first, last = np.searchsorted(ends, [begin, begin + PIECE - 1], side="right")
                    own = slice(first, min(last + 1, len(ends)))
                    before = ends[own] - windows[own]
                    low, high = np.maximum(before, begin), np.minimum(ends[own], begin + PIECE)
                    some = low < high
                    offsets = starts[own][some] - before[some]
                    yield low[some] + offsets, high[some] + offsets


@dataclass(frozen=True, kw_only=True)
class _Search:
    """The search for repeated windows in texts on disk."""

    documents: _Documents
    width: int
    gram: int
    scratch: Path
    ranges: int
    threads: int
    report: Callable[[Step, float], None]

    def runs(self) -> Ints:
        """Return runs of repeated windows, (n, 3): first position, an earlier position with the same bytes, and the number of windows.

        They are sorted by position, and cover the bytes of all repeated windows.
        """
        text, lock = self.documents.text, Lock()
        marks = np.zeros((len(text) >> kernels.MARK_SHIFT + 3) + 1, np.uint8)

        def mark(pairs: Uints) -> None:
            with lock:  # the loop reads and writes whole bytes
                kernels.mark(pairs, marks)

        self._find_earlier(self._scan("grams", np.zeros(0, np.uint8)), mark, step="compare grams")
        candidates = self._scan("windows", marks)
        size = max(BUCKET, 1 << (len(text) // MOST_BUCKETS).bit_length())
        with _Divided(self.scratch, "bucket", -(-len(text) // size), shift=size.bit_length() - 1) as buckets:
            self._find_earlier(candidates, lambda pairs: buckets.add(buckets.divide(pairs)), step="compare windows")
        kept, different = [np.empty((0, 3), np.int64)], [np.empty(0, np.int64)]
        with self._map(lambda number: self._verify(buckets, number, number * size, size), range(buckets.count)) as found:
            for number, (runs, unequal) in enumerate(found):
                kept.append(runs)
                different.append(unequal)
                self.report("verify", (number + 1) / buckets.count)
        joined = np.concatenate([*kept, *self._search_again(np.concatenate(different))])
        return joined[np.argsort(joined[:, 0], kind="stable")]

    def _scan(self, name: str, marks: Bytes) -> _Divided:
        """Write the records of all sampled grams, or with marks of all candidates, in ranges of hashes."""
        text, (base, coefficients) = self.documents.text, _polynomial(0)
        leaving = np.stack([coefficients * np.uint64(pow(int(base), length - 1, 1 << 64)) for length in (self.gram, self.width)])

        def scan(piece: tuple[Ints, Ints]) -> tuple[Uints, Ints]:
            records = np.empty((int((piece[1] - piece[0]).sum()), 2), np.uint64)
            count = kernels.scan(text, *piece, self.width, self.gram, coefficients, leaving, base, _KEY_MASK, marks, records)
            return divided.divide(records[:count])

        done = 0
        pieces = self.documents.pieces(self.width)
        with _Divided(self.scratch, name, self.ranges, shift=_FIRST_SHIFT) as divided, self._map(scan, pieces) as found:
            for records in found:
                divided.add(records)
                done += PIECE
                self.report("scan windows" if len(marks) else "scan grams", done / len(text))
        return divided

    def _find_earlier(self, records: _Divided, consume: Callable[[Uints], None], *, step: Step) -> None:
        """Pass (position, first position with the same hash) of all records that have one to `consume`, and remove the records."""

        def find(records: _Divided, number: int, shift: int) -> None:
            if records.length(number) > MOST_RECORDS and shift > _LAST_SHIFT:
                parts = records.divide_again(number, _PARTS, shift=shift - 4)
                for part in range(_PARTS):
                    find(parts, part, shift - 4)
                return
            for pairs in _earlier(records.read(number)):
                consume(pairs)
            records.remove(number)

        with self._map(lambda number: find(records, number, _FIRST_SHIFT), range(records.count)) as found:
            for number, _ in enumerate(found):
                self.report(step, (number + 1) / records.count)

    def _verify(self, buckets: _Divided, number: int, begin: int, size: int) -> tuple[Ints, Ints]:
        """Return the runs of the bucket of `size` positions from `begin`, and the positions with other bytes than their earlier window."""
        text = self.documents.text
        count = min(size, len(text) - begin)
        if size > BUCKET:
            part = max(BUCKET, size // _PARTS)
            parts = buckets.divide_again(number, size // part, shift=part.bit_length() - 1)
            found = [self._verify(parts, index, begin + index * part, part) for index in range(-(-count // part))]
            return np.concatenate([runs for runs, _ in found]), np.concatenate([unequal for _, unequal in found])
        earlier = np.full(count, -1, np.int64)
        for pairs in buckets.read(number):
            kernels.place_pairs(pairs, begin, earlier)
        buckets.remove(number)
        runs, different = np.empty((2 * count // self.width + 4, 3), np.int64), np.empty(count, np.int64)
        kept, unequal = kernels.verify(text, begin, earlier, self.width, runs, different)
        return runs[:kept].copy(), different[:unequal].copy()

    def _search_again(self, positions: Ints) -> Iterator[Ints]:
        """Yield the repeated windows among those that share a hash with other bytes, as runs of one window."""
        documents, width, turn = self.documents, self.width, 0
        while len(positions):
            turn += 1
            base, coefficients = _polynomial(turn)
            is_val = documents.is_val[documents.locate(positions)]
            positions = positions[np.lexsort((positions, ~is_val))]
            keys = kernels.hash_windows(documents.text, positions, width, coefficients, base, _KEY_MASK)
            records = np.stack([keys, positions.astype(np.uint64)], axis=1)
            different = []
            for pairs in _earlier([records]):
                for position, other in pairs.astype(np.int64).tolist():
                    if np.array_equal(documents.text[position : position + width], documents.text[other : other + width]):
                        yield np.array([[position, other, 1]])
                    else:
                        different.append(position)
            positions = np.array(different, np.int64)

    def _map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> closing[Generator[Result]]:
        return closing(map_in_order(function, items, threads=self.threads, size_of=lambda _: 0))


class _Divided:
    """Records, (n, 2), divided over files by their first column. It is a context manager while records are added."""

    def __init__(self, scratch: Path, name: str, count: int, *, shift: int) -> None:
        self.count = count
        self._scratch, self._name = scratch, name
        self._paths = [scratch / f"{name}_{number}" for number in range(count)]
        self._shift, self._lock, self._stack = shift, Lock(), ExitStack()

    def __enter__(self) -> _Divided:
        files = (open(path, "wb", buffering=_BUFFER) for path in self._paths)  # noqa: SIM115  (closed by __exit__)
        self._files = [self._stack.enter_context(file) for file in files]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def divide(self, records: Uints) -> tuple[Uints, Ints]:
        """Return records in the order of their files, and their end for each file. The order in a file stays."""
        divided, ends = np.empty_like(records), np.zeros(self.count, np.int64)
        kernels.divide(records, self._shift, divided, ends)
        return divided, ends

    def add(self, divided: tuple[Uints, Ints]) -> None:
        """Append divided records to their files."""
        records, ends = divided
        with self._lock:
            for number in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
                self._files[number].write(records[ends[number - 1] if number else 0 : ends[number]].data)

    def read(self, number: int) -> Iterator[Uints]:
        """Yield the records of a file, in blocks."""
        with open(self._paths[number], "rb") as file:
            while len(block := np.fromfile(file, np.uint64, 2 * _RECORDS)):
                yield block.reshape(-1, 2)

    def length(self, number: int) -> int:
        """Return the number of records of a file."""
        return self._paths[number].stat().st_size // 16

    def divide_again(self, number: int, count: int, *, shift: int) -> _Divided:
        """Replace a file by several files, which are not open."""
        with _Divided(self._scratch, f"{self._name}_{number}", count, shift=shift) as parts:
            for records in self.read(number):
                parts.add(parts.divide(records))
        self.remove(number)
        return parts

    def remove(self, number: int) -> None:
        """Remove a file."""
        self._paths[number].unlink()


def _earlier(blocks: Iterable[Uints]) -> Iterator[Uints]:
    """Yield (position, first position with the same key) for each record that is not the first with its key, in blocks.

    The memory is 32 to 128 bytes for each different key.

    Args:
        blocks: Keys and positions, (n, 2) each, in the order in which copies are kept.
    """
    keys, first, filled = np.zeros(_SLOTS, np.uint64), np.empty(_SLOTS, np.uint64), 0
    for records in blocks:
        pairs, begin = np.empty_like(records), 0
        while begin < len(records):
            begin, paired, filled = kernels.find_earlier(records, begin, keys, first, filled, pairs)
            yield pairs[:paired]
            if begin < len(records):
                keys, first = kernels.grow(keys, first, 4 * len(keys))


def _polynomial(turn: int) -> tuple[np.uint64, Uints]:
    """Return an odd base and the coefficients of the 256 bytes, the output of splitmix64 from another seed for each turn."""
    numbers = [mix((SHINGLE_BASE * (257 * turn + index + 1)) & _U64) for index in range(257)]
    return np.uint64(numbers[0] | 1), np.array(numbers[1:], np.uint64)


def _result(documents: _Documents, runs: Ints, width: int) -> RepeatedSpans:
    """Join runs to intervals, cut them to lines, and find the copies that stay."""
    positions, sources = runs[:, 0], runs[:, 1]
    run_ends = np.maximum.accumulate(positions + runs[:, 2] - 1 + width)
    is_start = np.ones(len(runs), np.bool_)
    is_start[1:] = positions[1:] > run_ends[:-1]
    starts, ends = positions[is_start], run_ends[np.append(is_start[1:], True)] if len(runs) else run_ends
    own = documents.locate(starts)
    cuts = np.empty((len(starts), 2), np.int64)
    doc_starts, doc_ends = documents.starts[own], documents.starts[own + 1] - 1
    remains = kernels.cut_to_lines(documents.text, starts, ends, doc_starts, doc_ends, width, cuts)
    cuts, ends = cuts[remains], np.minimum(ends, cuts[:, 1])[remains]
    kept = cuts[:, 0].copy()
    moved = np.arange(len(kept))
    while len(moved):  # from copy to earlier copy, until one is not struck
        run = np.searchsorted(positions, kept[moved], side="right") - 1
        kept[moved] += sources[run] - positions[run]
        cut = np.searchsorted(cuts[:, 0], kept[moved], side="right") - 1
        moved = moved[(cut >= 0) & (kept[moved] < ends[cut])]
    own, keeps = documents.locate(cuts[:, 0]), documents.locate(kept)
    doc_starts = documents.starts[own]
    return RepeatedSpans(
        documents=own,
        starts=cuts[:, 0] - doc_starts,
        ends=cuts[:, 1] - doc_starts,
        kept_documents=keeps,
        kept_starts=kept - documents.starts[keeps],
    )
