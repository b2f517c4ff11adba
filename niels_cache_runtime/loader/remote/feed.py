"""The blocks that a process needs from its local copy, as its run moves on.

    position of the run --block_visits--> visits in use, visits to come --LocalCopy.declare_needs--> the record of the copy

A visit is in use if a sample of the next batch, of any rank, is in it. All processes of a machine have the same visits in the same order.
So the copy can keep what the slowest process needs. A batch costs a few comparisons, and something new only when a visit begins or ends.

If a visit ends within a batch and another one begins there, the batch is read in portions. So a batch needs no more blocks at a time than a
single sample. Only the newest feed of a loader chooses the blocks in use. An older one may still run on another thread, or end later.
"""

import sys
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import canonical_json, sha256_text
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.loader.blocks import BlockVisit
from niels_cache_runtime.loader.remote.windows import CopiedWindows
from niels_cache_runtime.loader.run_order import SampleLocations
from niels_cache_runtime.loader.settings import LoaderSettings
from niels_cache_runtime.loader.source import NamedSources
from niels_cache_runtime.remote.ledger import FileDemand, call_unlocked

_MAX_VISITS = 64  # the most that are recorded ahead of time
_NEVER = 2**62
_BLOCKS_AHEAD = 2  # in each lane, as far as they fit: with one, the streams would wait for the batches at the end of each block


class BlockFeed:
    """The progress of one process, which decides the blocks that it needs from the local copy.

    Args:
        named: All sources of the run. Those that come from a copy have the same LocalCopy.
        visits: The visits of these sources (`block_visits`).
        make: A function that makes a batch.
        settings: The settings of the loader.
        end: The sample at which the pass ends, or None.
        first: The first sample of the first batch, on all ranks.
        step: The samples from one batch of this process to the next.
    """

    _is_exiting = staticmethod(sys.is_finalizing)

    def __init__(
        self,
        named: NamedSources,
        visits: Iterator[BlockVisit],
        make: Callable[[SampleLocations], Batch],
        settings: LoaderSettings,
        *,
        end: int | None,
        first: int,
        step: int,
    ) -> None:
        self._make, self._first, self._step = make, first - step, step  # _first: of the last batch
        self._rows = settings.B * settings.world_size  # of a batch on all ranks
        self._sources, self._names = copied_sources(named), tuple(named)
        identity = {
            "settings": settings.sample_settings(),
            "weights": settings.weights,
            "machines": settings.machines,
            "sources": {name: source.fingerprint for name, source in named.items()},
        }
        self._run = sha256_text(canonical_json(identity))  # the same in all processes of the run
        self._ahead = _BLOCKS_AHEAD * len(self._sources) * settings.lanes // settings.machines  # the visits to download early
        self._all = tuple(self._sources.values())
        self._lead = self._all[0]
        self._key = object()  # the sources know this feed by it
        self._end = _NEVER if end is None else end
        self._copy = self._lead.copy
        self._visits = visits
        self._coming: deque[BlockVisit] = deque()
        self._current: list[BlockVisit] = []
        self._move_at = -1  # the first sample of a batch that needs other visits

    def batches(self, plan: Iterator[SampleLocations]) -> Iterator[Batch]:
        """Yield the batches of a plan. After an error, need nothing any more."""
        try:
            yield from map(self._next_batch, plan)
        except BaseException:  # also if the iterator is dropped
            self.stop()
            raise
        self.end_pass()

    def _next_batch(self, located: SampleLocations) -> Batch:
        """Return the next batch, with the samples at `located`."""
        copy = self._copy
        with copy.reading:
            self._first += self._step
            copy.is_fed = True
            try:
                if self._first >= self._move_at or self._lead.feed is not self._key:
                    return self._make_in_portions(located)
                return self._make(located)
            finally:
                copy.is_fed = False

    def _make_in_portions(self, located: SampleLocations) -> Batch:
        """Return the next batch, which needs other visits than the last one. First read the samples whose visits can leave early."""
        first = self._first
        try:
            while (reached := self._move(first)) < min(self._first + self._rows, self._end):
                self._read_early(located, reached)
                first = reached
            return self._make(located)
        finally:
            for source in self._all:
                source.early.clear()

    def end_pass(self) -> None:
        """Unmap everything, and ask for the first blocks of the next pass, because a faster process may be there already."""
        with self._copy.reading:
            if self._lead.feed is self._key:
                self._advance(self._end, self._end)
                self._unmap_until_next(max(0, self._end - 1))

    def stop(self) -> None:
        """Record in the copy that this process needs nothing any more. The garbage collector may call this."""
        if not self._is_exiting():  # when Python ends, other modules may be gone, and the kernel frees everything
            call_unlocked(self._stop)

    def _stop(self, *, may_wait: bool = False) -> None:
        if not self._copy.reading.acquire(blocking=may_wait):
            # The collector may run on a thread with another lock, for which the reading thread waits. threading.Thread has locks too.
            start_new_thread(self._stop, (), {"may_wait": True})
            return
        try:
            with suppress(NielsCacheError):  # the copy may have been removed
                if self._lead.feed is self._key and self._copy.is_reader():  # the collector may have ended the copy first
                    self._leave(0, [], run="")
        finally:
            self._copy.reading.release()

    def _unmap_until_next(self, position: int) -> None:
        """Map nothing until the next batch, and need its blocks later."""
        self._leave(position, [self._sources[visit.source].demand_of(visit, now=False) for visit in (*self._current, *self._coming)])

    def _leave(self, position: int, demands: list[FileDemand], *, run: str | None = None) -> None:
        for source in self._all:
            source.use_visits(None, feed=None)
        self._copy.declare_needs(self._run if run is None else run, position, demands, owners=self._all)

    def _read_early(self, located: SampleLocations, end: int) -> None:
        """Read those of the samples at `located` whose visits are over at sample `end`."""
        finished = [visit for visit in self._current if visit.end <= end]
        for number, epoch, places in located.groups():
            name = self._names[number]
            if blocks := [visit.block for visit in finished if (visit.source, visit.epoch) == (name, epoch)]:
                self._sources[name].read_early(located.numbers[places], blocks, epoch=epoch)

    def _move(self, first: int) -> int:
        """Let the sources read the visits of the last batch from sample `first` on, and record what this process needs now and next.

        The caller holds `copy.reading`.

        Returns:
            The sample at which this portion of the batch ends.
        """
        reached = self._advance(first, min(self._first + self._rows, self._end))
        first_end = min((visit.end for visit in self._current), default=_NEVER)
        next_move = self._coming[0].first - self._rows + 1 if self._coming else _NEVER
        self._move_at = min(first_end, next_move)
        for name, source in self._sources.items():
            source.use_visits([visit for visit in self._current if visit.source == name], feed=self._key)
        demands = [self._sources[visit.source].demand_of(visit, now=True) for visit in self._current]
        for number, visit in enumerate(self._coming):
            demands.append(self._sources[visit.source].demand_of(visit, now=number < self._ahead and visit.first < self._end))
        self._copy.declare_needs(self._run, first, demands, owners=self._all, again=self._renew)
        return reached

    def _renew(self) -> None:
        """Unmap everything for a slower process. A thread of the copy calls this, and holds `copy.reading`."""
        if self._lead.feed is self._key and self._copy.blocks_slower():
            self._unmap_until_next(self._first)

    def _advance(self, first: int, last: int) -> int:
        """Find the visits that the samples `first` to `last` - 1 of the run are in, and those after them. Return `last`.

        If one of these visits begins when another is over, find only those of the samples before it, and return its first sample.
        """
        while True:
            self._current = [visit for visit in self._current if visit.end > first]
            if not (self._coming or self._plan_visits()) or self._coming[0].first >= last:
                break
            if any(visit.end <= self._coming[0].first for visit in self._current):
                last = self._coming[0].first
                break
            self._current.append(self._coming.popleft())
        self._plan_visits()
        return last

    def _plan_visits(self) -> bool:
        """Fill `_coming` with as many visits as the copy can hold. Return whether there is one."""
        room = self._copy.limit - sum(map(self._bytes, (*self._current, *self._coming)))
        while (room > 0 or len(self._coming) < self._ahead) and len(self._coming) < max(_MAX_VISITS, self._ahead):
            visit = next(self._visits, None)
            if visit is None:
                break
            self._coming.append(visit)
            room -= self._bytes(visit)
        return bool(self._coming)

    def _bytes(self, visit: BlockVisit) -> int:
        return self._sources[visit.source].bytes_of(visit)


def copied_sources(named: NamedSources) -> dict[str, CopiedWindows]:
    """Return the sources that come from a local copy."""
    return {name: source for name, source in named.items() if isinstance(source, CopiedWindows)}
