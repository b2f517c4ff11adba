"""The search for repeated lines and paragraphs.

A unit is a line, or a paragraph of several lines between blank lines. Units are compared without white space at their ends. A unit without
letters is never compared. A unit in more than `max_copies` documents stays only in its first place. A document counts once, so a refrain
that only its own document repeats has no copies. Not every other copy is cut, because the head of a source file, a quoted
verse or an item of a list is repeated for good reason, and its text would be torn:

1. A paragraph of several lines goes as a whole or not at all. Its single lines go only next to lines of 100 characters and more (or to each
   other, or to the start or end of the paragraph), because texts with such lines have a paragraph in each line. If at least half of the
   lines are that long, whole sentences count as well.
2. What goes must stand between prose or ends of the document, blank lines or not. A paragraph is prose if at least half of its lines have
   60 characters and more. Verses, headings, items and code are shorter or marked, so between them everything stays. Only a single line,
   such as a title, may come between it and prose after it. A passage of four repeated paragraphs of prose and more goes anywhere.
3. Indented lines, items of lists, rows of tables, lines of code and underlined titles go only together with the prose around them: if the
   paragraphs that go together have at least as many of prose. So a whole licence goes, but not the clauses without their frame.
4. What a line with a colon at its end announces stays, and so does such a line before text that stays.

Two passes over the text. The first one writes a record for each unit (24 bytes: a hash of 128 bits and the place) to files by hash. Each
file is sorted in memory, and each place that may go is written, with the first place, to files by position. The second pass reads these
places beside the text, applies the rule, and yields cuts in reading order. No line is compared byte by byte: among 10^12 different lines,
the probability of two equal hashes is 10^-15.

Memory: 128 MB of records (sorted in three times as much), 64 MB of buffers, and the places in 256 MB of text. Disk: 24 bytes a unit, about
half of the text, divided by the number of ranges; the text is read once more for each range. Copies of one unit are in one file, so a
unit with more than five million copies takes about 100 bytes of memory for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from niels_cache_assets.base.parallel import map_in_order
from niels_cache_repeats.search import NOT_VAL, ComparedTexts, Cuts, TextBatch
from niels_cache_runtime.format.layout import Ints, Uints
from niels_cache_runtime.format.reading import available_threads

if TYPE_CHECKING:
    from niels_cache_assets.dedup.settings import LinesSettings

CODE_VERSION = "1"  # raise it by hand when the same texts and settings lead to other cuts
KINDS = ("line", "paragraph")
_BYTES_PER_UNIT = 40  # of text, estimated; more units need more memory
_RECORD = np.dtype([("first", "<u8"), ("second", "<u8"), ("place", "<u8")])
_MARK = np.dtype([("place", "<u8"), ("because", "<u8")])
_PART_BYTES = 128_000_000  # of records that are sorted at once
_BUFFER_BYTES = 64_000_000
_SEGMENT_BYTES = 256_000_000  # of text whose marks are in memory at once
_OFFSET_BITS = 31  # line_kernels.OFFSET_BITS, which is imported when numba is needed


def scratch_bytes(text_bytes: int, settings: LinesSettings) -> int:
    """Return about the number of bytes that a search writes to its scratch folder."""
    return text_bytes * _RECORD.itemsize // _BYTES_PER_UNIT // settings.ranges


def find_cuts(
    texts: ComparedTexts, settings: LinesSettings, *, scratch: Path, report: Callable[[float], None]
) -> Iterator[tuple[TextBatch, Cuts]]:
    """Yield the cuts of each batch of texts, in reading order. Batches without cuts may be left out.

    Args:
        texts: The texts.
        settings: The table [lines].
        scratch: An empty folder.
        report: Called with the finished share, 0 to 1.
    """
    search = _Search(texts, settings, scratch, report)
    search.mark_all()
    yield from search.cuts()


class _Search:
    def __init__(self, texts: ComparedTexts, settings: LinesSettings, scratch: Path, report: Callable[[float], None]) -> None:
        self._texts, self._settings, self._scratch = texts, settings, scratch
        self._passes, self._pass = settings.ranges + 1, 0
        self._report = report
        size = max(1, texts.text_bytes * _RECORD.itemsize // _BYTES_PER_UNIT)
        self._parts = -(-size // (_PART_BYTES * settings.ranges))  # of one range
        self._segments = [0]  # the number of the first document of each segment

    def _progress(self, batches: Iterator[TextBatch]) -> Iterator[TextBatch]:
        """Yield the batches of one pass, and report how much of the text was read."""
        done = 0
        for batch in batches:
            yield batch
            done += len(batch.data)
            self._report((self._pass + min(1.0, done / max(1, self._texts.text_bytes))) / self._passes)
        self._pass += 1

    def mark_all(self) -> None:
        """Write the marks of all ranges."""
        for number in range(self._settings.ranges):
            self._write_records(number)
            for part in range(self._parts):
                self._write_marks(self._scratch / f"part_{part}")

    def _write_records(self, number: int) -> None:
        """Write the records of one range, divided into parts."""
        from niels_cache_repeats.line_kernels import collect_units

        parts = self._parts * self._settings.ranges
        first, last = number * self._parts, (number + 1) * self._parts

        def collect(batch: TextBatch) -> tuple[Uints, Uints, Uints]:
            return collect_units(
                batch.data,
                batch.bounds,
                batch.keys,
                min_characters=self._settings.min_characters,
                parts=parts,
                first_part=first,
                last_part=last,
            )

        waiting: list[np.ndarray] = []
        batches = self._progress(self._texts.batches() if number else self._segmented())
        with closing(map_in_order(collect, batches, threads=available_threads(), size_of=lambda batch: len(batch.data))) as found:
            for columns in found:
                records = np.empty(len(columns[0]), _RECORD)
                for name, column in zip(_RECORD.names or (), columns, strict=True):
                    records[name] = column
                waiting.append(records)
                if sum(each.nbytes for each in waiting) >= _BUFFER_BYTES:
                    self._flush(waiting, parts, first)
                    waiting = []
        self._flush(waiting, parts, first)

    def _flush(self, waiting: list[np.ndarray], parts: int, first: int) -> None:
        if not waiting:
            return
        records = np.concatenate(waiting)
        of_part = (records["first"] % np.uint64(parts)).astype(np.int64) - first
        _append_groups(self._scratch, "part", records, of_part)

    def _segmented(self) -> Iterator[TextBatch]:
        """Yield all batches, and note the first document of each segment of text."""
        size = 0
        for batch in self._texts.batches():
            if size >= _SEGMENT_BYTES:
                self._segments.append(int(batch.keys[0] & np.uint64(NOT_VAL - 1)))
                size = 0
            size += len(batch.data)
            yield batch

    def _write_marks(self, path: Path) -> None:
        """Find the copies among the records of one part, and write their places by segment."""
        from niels_cache_repeats.line_kernels import mark_copies

        if not path.exists():
            return
        records = np.fromfile(path, _RECORD)
        path.unlink()
        columns = [np.ascontiguousarray(records[name]) for name in _RECORD.names or ()]
        del records
        places, because = mark_copies(*columns, max_copies=self._settings.max_copies)
        marks = np.empty(len(places), _MARK)
        marks["place"], marks["because"] = places, because
        _append_groups(self._scratch, "marks", marks, self._segment_of(_number_of(places)))

    def _segment_of(self, numbers: Ints) -> Ints:
        return np.searchsorted(self._segments, numbers, side="right") - 1

    def cuts(self) -> Iterator[tuple[TextBatch, Cuts]]:
        """Yield the cuts."""
        from niels_cache_repeats.line_kernels import choose_cuts

        segment, marks = -1, np.empty(0, _MARK)
        for batch in self._progress(self._texts.batches()):
            numbers = _number_of(batch.keys << np.uint64(_OFFSET_BITS))
            if (now := int(self._segment_of(numbers[:1])[0])) != segment:
                segment, marks = now, self._read_marks(now)
                of_marks = _number_of(marks["place"])
            first, last = np.searchsorted(of_marks, [numbers[0], numbers[-1] + 1])
            if first == last:
                continue
            own = np.ascontiguousarray(marks["place"][first:last]), np.ascontiguousarray(marks["because"][first:last])
            bounds = np.append(np.searchsorted(of_marks[first:last], numbers), last - first)
            rows, starts, ends, kinds, copies = choose_cuts(batch.data, batch.bounds, batch.keys, *own, bounds)
            offsets = (copies >> np.uint64(1)) & np.uint64((1 << (_OFFSET_BITS - 1)) - 1)
            yield batch, Cuts(rows, starts, ends, kinds, copies >> np.uint64(_OFFSET_BITS), offsets.astype(np.int64))

    def _read_marks(self, segment: int) -> np.ndarray:
        """Return the marks of a segment, in reading order."""
        path = self._scratch / f"marks_{segment}"
        if not path.exists():
            return np.empty(0, _MARK)
        marks = np.fromfile(path, _MARK)
        path.unlink()
        return marks[np.argsort(marks["place"] << np.uint64(1))]  # without the bit of NOT_VAL


def _number_of(places: Uints) -> Ints:
    """Return the numbers of the documents of these places."""
    return ((places >> np.uint64(_OFFSET_BITS)) & np.uint64(NOT_VAL - 1)).astype(np.int64)


def _append_groups(folder: Path, name: str, rows: np.ndarray, groups: Ints) -> None:
    """Append rows to the files of their groups."""
    order = np.argsort(groups, kind="stable")
    bounds = np.flatnonzero(np.diff(groups[order], prepend=-1, append=-1))
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        with open(folder / f"{name}_{groups[order[start]]}", "ab") as file:
            rows[order[start:end]].tofile(file)
