"""The blocks that a process needs now and next, told to the local copy as the run moves on.

    position of the run --block_visits--> visits in use, visits to come --LocalCopy.need--> the record of the copy

A visit is in use if a sample of the next batch, of any rank, is in it. All processes of a machine have the same visits in the same order.
So the copy can keep what the slowest process needs. A batch costs two comparisons, and something new only when a visit begins or ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice

from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.loader.blocks.visits import BlockVisit
from niels_cache_runtime.loader.mixture import Located
from niels_cache_runtime.loader.remote.windows import CopiedWindows

_MOST_VISITS = 64  # that are told ahead
_NEVER = 2**62


class BlockFeed:
    """The progress of one process.

    sources: those that come from a copy, by name. All have the same LocalCopy. visits: see `block_visits`. run: a name of the run, the
    same in all its processes. end: the sample at which the pass ends, or None. ahead: the visits to download before they begin.
    """

    def __init__(
        self, sources: Mapping[str, CopiedWindows], visits: Iterator[BlockVisit], *, run: str, end: int | None, ahead: int
    ) -> None:
        self._sources, self._run, self._ahead = dict(sources), run, ahead
        self._end = _NEVER if end is None else end
        self._copy = next(iter(self._sources.values())).copy
        self._visits = (visit for visit in visits if visit.source in self._sources)
        self._coming: deque[BlockVisit] = deque()
        self._current: list[BlockVisit] = []
        self._first_end, self._next_first = -1, -1

    def advance(self, first: int, last: int) -> None:
        """Get ready for the samples first .. last-1 of the run, of which this process takes some.

        Raises NielsCacheError if the blocks of these samples are together above the limit of the copy.
        """
        if first >= self._first_end or last > self._next_first:
            self._move(first, min(last, self._end))

    def stop(self) -> None:
        """Need nothing any more."""
        with suppress(NotWrittenError):  # this also runs when an iterator is dropped, maybe after its copy was removed
            for source in self._sources.values():
                source.use_visits(None)
            self._copy.need("", 0, [])

    def _move(self, first: int, last: int) -> None:
        self._look_ahead()
        while self._coming and self._coming[0].first < last:
            self._current.append(self._coming.popleft())
            self._look_ahead()
        self._current = [visit for visit in self._current if visit.end > first]
        self._first_end = min((visit.end for visit in self._current), default=_NEVER)
        self._next_first = self._coming[0].first if self._coming else _NEVER
        needed = sum(map(self._bytes, self._current))
        if needed > self._copy.limit:
            raise NielsCacheError(
                f"limit_bytes={self._copy.limit:,}: one batch reads {len(self._current)} blocks of together {needed:,} bytes; raise it, or "
                "use larger block_shards or a smaller B"
            )
        for name, source in self._sources.items():
            source.use_visits([visit for visit in self._current if visit.source == name])
        wants = [self._sources[visit.source].want(visit, now=True) for visit in self._current]
        for place, visit in enumerate(self._coming):
            wants.append(self._sources[visit.source].want(visit, now=place < self._ahead and visit.first < self._end))
        self._copy.need(self._run, first, wants)

    def _look_ahead(self) -> None:
        """Fill `_coming` with as many visits as the copy can hold."""
        room = self._copy.limit - sum(map(self._bytes, [*self._current, *self._coming]))
        while (room > 0 or len(self._coming) < self._ahead) and len(self._coming) < max(_MOST_VISITS, self._ahead):
            more = list(islice(self._visits, 1))
            if not more:
                return
            self._coming += more
            room -= self._bytes(more[0])

    def _bytes(self, visit: BlockVisit) -> int:
        return self._sources[visit.source].bytes_of(visit)


def fed(
    plan: Iterator[Located],
    make: Callable[[Located], Batch],
    feed: BlockFeed,
    *,
    first: int,
    rows: int,
    worker: int,
    workers: int,
    done: int,
) -> Iterator[Batch]:
    """Yield the batches of a `plan` (`plan_batches` has the arguments). Before each, move the feed to it.

    first: the sample at which the plan begins. rows: the rows of a batch on all ranks. After an error too, the feed needs nothing any more.
    """
    try:
        for index, located in enumerate(plan, start=done):
            begin = first + (worker + index * workers) * rows
            feed.advance(begin, begin + rows)
            yield make(located)
    finally:
        feed.stop()
