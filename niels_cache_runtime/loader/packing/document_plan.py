"""A plan of packed rows for the documents of a pretrain split: which piece of a document stands in which row.

    document    |. . . . . . . . . . . . . .|     14 tokens, 13 transitions from a token to the next, T = 5
    pieces      |. . . . . .|                     T+1 tokens: a row of its own
                          |. . . . . .|           begins on the last token of the piece before
                                    |. . . .|     the rest, if a transition is left: shares a row

A document of n tokens has (n-1) // T full pieces, and a rest of (n-1) % T + 1 tokens unless that is 1. So a document of at most T+1 tokens
is one piece, and every transition inside a document is a target of exactly one piece. A document of one token has none, and is left out.
`PieceSettings` can add BOS to the pieces that do not begin a document, which then have one transition less, and padding to each piece.

With `rate`, that share of the documents of each length gets `GROWTH` columns more (`fim`). A document with no room for them stays as it is.
Longer ones are cut into pieces with room for them. The first places of each class are those that grow, so the permutation of the class
decides in each epoch which documents have them. A class with few documents passes its remainder on to the next, so the sum is exact too.

    lengths --histogram--> groups of equal rows, of slots of certain lengths    (best fit decreasing, see `plan`)
    row --> group --> slots, each with a place in the class of its length --(seed, epoch): permutation of the class--> document

A plan consists of units: the pieces that begin in one range of the stream. A block of an order in blocks has units of its own, and a unit
has at most `MAX_UNIT_DOCUMENTS` documents, so a plan of a longer stream begins with the same units. The number of a row, and the lengths in
it, do not depend on the epoch. `documents` reads the rows.

A plan is a few arrays in an index (`cache/index_cache`), 4 bytes for a document, mapped by all processes. Planning reads the document ends
twice, 50 ns for a document. A row costs a few array operations for each batch, and a permutation is computed where it is needed.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from niels_cache_runtime.cache.index_cache import Allocate
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import IDX_DTYPE, Array, Bools, Ints, Uints
from niels_cache_runtime.loader.order import MULTIPLIER, permute
from niels_cache_runtime.loader.packing.plan import Entry, Slots, assign_slots, group_rows, group_rows_of_few
from niels_cache_runtime.loader.packing.segments import number_ranges

DOCUMENT_PLAN_VERSION = 1  # must change whenever the same documents, T, seed and epoch would give different rows
MAX_UNIT_DOCUMENTS = 1 << 26
GROWTH = 3  # columns of <pre>, <suf> and <mid>
HASHED_BYTES = 1 << 25  # larger files are not hashed when a plan is opened, and are compared with the lengths of the documents instead

_CHUNK = 1 << 16  # documents at a time: more would not fit into the CPU cache, and less would take more calls
_EVERY = 16  # documents from one stored count of full pieces to the next
_ROUNDS = 8
_HALF = np.uint64(32)
_ORDINAL = np.dtype("<u4")
_STORED = 9  # the fields of PlanTotals that a plan without `rate` stores


class PlanUnit(NamedTuple):
    """The first of some things of a unit, numbered over the split. The next unit has their ends.

    Attributes:
        token: The first token of the stream. The unit has the pieces whose first token is from there on.
        document: The first document whose rest is in the unit.
        full: The first full piece.
        row: The first row.
    """

    token: int
    document: int
    full: int
    row: int


class PieceSettings(NamedTuple):
    """What decides the pieces of documents, and the places that they take in rows.

    Attributes:
        T: Inputs per row.
        bos: Whether BOS is added before each piece that does not begin its document.
        pad_to: Each piece gets padding up to a multiple of this number of inputs. 1 means no padding between pieces.
        most: The most pieces of a row. None means no limit.
        rate: The share of the pieces that grow.
        by_row: Whether the pieces of a row all grow, or none of them.
    """

    T: int
    bos: bool = False
    pad_to: int = 1
    most: int | None = None
    rate: float = 0
    by_row: bool = False

    @property
    def step(self) -> int:
        """The transitions of a full piece that does not begin its document."""
        return self.T - self.bos - (GROWTH if self.rate else 0)

    @property
    def alone(self) -> int:
        """The length by which a plan knows the class of full pieces, each of which has a row of its own."""
        return self.T + 1 + (self.rate > 0)

    @property
    def capacity(self) -> int:
        """The columns that pieces of a row can take. With padding to inputs, column T is not among them, because it is a target only."""
        return self.T + (self.pad_to == 1)

    @property
    def is_plain(self) -> bool:
        """Whether a piece takes as many columns as it has tokens of its document."""
        return not self.bos and self.pad_to == 1 and not self.rate

    def cut(self, transitions: Ints) -> tuple[Ints, Ints]:
        """Return the number of full pieces of each document, and the transitions of its rest."""
        fulls = (np.maximum(transitions - 1, 0) if self.bos else transitions) // self.step
        if self.rate:
            fulls[transitions <= self.T] = 0
        return fulls, transitions - (self.full_start(fulls) if self.bos else fulls * self.step)

    def full_start(self, numbers: Ints) -> Ints:
        """Return where the full pieces with these numbers begin in their document. The rest begins where one more full piece would."""
        return numbers * self.step + (numbers > 0) * self.bos

    def widths(self, fulls: Ints, rests: Ints) -> Ints:
        """Return the length of the class of each rest, less one. It is 0 if there is no rest.

        The length is the number of columns. With `rate`, it is that without padding, because pieces of equal columns may grow differently.
        """
        if self.is_plain:
            return rests
        lengths = rests + 1 + (fulls > 0) * self.bos
        return np.where(rests > 0, (lengths if self.rate else self.padded(lengths)) - 1, 0)

    def padded(self, lengths: Ints) -> Ints:
        """Return the number of columns of pieces with so many tokens."""
        return np.where(lengths > self.T, lengths, -(-lengths // self.pad_to) * self.pad_to)


class PlanTotals(NamedTuple):
    """Counts over all rows of a plan. `str` gives one line.

    Attributes:
        T: Inputs per row.
        rows: The number of rows.
        inputs: The inputs that are not padding. In a row without padding, the last token is a target only.
        tokens: The tokens of all pieces, with the BOS that were added.
        documents: The documents in rows.
        cut: How many of them have several pieces.
        pieces: The number of pieces.
        left_out: The documents of one token, which are in no row.
        least_rows: The number of rows that no packing of these pieces can be below.
        fim: How many pieces FIM rearranges in each epoch.
        fim_unfit: The documents of T-1 to T+1 tokens, which have no room for FIM.
        fim_spelled: How many of these pieces were left as they are because their text has one of the three tokens, in the rows that this
            process has read so far.
        fim_fileless: The documents of several files in which no file is known, which stay as they are.
    """

    T: int
    rows: int
    inputs: int
    tokens: int
    documents: int
    cut: int
    pieces: int
    left_out: int
    least_rows: int = 0
    fim: int = 0
    fim_unfit: int = 0
    fim_spelled: int = 0
    fim_fileless: int = 0

    @property
    def padding(self) -> float:
        """The share of the inputs that is padding."""
        return 1 - self.inputs / max(1, self.rows * self.T)

    def __str__(self) -> str:
        rows = f"{self.rows:,} rows of {self.T + 1:,} tokens (at least {self.least_rows:,} are needed)"
        cut = f"{self.documents:,} documents in {self.pieces:,} pieces, {self.cut:,} of them cut"
        unfit = (
            f"not in {self.fim_unfit:,} documents of T-1 to T+1 tokens, nor so far in {self.fim_spelled:,} with its tokens in their text"
        )
        unfit += f", nor in {self.fim_fileless:,} without a known file" if self.fim_fileless else ""
        fim = f"; FIM in {self.fim:,} pieces, {unfit}" if self.fim else ""
        return f"{cut}; {rows}, {self.padding:.2%} padding; {self.left_out:,} documents of one token left out{fim}"


class Pieces(NamedTuple):
    """Pieces of documents in some rows, row by row and from left to right. All arrays are (pieces,) int64.

    Attributes:
        rows: The index of the row in the request.
        starts: The first token in the stream.
        lengths: The number of tokens in the stream.
        widths: The number of columns in the row, with BOS and the padding of the piece. None means that of `lengths`.
        bos: (pieces,) bool, whether BOS comes before the piece. None means that there is no BOS.
        fim: (pieces,) bool, whether the piece is rearranged. None means that none is.
    """

    rows: Ints
    starts: Ints
    lengths: Ints
    widths: Ints | None = None
    bos: Bools | None = None
    fim: Bools | None = None


class EpochKeys:
    """What decides, in an epoch, the place of each document among those of its class, the order of the pieces in a row, and their cuts.

    Args:
        seed: The seed of the loader.
        epoch: The epoch.
    """

    def __init__(self, seed: int, epoch: int) -> None:
        stream = hashlib.shake_256(f"niels-cache documents {DOCUMENT_PLAN_VERSION} {seed} {epoch}".encode()).digest(24 + _ROUNDS * 4)
        self._classes, self._rows, self._draws = np.frombuffer(stream[:16] + stream[-8:], dtype="<u8").astype(np.uint64)
        self._factors = np.frombuffer(stream[16:-8], dtype="<u4").astype(np.uint32) | np.uint32(1)

    def place(self, places: Ints, classes: Array, times: Ints, *, backwards: bool = False) -> Ints:
        """Return the ordinal in its class at each place, or with `backwards` the place of each ordinal.

        Args:
            places: (n,), below the size of the class.
            classes: (3, m), the size, length and unit of classes.
            times: (m,), how many of the places in succession are in each class.
            backwards: Whether to return the inverse.
        """
        size, length, unit = classes.view(np.uint64)
        side = np.ceil(np.sqrt(size))  # of a square: with a side of 2, some pairs of 5 documents are seen too often
        of_classes = _mixed((unit << _HALF | length) + self._classes), side, size
        summands, sides, sizes = (values.astype(np.uint32).repeat(times) for values in of_classes)
        keys = [(summands, factor) for factor in self._factors]
        return permute(places.astype(np.uint32), sizes, (sides, sides), keys, backwards=backwards).astype(IDX_DTYPE)

    def sort_key(self, rows: Ints, counts: Ints, slots: Ints) -> Array:
        """Return a number of 32 bits for each slot that decides its place in its row, given the number of slots in each row."""
        numbers = ((rows.view(np.uint64) << np.uint64(20)) + self._rows).repeat(counts)
        numbers += slots.view(np.uint64)
        return _mixed(numbers)

    def draw(self, starts: Ints) -> Ints:
        """Return four numbers of 32 bits for the piece that begins at each of these tokens, (4, n)."""
        return _mixed((starts.view(np.uint64) << np.uint64(2)) + (self._draws + np.arange(4, dtype=np.uint64)[:, None])).astype(IDX_DTYPE)


def _mixed(numbers: Uints) -> Array:
    """Return a hash of 32 bits of each number. It overwrites the numbers, because fresh memory costs more than the arithmetic."""
    for _ in range(2):
        numbers *= MULTIPLIER
        numbers ^= numbers >> _HALF
    numbers *= MULTIPLIER
    numbers >>= _HALF
    return numbers.astype(np.uint32)


def build_document_plan(
    allocate: Allocate, doc_ends: Uints, settings: PieceSettings, *, edges: Ints, unit_documents: int = MAX_UNIT_DOCUMENTS
) -> PlanTotals:
    """Make the plan of a split, and return its counts.

    Args:
        allocate: A function that takes the name, shape and dtype of an array of the plan, and returns the array.
        doc_ends: (documents,) uint64, the exclusive end of every document in the stream, in tokens.
        settings: What decides the pieces.
        edges: (blocks + 1,) int64, the first token of every block, and then the number of all tokens.
        unit_documents: The most documents of a unit.
    """
    ends, T = doc_ends.view(IDX_DTYPE), settings.T
    full_counts, counts = _count_full_pieces(allocate, ends, settings)
    starts = _unit_starts(ends, edges, unit_documents)
    firsts = [_first_of_unit(ends, full_counts, token, settings) for token in starts]
    units: list[PlanUnit] = []
    classes: list[Ints] = []
    group_ends, group_entries, entries = [0], [0], []
    class_count = ordinal_count = columns = whole_rows = fim = unfit = 0
    candidates = np.zeros(1, dtype=np.int64)  # the pieces that might grow in all units so far
    ordinals = allocate("ordinals", (counts["rests"] + 1,), _ORDINAL)  # one more, so that the class of full pieces has an ordinal too
    ordinals[-1] = 0
    for number, ((document, full), (last_document, last_full)) in enumerate(pairwise(firsts)):
        units.append(PlanUnit(starts[number], document, full, group_ends[-1]))
        histogram = np.zeros(T + 1, dtype=np.int64)  # of the rests
        for _, _, rests in _cut(ends, document, last_document, settings):
            histogram += np.bincount(rests, minlength=T + 1)
        histogram[0] = 0
        _sort_by_rest(ordinals[ordinal_count : ordinal_count + int(histogram.sum())], ends, document, last_document, histogram, settings)
        lengths = np.flatnonzero(histogram) + 1
        sizes, fulls = histogram[lengths - 1], last_full - full
        own = [np.cumsum(sizes) - sizes + ordinal_count, np.full_like(sizes, document), sizes, lengths, np.full_like(sizes, number)]
        ordinal_count += int(sizes.sum())
        if fulls:  # a class without ordinals, because each of these pieces has a row of its own
            values = 0, 0, fulls if settings.rate else 1, settings.alone, number
            own = [np.append(column, value) for column, value in zip(own, values, strict=True)]
        fits = (own[3] <= T + 1 - GROWTH) | (own[3] == settings.alone)
        candidates = np.append(candidates[-1], own[2] * fits).cumsum()
        growing = np.diff(np.floor(settings.rate * candidates + 0.5).astype(IDX_DTYPE))
        wide = int(growing[-1]) if fulls and settings.rate else fulls
        of_fulls = class_count + len(sizes)
        groups = [(wide, T + 1, [(of_fulls, 1, 0)]), (fulls - wide, T + 1 - GROWTH, [(of_fulls, 1, wide)])]
        groups += _pack(lengths, sizes, growing, class_count, settings)
        class_count += len(own[0])
        classes.append(np.stack([*own, growing] if settings.rate else own))
        fim, unfit = fim + int(growing.sum()), unfit + int(own[2][~fits].sum())
        for rows, filled, content in groups:
            if rows:
                entries.extend(content)
                group_ends.append(group_ends[-1] + rows)
                group_entries.append(len(entries))
                columns += rows * min(filled, settings.capacity)
                whole_rows += rows if filled > T else 0
    units.append(PlanUnit(starts[-1], *firsts[-1], group_ends[-1]))
    documents, pieces = len(ends) - counts["left_out"], units[-1].full + counts["rests"]
    tokens = int(ends[-1]) - len(ends) + pieces + (pieces - documents) * settings.bos + GROWTH * fim
    totals = PlanTotals(
        T=T,
        rows=group_ends[-1],
        inputs=tokens - whole_rows,
        tokens=tokens,
        documents=documents,
        cut=counts["cut"],
        pieces=pieces,
        left_out=counts["left_out"],
        least_rows=max(-(-columns // settings.capacity), units[-1].full - (-counts["rests"] // (settings.most or counts["rests"] or 1))),
        fim=fim,
        fim_unfit=unfit * (settings.rate > 0),
    )
    tables: dict[str, Array] = {
        "units": np.array(units, dtype=np.int64),
        "classes": np.concatenate(classes, axis=1),
        "group_ends": np.array(group_ends[1:], dtype=np.int64),
        "group_entries": np.array(group_entries, dtype=np.int64),
        "entries": np.array(entries, dtype=np.int64).reshape(-1, 3).T,
        "totals": np.array(totals[: None if settings.rate else _STORED], dtype=np.int64),
    }
    for name, table in tables.items():
        allocate(name, table.shape, table.dtype)[:] = table
    return totals


def _cut(ends: Ints, first: int, stop: int, settings: PieceSettings) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield the first of some documents, and for each of them its number of full pieces, and the columns of its rest, less one."""
    for begin in range(first, stop, _CHUNK):
        chunk = ends[begin : min(begin + _CHUNK, stop)]
        transitions = chunk - 1
        transitions[1:] -= chunk[:-1]
        transitions[0] -= ends[begin - 1] if begin else 0
        np.maximum(transitions, 0, out=transitions)
        fulls, rests = settings.cut(transitions)
        yield begin, fulls, settings.widths(fulls, rests)


def _count_full_pieces(allocate: Allocate, ends: Ints, settings: PieceSettings) -> tuple[Ints, dict[str, int]]:
    """Return how many full pieces the documents before every 16th one have, and counts of documents."""
    stored = allocate("full_counts", (len(ends) // _EVERY + 1,), IDX_DTYPE)
    stored[0] = count = 0
    counts = {"rests": 0, "cut": 0, "left_out": 0}
    for begin, fulls, rests in _cut(ends, 0, len(ends), settings):
        whole = len(fulls) // _EVERY
        sums = fulls[: whole * _EVERY].reshape(-1, _EVERY).sum(axis=1).cumsum()
        stored[begin // _EVERY + 1 : begin // _EVERY + 1 + whole] = count + sums
        count += int(fulls.sum())
        pieces = fulls + (rests > 0)
        for name, is_so in (("rests", rests > 0), ("cut", pieces > 1), ("left_out", pieces == 0)):
            counts[name] += int(np.count_nonzero(is_so))
    return stored, counts


def _pack(lengths: Ints, sizes: Ints, growing: Ints, first: int, settings: PieceSettings) -> Iterator[tuple[int, int, list[Entry]]]:
    """Yield the groups of rows of the rests of a unit, given the length and the sizes of their classes; see `assign_slots`."""
    capacity = settings.T + 1  # together, pieces with padding of their own cannot take the last column
    apart: list[tuple[Slots, Ints]] = [({}, np.zeros(capacity + 1, dtype=np.int64)) for _ in range(2)]
    columns = settings.padded(lengths), settings.padded(lengths + GROWTH), sizes, growing
    for number, (plain, grown, size, grows) in enumerate(zip(*(each.tolist() for each in columns), strict=False), first):
        for (slots, histogram), width, place, count in ((apart[0], plain, grows, size - grows), (apart[settings.by_row], grown, 0, grows)):
            if count:
                slots.setdefault(width, []).append((number, place, count))
                histogram[width] += count
    for slots, histogram in apart:
        if settings.most is None:
            yield from assign_slots(group_rows(histogram, capacity=capacity), slots)
        else:
            yield from assign_slots(group_rows_of_few(histogram, capacity=capacity, most=settings.most), slots)


def _unit_starts(ends: Ints, edges: Ints, unit_documents: int) -> list[int]:
    """Return the first token of every unit, and then the number of all tokens."""
    starts: list[int] = []
    for edge, next_edge in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        starts.append(edge)
        # A document begins where the one before ends. ends[first] is where the document that would be one too many begins.
        first = (int(ends.searchsorted(edge, side="left")) if edge else -1) + unit_documents
        starts += ends[first : int(ends.searchsorted(next_edge, side="left")) : unit_documents].tolist()
    return [*starts, int(edges[-1])]


def _first_of_unit(ends: Ints, full_counts: Ints, token: int, settings: PieceSettings) -> tuple[int, int]:
    """Return the first document whose rest begins at `token` or later, and the first full piece that does."""
    document = int(ends.searchsorted(token, side="right"))
    before = document // _EVERY * _EVERY
    full = int(full_counts[before // _EVERY]) + sum(int(fulls.sum()) for _, fulls, _ in _cut(ends, before, document, settings))
    if document == len(ends):
        return document, full
    (_, fulls, _), start = next(_cut(ends, document, document + 1, settings)), int(ends[document - 1]) if document else 0
    begun = max(-(-(token - start - settings.bos) // settings.step), int(token > start))
    return document + int(start + settings.full_start(fulls)[0] < token), full + min(begun, int(fulls[0]))


def _sort_by_rest(ordinals: Array, ends: Ints, first: int, stop: int, histogram: Ints, settings: PieceSettings) -> None:
    """Write the documents with a rest, counted from `first`, from the shortest rest to the longest, chunk by chunk."""
    T = settings.T
    free = np.cumsum(histogram) - histogram  # the next place of each length
    narrow = np.uint16 if T < 1 << 16 else np.uint32  # numpy sorts 16-bit integers by radix
    for begin, _, rests in _cut(ends, first, stop, settings):
        here = np.bincount(rests, minlength=T + 1)
        order = rests.astype(narrow).argsort(kind="stable")[here[0] :]
        here[0] = 0
        places = np.repeat(free - (np.cumsum(here) - here), here)
        places += np.arange(len(order))
        ordinals[places] = order + (begin - first)
        free += here


class DocumentPlan:
    """A plan that was made by `build_document_plan`.

    Args:
        arrays: The arrays of the plan.
        doc_ends: The document ends that it was made of.
        settings: The settings that it was made with.
        folder: The folder of the files of the arrays, for messages.

    Attributes:
        totals: Counts over all rows.
    """

    def __init__(self, arrays: Mapping[str, Array], doc_ends: Uints, settings: PieceSettings, *, folder: Path = Path()) -> None:
        self._settings, self._ends, self._folder = settings, np.asarray(doc_ends).view(IDX_DTYPE), folder
        tables = ("units", "classes", "group_ends", "group_entries", "entries", "ordinals", "full_counts", "totals")
        self._units, self._classes, self._group_ends, self._group_entries, self._entries, self._ordinals, self._full_counts, totals = (
            np.asarray(arrays[name]) for name in tables
        )
        self.totals = PlanTotals(*totals.tolist())
        self._group_starts = np.concatenate([[0], self._group_ends[:-1]])

    def rows_before(self, tokens: Ints) -> Ints:
        """Return the number of rows of the pieces that begin before each of these edges of blocks, (n,) int64."""
        return self._units[np.minimum(self._units[:, 0].searchsorted(tokens), len(self._units) - 1), 3]

    @property
    def documents(self) -> int:
        """The number of documents, in rows or not."""
        return len(self._ends)

    def pieces(self, rows: Ints, keys: EpochKeys | None) -> Pieces:
        """Return the pieces in rows.

        Args:
            rows: (n,) int64, from 0 to totals.rows - 1.
            keys: What decides the documents in the rows. None means the order of the split.

        Raises:
            NielsCacheError: If a document or a piece that is read does not have the length that it has in the plan, so a file is damaged.
        """
        groups = self._group_ends.searchsorted(rows, side="right")
        first_entries, end_entries = self._group_entries[groups], self._group_entries[groups + 1]
        of_row, entry_numbers = number_ranges(first_entries, end_entries)
        class_numbers, times, places = self._entries.take(entry_numbers, axis=1)
        places += (rows - self._group_starts[groups])[of_row] * times
        classes = self._classes.take(class_numbers, axis=1)
        settings = self._settings
        is_alone = classes[3] == settings.alone
        fim = None
        if settings.rate:
            fim = (places < classes[5]).repeat(times)  # but for full pieces, this is so only after the permutation
        else:
            places[is_alone] = 0
        _, places = number_ranges(places, places + times)
        if keys is not None:
            places = keys.place(places, classes[2:5], times)
        widths, of_row = (values.repeat(times) for values in (classes[3], of_row))
        alone = (times.cumsum() - times)[is_alone]
        if fim is not None:
            fim[alone], places[alone] = places[alone] < classes[5, is_alone], 0
        places += classes[0].repeat(times)
        documents = self._ordinals[places] + classes[1].repeat(times)
        starts = self._ends.take(documents, mode="clip")
        lengths, bos = widths, None
        if not settings.is_plain or self._ordinals.nbytes > HASHED_BYTES - 4096:  # of the header
            fulls, rests = settings.cut(np.maximum(starts - self._starts_of(documents) - 1, 0))
            if ((settings.widths(fulls, rests) + 1 != widths) & (widths < settings.alone)).any():
                raise self.damaged("ordinals")
            if not settings.is_plain:
                lengths, bos = rests + 1, (fulls > 0) & settings.bos
        starts -= lengths
        starts[alone], numbers = self._full_pieces(rows[of_row[alone]])
        if bos is not None:
            bos[alone] = (numbers > 0) & settings.bos
            lengths[alone] = settings.step + 1 + settings.bos - bos[alone]
        columns: list[Array] = [starts, lengths] if bos is None else [starts, lengths, widths, bos]
        if fim is not None:
            columns[2:] = settings.padded(lengths + columns[3] + GROWTH * fim), columns[3], fim
        if keys is not None:
            # Rows have at most 2**20 slots. Sorting numbers that end with the slot is faster than `argsort`.
            firsts = of_row.searchsorted(np.arange(len(rows) + 1))
            counts = np.diff(firsts)
            firsts = firsts[:-1].repeat(counts)
            slots = np.arange(len(of_row))
            slots -= firsts
            order = (keys.sort_key(rows, counts, slots) >> np.uint32(12)).astype(IDX_DTYPE)
            order <<= 20
            order |= slots
            order |= of_row << 40
            order.sort()
            order &= (1 << 20) - 1
            order += firsts
            columns = [column[order] for column in columns]
        return Pieces(of_row, *columns)

    def rows_of(self, documents: Ints, keys: EpochKeys | None) -> Ints:
        """Return the rows of the pieces of documents, (pieces,): `pieces` backwards."""
        fulls, rests = self._cut(documents)
        blocks, places = np.divmod(documents, _EVERY)
        before = np.where(np.arange(_EVERY) < places[:, None], self._fulls_in(blocks), 0).sum(axis=1)
        firsts = self._full_counts[blocks] + before
        _, numbers = number_ranges(firsts, firsts + fulls)
        units = self._units[self._units[:, 2].searchsorted(numbers, side="right") - 1]
        rows = units[:, 3] + numbers - units[:, 2]
        own = np.flatnonzero(rests)
        kinds = self._kinds.searchsorted((self._units[:, 1].searchsorted(documents[own], side="right") - 1 << 32) + rests[own] + 1)
        places = np.empty_like(kinds)
        for index, (document, kind) in enumerate(zip(documents[own].tolist(), kinds.tolist(), strict=True)):
            first, base, size = self._classes[:3, kind].tolist()
            places[index] = self._ordinals[first : first + size].searchsorted(document - base)
            if self._ordinals[first + places[index]] != document - base:
                raise self.damaged("ordinals")
        if keys is not None:
            places = keys.place(places, self._classes[2:5, kinds], np.ones_like(places), backwards=True)
        order, keyed = self._entries_by_place
        entry = order[keyed.searchsorted((kinds << 32) + places, side="right") - 1]
        group = self._group_entries.searchsorted(entry, side="right") - 1
        return np.append(rows, self._group_starts[group] + (places - self._entries[2, entry]) // self._entries[1, entry])

    @cached_property
    def _kinds(self) -> Ints:
        """The unit and length of each class, in ascending order."""
        return (self._classes[4] << 32) + self._classes[3]

    @cached_property
    def _entries_by_place(self) -> tuple[Ints, Ints]:
        """The entries by class and place, and their classes and places."""
        keyed = (self._entries[0] << 32) + self._entries[2]
        order = keyed.argsort(kind="stable")
        return order, keyed[order]

    def _cut(self, documents: Ints) -> tuple[Ints, Ints]:
        """Return the number of full pieces of each document, and the length of the class of its rest, less one, or 0."""
        fulls, rests = self._settings.cut(np.maximum(self._ends[documents] - self._starts_of(documents) - 1, 0))
        return fulls, self._settings.widths(fulls, rests)

    def _fulls_in(self, blocks: Ints) -> Ints:
        """Return the number of full pieces of the 16 documents of each of these blocks, (n, 16)."""
        documents = blocks[:, None] * _EVERY + np.arange(_EVERY)
        known = np.minimum(documents, len(self._ends) - 1)
        return np.where(documents > known, 0, self._cut(known)[0])

    def damaged(self, name: str) -> NielsCacheError:
        """Return an error that says that a file of the plan is damaged."""
        return NielsCacheError(
            f"{self._folder / name}.npy: is damaged, it names other documents; delete {self._folder}, and it is made again"
        )

    def _starts_of(self, documents: Ints) -> Ints:
        return np.where(documents > 0, self._ends.take(documents - 1, mode="clip"), 0)

    def _full_pieces(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the first tokens of the full pieces in these rows, and the number of each in its document, from 0."""
        units = self._units[self._units[:, 3].searchsorted(rows, side="right") - 1]
        fulls = units[:, 2] + rows - units[:, 3]
        blocks = self._full_counts.searchsorted(fulls, side="right") - 1
        own = self._fulls_in(blocks)
        after = self._full_counts[blocks][:, None] + own.cumsum(axis=1)
        is_whole = (blocks + 1) * _EVERY <= len(self._ends)
        following = np.where(is_whole, self._full_counts.take(blocks + 1, mode="clip"), self._units[-1, 2])
        if ((fulls >= following) | (after[:, -1] != following)).any():
            raise self.damaged("full_counts")
        places = (after <= fulls[:, None]).sum(axis=1)
        place = np.arange(len(rows)), places
        numbers = fulls - after[place] + own[place]
        return self._starts_of(blocks * _EVERY + places) + self._settings.full_start(numbers), numbers
