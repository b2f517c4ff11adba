"""How often the documents of a split were read in samples of runs, token by token.

    windows         a count for each window; the documents of a chunk are compared with the windows there (`_WindowReadings`)
    rows            packed documents, conversations and pairs: their tokens are read and traced (`_RowReadings`)

Windows cost no reading of tokens, and a few bytes for each window. `goldfish` and `mask_repetitive` mask targets by their tokens, so with
these settings windows are read like rows. What is kept for each window or document is in temporary files.

A token is unique where it is read for the first time. Windows are the same in every epoch, so this is exact for a run of windows. For rows,
and for runs that cut a split in different ways, the unique tokens of a document are the most that one epoch has read of it: this is exact
unless two epochs of a split were left incomplete, which `is_exact` says.
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
from niels_cache_runtime.format.layout import IGNORE_INDEX, Array, Bools, Ints
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
    """

    def __init__(self, cache: AccountedCache, documents: int) -> None:
        self._cache, self._documents = cache, documents
        self._windows: dict[Any, _WindowReadings] = {}
        self._rows: _RowReadings | None = None
        self._incomplete = 0
        self.rows = self.inputs = 0

    def add(self, run: ReadRun, source: SampleSource, located: SampleLocations, *, epoch: int) -> None:
        """Count samples, all of this source and epoch."""
        settings = run.loader._settings
        is_counted = isinstance(source, PretrainWindows) and not isinstance(source, PackedDocuments)
        if is_counted and not (settings.goldfish or settings.mask_repetitive):
            is_masked = (settings.loss_weights or {}).get(_name_of(run, source), 1) == 0
            key = (source.T, source.stride, source.lot_tokens, settings.mask_cross_document_targets, is_masked)
            windows = self._windows.get(key)
            if windows is None:
                windows = self._windows[key] = _WindowReadings(source, masks_borders=key[3], masks_all=is_masked)
            windows.add(located.numbers)
        else:
            if self._rows is None:
                self._rows = _RowReadings(self._cache, self._documents)
            self._rows.add(run, source, located, epoch=epoch)
        self.rows += len(located)
        self.inputs += len(located) * source.T * (2 if isinstance(source, PackedPairs) else 1)

    def end_epoch(self, *, is_complete: bool) -> None:
        """Note that the samples of an epoch are counted, and whether these are all of them."""
        self._incomplete += not is_complete
        if self._rows is not None:
            self._rows.end_epoch()

    @property
    def is_exact(self) -> bool:
        """Whether `unique` is exact. Otherwise it is the least that it can be."""
        return (len(self._windows) == 1 and self._rows is None) or self._incomplete <= 1

    def of_documents(self, first: int, starts: Ints, ends: Ints) -> Ints:
        """Return the figures of consecutive documents, (documents, columns).

        Args:
            first: The number of the first one.
            starts: (documents,), the first token of each in the split.
            ends: (documents,), the token after its last one.
        """
        figures = no_figures(len(starts))
        text, unique = np.zeros_like(starts), np.zeros_like(starts)
        eot, bos = self._cache.ends_with_eot, self._cache.begins_with_bos
        for windows in self._windows.values():
            found = windows.of_documents(starts, ends, eot=eot, bos=bos)
            text += found["text"]
            np.maximum(unique, found["unique"], out=unique)
            for name in ("special", "targets", "masked"):
                figures[:, INDEX[name]] += found[name]
        if self._rows is not None:
            counts, own = self._rows.of_documents(first, len(starts))
            text += counts["text"]
            np.maximum(unique, own, out=unique)
            for name in _COUNTED[1:]:
                figures[:, INDEX[name]] += counts[name]
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
                if counted[source, epoch] == 0 and epoch:
                    _end_epoch(run, sources, readings, counted, source, epoch - 1)
                of_group = SampleLocations(located.sources[places], located.epochs[places], located.numbers[places], (source, epoch))
                readings[source].add(run, sources[source], of_group, epoch=epoch)
                counted[source, epoch] += len(places)
    for source in {source for source, _ in counted}:
        _end_epoch(run, sources, readings, counted, source, max(epoch for own, epoch in counted if own == source))
    return counted


def _end_epoch(
    run: ReadRun, sources: list[SampleSource], readings: list[SplitReadings], counted: Counter[tuple[int, int]], source: int, epoch: int
) -> None:
    if counted[source, epoch]:
        readings[source].end_epoch(is_complete=counted[source, epoch] == sources[source].samples)


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

    def of_documents(self, starts: Ints, ends: Ints, *, eot: bool, bos: bool) -> dict[str, Ints]:
        """Return how many tokens of consecutive documents were read, by kind.

        A window has the inputs [start, start + T), and the targets are one token later.
        """
        begin, stop, T = int(starts[0]), int(ends[-1]), self._source.T
        first, last = self._first_at(begin - T), self._first_at(stop)
        times = np.asarray(self._times[first:last]).astype(np.int64)
        read = np.flatnonzero(times)
        cover = _Cover(self._source._starts(first + read) - begin, times[read], T)
        starts, ends = starts - begin, ends - begin
        inputs, unique = cover.read(starts, ends), cover.unique(starts, ends)
        special, special_unique = np.zeros_like(inputs), np.zeros_like(inputs)
        lengths = ends - starts
        for is_added, place in ((eot, ends - 1), (bos, starts)):
            if is_added:
                own = lengths > (eot if place is starts else 0)
                special += cover.read(place, place + 1) * own
                special_unique += cover.unique(place, place + 1) * own
        targets = cover.read(starts - 1, ends - 1)
        masked = targets if self._masks_all else cover.read(starts - 1, starts) if self._masks_borders else np.zeros_like(targets)
        return {
            "text": inputs - special,
            "unique": unique - special_unique,
            "special": special,
            "targets": targets - masked,
            "masked": masked,
        }

    def _first_at(self, token: int) -> int:
        """Return the first window that begins at this token or later."""
        return bisect_left(range(self._source.samples), token, key=lambda number: int(self._source._starts(np.array([number]))[0]))


class _Cover:
    """Intervals of T tokens that were read one or more times, sorted by their starts."""

    def __init__(self, starts: Ints, times: Ints, T: int) -> None:
        self._starts, self._T = starts, T
        self._times = np.append(0, np.cumsum(times))
        self._weighted = np.append(0, np.cumsum(times * starts))
        self._own = np.minimum(np.diff(starts, append=starts[-1:] + T), T)  # up to the start of the next interval
        self._covered = np.append(0, np.cumsum(self._own))

    def read(self, firsts: Ints, ends: Ints) -> Ints:
        """Return how many tokens of ranges were read, each as often as it was read."""
        return self._read_before(ends) - self._read_before(firsts)

    def unique(self, firsts: Ints, ends: Ints) -> Ints:
        """Return how many tokens of ranges were read at least once."""
        return self._covered_before(ends) - self._covered_before(firsts)

    def _read_before(self, places: Ints) -> Ints:
        begun, ended = (self._starts.searchsorted(each, side="right") for each in (places, places - self._T))
        times = self._times[begun] - self._times[ended]
        return self._T * self._times[ended] + places * times - (self._weighted[begun] - self._weighted[ended])

    def _covered_before(self, places: Ints) -> Ints:
        last = self._starts.searchsorted(places, side="right") - 1
        if not len(self._starts):
            return np.zeros_like(places)
        inside = np.minimum(places - self._starts[np.maximum(last, 0)], self._own[np.maximum(last, 0)])
        return np.where(last < 0, 0, self._covered[np.maximum(last, 0)] + inside)


class _RowReadings:
    """How many tokens of each document were read, by kind."""

    def __init__(self, cache: AccountedCache, documents: int) -> None:
        self._special = np.array(cache.special_ids, dtype=np.int64)
        self._bos_id = (cache.meta.get("special_token_ids") or {}).get("bos")
        self._counts = {name: temporary_array(documents, np.int64) for name in _COUNTED}
        self._unique, self._of_epoch = (temporary_array(documents, np.int64) for _ in range(2))
        self._documents = documents
        self._makers: dict[int, Any] = {}
        self.outside = no_figures()[0]

    def add(self, run: ReadRun, source: SampleSource, located: SampleLocations, *, epoch: int) -> None:
        if id(run) not in self._makers:
            self._makers[id(run)] = make_maker(run.loader._sources, replace(run.loader._settings, fields=()), torch.device("cpu"))
        at_once = max(1, _TOKENS_AT_ONCE // source.T)
        for first in range(0, len(located), at_once):
            part = located.part(first, first + at_once)
            batch = self._makers[id(run)].make(part)
            if isinstance(batch, PreferenceBatch):
                self._count(side_of(source, "chosen"), part.numbers, batch.chosen, epoch=epoch)
                self._count(side_of(source, "rejected"), part.numbers, batch.rejected, epoch=epoch)
            else:
                packing = run.loader._settings.packing
                self._count(source, part.numbers, batch, epoch=epoch, has_bos=packing is not None and bool(packing.bos_on_pieces))

    def end_epoch(self) -> None:
        for first in range(0, self._documents, _SAMPLES_AT_ONCE):
            block = slice(first, first + _SAMPLES_AT_ONCE)
            self._unique[block] = np.maximum(self._unique[block], self._of_epoch[block])
            self._of_epoch[block] = 0

    def of_documents(self, first: int, count: int) -> tuple[dict[str, Ints], Ints]:
        """Return the counts by kind, and the unique tokens of text."""
        block = slice(first, first + count)
        return {name: np.asarray(values[block]) for name, values in self._counts.items()}, np.asarray(self._unique[block])

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
            _add_ones(self._counts[name], of_inputs[kind])
        _add_ones(self._of_epoch, of_inputs[text])
        self.outside[INDEX["bos"]] += np.count_nonzero(bos)
        self.outside[INDEX["padding"]] += np.count_nonzero(~is_input & ~bos)
        is_target: Bools = np.ones(tokens.shape, dtype=np.bool_) if batch.y_masked is None else batch.y_masked.numpy() != IGNORE_INDEX
        for name, kind in (("targets", is_target), ("masked", ~is_target)):
            _add_ones(self._counts[name], documents[:, 1:][kind & is_known[:, 1:]])
            self.outside[INDEX[name]] += np.count_nonzero(kind & ~is_known[:, 1:])


def _add_ones(counts: Array, documents: Ints) -> None:
    found, times = np.unique(documents, return_counts=True)
    counts[found] += times
