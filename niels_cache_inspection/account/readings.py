"""How often the documents of a split were read in samples of runs, token by token.

    windows         a count for each window; the documents of a chunk are compared with the windows there (`_WindowReadings`)
    rows            packed documents, conversations and pairs: their tokens are read and traced (`_RowReadings`)

Windows cost no reading of tokens, and 4 bytes for each window. `goldfish` and `mask_repetitive` mask targets by their tokens, so with these
settings windows are read like rows. Rows cost 40 bytes for each document, and a bit for each token of the split. All of it is in temporary
files if it is large.

A token is unique where it is read for the first time, in whatever epoch, run, window or row. All other readings of it are repeats.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from niels_cache_inspection.account.runs import ReadRun
from niels_cache_inspection.account.splits import AccountedCache, temporary_array
from niels_cache_inspection.account.tables import INDEX, no_figures
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import IGNORE_INDEX, Bools, Ints
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.loader.packing.documents import PackedDocuments
from niels_cache_runtime.loader.preference.batch import PreferenceBatch, make_maker
from niels_cache_runtime.loader.preference.rows import PackedPairs, side_of
from niels_cache_runtime.loader.run_order import SampleLocations
from niels_cache_runtime.loader.source import SampleSource
from niels_cache_runtime.loader.windows import PretrainWindows

_SAMPLES_AT_ONCE = 1 << 20
_TOKENS_AT_ONCE = 1 << 20
_COUNTED = ("text", "special", "fim", "targets", "masked")  # of each document, in _RowReadings


class SplitReadings:
    """What runs have read of one split.

    Args:
        cache: Its cache.
        documents: The number of its documents or examples.
        tokens: The number of its tokens.

    Attributes:
        inputs: The number of inputs that were read, with padding.
    """

    def __init__(self, cache: AccountedCache, *, documents: int, tokens: int) -> None:
        self._cache, self._documents, self._tokens = cache, documents, tokens
        self._windows: dict[Any, _WindowReadings] = {}
        self._rows: _RowReadings | None = None
        self.inputs = 0

    def add(self, run: ReadRun, source: SampleSource, located: SampleLocations, *, epoch: int) -> None:
        """Count samples, all of this source and epoch."""
        if source.copies:  # their tokens are at other places
            raise NielsCacheError(f"{source.folder}: has copies of its documents for `fim`, whose reads cannot be counted yet")
        settings = run.loader._settings
        reads_tokens = isinstance(source, PackedDocuments) or settings.goldfish or settings.mask_repetitive
        if isinstance(source, PretrainWindows) and not reads_tokens:
            is_masked = (settings.loss_weights or {}).get(_name_of(run, source), 1) == 0
            key = (source.T, source.stride, source.lot_tokens, settings.mask_cross_document_targets, is_masked)
            windows = self._windows.get(key)
            if windows is None:
                windows = self._windows[key] = _WindowReadings(source, masks_borders=key[3], masks_all=is_masked)
            windows.add(located.numbers)
        else:
            if self._rows is None:
                self._rows = _RowReadings(self._cache, documents=self._documents, tokens=self._tokens)
            self._rows.add(run, source, located, epoch=epoch)
        self.inputs += len(located) * settings.T * (2 if isinstance(source, PackedPairs) else 1)

    def of_documents(self, first: int, starts: Ints, ends: Ints) -> Ints:
        """Return the figures of consecutive documents, (documents, columns).

        Args:
            first: The number of the first one.
            starts: (documents,), the first token of each in the split.
            ends: (documents,), the token after its last one.
        """
        figures = no_figures(len(starts))
        begin, text = int(starts[0]), np.zeros_like(starts)
        starts, ends = starts - begin, ends - begin
        covers = [windows.cover(begin, begin + int(ends[-1])) for windows in self._windows.values()]
        added = [place for place, is_there in ((ends - 1, self._cache.ends_with_eot), (starts, self._cache.begins_with_bos)) if is_there]
        for windows, cover in zip(self._windows.values(), covers, strict=True):
            special, targets = sum(cover.read(place, place + 1) for place in added), cover.read(starts - 1, ends - 1)
            masked = windows.masked(cover, starts, targets)
            text += cover.read(starts, ends) - special
            for name, found in (("special", special), ("targets", targets - masked), ("masked", masked)):
                figures[:, INDEX[name]] += found
        union = _Union(covers)
        unique = union.count(starts, ends) - sum(union.count(place, place + 1) for place in added)
        if self._rows is not None:
            counts = self._rows.of_documents(first, len(starts))
            text += counts["text"]
            for name in _COUNTED[1:]:
                figures[:, INDEX[name]] += counts[name]
            seen = self._rows.seen(begin, begin + int(ends[-1]))
            union.mark(seen)
            for place in added:
                seen[place] = False
            unique = np.add.reduceat(seen, starts, dtype=np.int64)
        figures[:, INDEX["unique"]], figures[:, INDEX["repeats"]] = unique, text - unique
        figures[:, INDEX["documents"]] = figures[:, INDEX["unique"] :].any(axis=1)
        return figures

    def outside(self) -> Ints:
        """Return the figures of what belongs to no document, (columns,)."""
        return no_figures()[0] if self._rows is None else self._rows.outside


def count_run(run: ReadRun, readings: list[SplitReadings]) -> Counter[tuple[int, int]]:
    """Count all samples of a run.

    Args:
        run: The run.
        readings: For each of its sources, in order, the readings of its split.

    Returns:
        The number of samples by source and epoch.
    """
    loader, counted = run.loader, Counter[tuple[int, int]]()
    sources = [*loader._sources.values()]
    for begin, end in run.ranges:
        for first in range(begin, end, _SAMPLES_AT_ONCE):
            located = loader._run_order.locate(np.arange(first, min(end, first + _SAMPLES_AT_ONCE)))
            for source, epoch, places in located.groups():
                of_group = SampleLocations(located.sources[places], located.epochs[places], located.numbers[places], (source, epoch))
                readings[source].add(run, sources[source], of_group, epoch=epoch)
                counted[source, epoch] += len(places)
    return counted


def _name_of(run: ReadRun, source: SampleSource) -> str:
    return next(name for name, each in run.loader._sources.items() if each is source)


class _WindowReadings:
    """How often each window of a split was read. Windows with the same settings are the same in all epochs and runs."""

    def __init__(self, source: PretrainWindows, *, masks_borders: bool, masks_all: bool) -> None:
        self._source, self._masks_borders, self._masks_all = source, masks_borders, masks_all
        self._times = temporary_array(source.samples, np.uint32)

    def add(self, numbers: Ints) -> None:
        """Count windows, each of which is here once."""
        self._times[numbers] += 1

    def cover(self, begin: int, stop: int) -> "_Cover":
        """Return the inputs of windows in a range of the stream, in places that are counted from `begin`.

        A window has the inputs [start, start + T), and its targets are one token later.
        """
        first, last = self._first_at(begin - self._source.T), self._first_at(stop)
        times = np.asarray(self._times[first:last]).astype(np.int64)
        read = np.flatnonzero(times)
        return _Cover(self._source._starts(first + read) - begin, times[read], self._source.T)

    def masked(self, cover: "_Cover", starts: Ints, targets: Ints) -> Ints:
        """Return how many targets of documents are masked, given where these start and how many targets they have."""
        if self._masks_all:
            return targets
        return cover.read(starts - 1, starts) if self._masks_borders else np.zeros_like(targets)

    def _first_at(self, token: int) -> int:
        """Return the first window that begins at this token or later."""
        return bisect_left(range(self._source.samples), token, key=lambda number: int(self._source._starts(np.array([number]))[0]))


class _Cover:
    """Intervals of T tokens that were read one or more times, sorted by their starts."""

    def __init__(self, starts: Ints, times: Ints, T: int) -> None:
        self.starts, self.T = starts, T
        self._times = np.append(0, np.cumsum(times))
        self._weighted = np.append(0, np.cumsum(times * starts))

    def read(self, firsts: Ints, ends: Ints) -> Ints:
        """Return how many tokens of ranges were read, each as often as it was read."""
        return self._read_before(ends) - self._read_before(firsts)

    def _read_before(self, places: Ints) -> Ints:
        begun, ended = (self.starts.searchsorted(each, side="right") for each in (places, places - self.T))
        times = self._times[begun] - self._times[ended]
        return self.T * self._times[ended] + places * times - (self._weighted[begun] - self._weighted[ended])


class _Union:
    """The tokens that are in any of the intervals of some covers."""

    def __init__(self, covers: list[_Cover]) -> None:
        none = np.zeros(0, dtype=np.int64)
        starts = np.concatenate([none, *(cover.starts for cover in covers)])
        ends = np.concatenate([none, *(cover.starts + cover.T for cover in covers)])
        order = starts.argsort(kind="stable")
        starts, ends = starts[order], ends[order]
        before = np.maximum.accumulate(ends)
        starts[1:] = np.maximum(starts[1:], before[:-1])  # what an earlier interval has is not counted again
        kept = starts < ends
        self._starts, self._ends = starts[kept], ends[kept]
        self._counts = np.append(0, np.cumsum(self._ends - self._starts))

    def count(self, firsts: Ints, ends: Ints) -> Ints:
        """Return how many tokens of ranges are in it."""
        return self._count_before(ends) - self._count_before(firsts)

    def mark(self, marks: Bools) -> None:
        """Set the marks of its tokens, (n,)."""
        changes = np.zeros(len(marks) + 1, dtype=np.int8)
        starts, ends = np.clip(self._starts, 0, len(marks)), np.clip(self._ends, 0, len(marks))
        np.add.at(changes, starts, 1)
        np.add.at(changes, ends, -1)
        marks |= np.cumsum(changes[:-1], dtype=np.int8) > 0

    def _count_before(self, places: Ints) -> Ints:
        begun = self._starts.searchsorted(places, side="right")
        if not len(self._starts):
            return np.zeros_like(places)
        beyond = np.maximum(self._ends[begun - 1] - places, 0)  # of the interval that a place is in
        return np.where(begun > 0, self._counts[begun] - beyond, 0)


class _RowReadings:
    """How many tokens of each document were read, by kind."""

    def __init__(self, cache: AccountedCache, *, documents: int, tokens: int) -> None:
        self._special = np.array(cache.special_ids, dtype=np.int64)
        self._bos_id = (cache.meta.get("special_token_ids") or {}).get("bos")
        self._counts = {name: temporary_array(documents, np.int64) for name in _COUNTED}
        self._seen = temporary_array(tokens // 8 + 1, np.uint8)  # a bit for each token of text
        self._makers: dict[int, Any] = {}
        self.outside = no_figures()[0]

    def add(self, run: ReadRun, source: SampleSource, located: SampleLocations, *, epoch: int) -> None:
        if id(run) not in self._makers:
            settings = replace(run.loader._settings, fields=(), cp_rank=0, cp_size=1)
            self._makers[id(run)] = make_maker(run.loader._sources, settings, torch.device("cpu"))
        at_once = max(1, _TOKENS_AT_ONCE // run.loader.T)
        for first in range(0, len(located), at_once):
            part = located.part(first, first + at_once)
            batch = self._makers[id(run)].make(part)
            if isinstance(batch, PreferenceBatch):
                self._count(side_of(source, "chosen"), part.numbers, batch.chosen, epoch=epoch)
                self._count(side_of(source, "rejected"), part.numbers, batch.rejected, epoch=epoch)
            else:
                packing = run.loader._settings.packing
                self._count(source, part.numbers, batch, epoch=epoch, has_bos=packing is not None and bool(packing.bos_on_pieces))

    def of_documents(self, first: int, count: int) -> dict[str, Ints]:
        """Return the counts of documents by kind."""
        return {name: np.asarray(values[first : first + count]) for name, values in self._counts.items()}

    def seen(self, begin: int, stop: int) -> Bools:
        """Return which tokens of a range of the split are text that was read, (stop - begin,)."""
        first = begin // 8
        bits = np.unpackbits(np.asarray(self._seen[first : stop // 8 + 1]), bitorder="little")
        return bits[begin - 8 * first : stop - 8 * first].astype(np.bool_)

    def _count(self, source: SampleSource, numbers: Ints, batch: Batch, *, epoch: int, has_bos: bool = False) -> None:
        origins, tokens = source.origins(numbers, epoch=epoch), batch.x.numpy()
        documents, is_known = origins.documents, origins.documents >= 0
        is_fim = is_known & (origins.files < 0)
        of_inputs, is_input = documents[:, :-1], is_known[:, :-1]
        fim = is_fim[:, :-1]
        special = is_input & ~fim & np.isin(tokens, self._special)
        text = is_input & ~fim & ~special
        begins_inside = (origins.document_offsets[:, 1:] > 0) | is_fim[:, 1:]
        bos = ~is_input & begins_inside & (tokens == self._bos_id) if has_bos else np.zeros_like(is_input)
        for name, kind in (("text", text), ("special", special), ("fim", fim)):
            np.add.at(self._counts[name], of_inputs[kind], 1)
        starts = source._stream_starts if isinstance(source, PretrainWindows) else np.zeros(1, dtype=np.int64)
        places = starts[origins.files[:, :-1][text]] + origins.offsets[:, :-1][text]
        np.bitwise_or.at(self._seen, places // 8, (1 << places % 8).astype(np.uint8))
        self.outside[INDEX["bos"]] += np.count_nonzero(bos)
        self.outside[INDEX["padding"]] += np.count_nonzero(~is_input & ~bos)
        is_target: Bools = np.ones(tokens.shape, dtype=np.bool_) if batch.y_masked is None else batch.y_masked.numpy() != IGNORE_INDEX
        for name, kind in (("targets", is_target), ("masked", ~is_target)):
            np.add.at(self._counts[name], documents[:, 1:][kind & is_known[:, 1:]], 1)
            self.outside[INDEX[name]] += np.count_nonzero(kind & ~is_known[:, 1:])
