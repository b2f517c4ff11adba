"""Where a build is in the stream of a source, as JSON values, and how it gets there again.

`PlacedStream` counts what is taken from a source and remembers the last place before it that the source reported; a stream that is started
at such a `Position` gives the rest: the source begins at the place, with the counts it had there, and the few documents between are passed
over. A source that reports no place is read from the beginning, and all that was taken is passed over. Cost: a copy of the source's counts
for each batch. What is done with the documents is the builders'.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from niels_cache_assets.documents import Place
from niels_cache_assets.sources.base import StreamContext
from niels_cache_runtime.errors import NielsCacheError

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Position:
    """Behind `taken` documents of a stream. Document number `before` is the first one of a source that starts at `place`, where it had
    left out `dropped` and found `facts`. All of it JSON values.
    """

    taken: int = 0
    before: int = 0
    place: Place | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class PlacedStream(Generic[Item]):
    """The documents behind `start` of what `batches` streams in a context, one by one. To be iterated once.

    The report of `context` is what it would be had the stream been read from its beginning. `log` is told what had to be read again.
    """

    def __init__(
        self, batches: Callable[[StreamContext], Iterator[list[Item]]], context: StreamContext, start: Position | None = None
    ) -> None:
        start = start or Position()
        self._report, self._log = context.report, context.log
        self._report.dropped, self._report.facts = Counter(start.dropped), deepcopy(start.facts)
        self._passed_over = start.taken - start.before
        self._last = start
        self._taken = start.before
        self._batches = batches(replace(context, start=start.place))

    @property
    def position(self) -> Position:
        """Behind what was taken so far."""
        return replace(self._last, taken=self._taken)

    def __iter__(self) -> Iterator[Item]:
        items = self._items()
        started = time.monotonic()
        for count in range(self._passed_over):
            if next(items, None) is None:
                raise NielsCacheError(f"the source ended after {count} of {self._passed_over} documents that were read before; use --force")
        if self._passed_over:
            self._log(f"passed over {self._passed_over:,} documents that are done in {time.monotonic() - started:.1f} s")
        yield from items

    def _items(self) -> Iterator[Item]:
        for batch in self._batches:
            for item in batch:
                self._taken += 1
                yield item
            if self._report.place is not None:
                dropped, facts = dict(self._report.dropped), deepcopy(self._report.facts)
                self._last = Position(taken=self._taken, before=self._taken, place=self._report.place, dropped=dropped, facts=facts)
