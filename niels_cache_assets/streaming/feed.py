"""The items of a source in order, with what is needed to take the stream up again in the middle of it.

A source says between its batches where it is (SourceReport.place). A Feed keeps the latest such place together with how many items came
before it and what was counted until then: a Mark, from which the rest of the stream can be opened. A source that does not say where it is
has no marks; its stream is opened from the beginning and read to where it was. Items are read ahead of what is encoded and written, by more
on more threads: a Position, taken with each chunk, goes with it. Cost: one small object per batch. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from niels_cache_assets.documents import SourceReport
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.sources.val_share import FractionSplitter
from niels_cache_assets.streaming.types import Mark, Position

Item = TypeVar("Item")
Batch = TypeVar("Batch", bound=list[Any])


@dataclass(frozen=True, kw_only=True)
class ValShare:
    """The seeded share of documents that goes to val; `count` says of how many, in a pass of its own."""

    val_frac: float
    seed: int
    count: Callable[[], int]


class Feed(Generic[Item]):
    """A source's items. `open` may be called again; `report` and `mark` are of the stream that was opened last."""

    def __init__(
        self,
        batches: Callable[[StreamContext], Iterable[list[Item]]],
        context: StreamContext,
        *,
        share: ValShare | None = None,
        expected: int | None = None,
    ) -> None:
        """`share`: the documents get their split by it. `expected`: the number of items, where it is known without counting."""
        self._batches, self._context, self._share = batches, context, share
        self.report = context.report
        self.expected = expected
        self.mark: Mark | None = None
        self._share_read: float | None = None  # of the source, by the batches that are behind

    @classmethod
    def of(cls, items: Iterable[Item], report: SourceReport) -> Feed[Item]:
        """The items of any iterable, which has no marks; `report` is filled by whoever gives them."""
        return _Plain(items, report)

    def count(self, known: int | None = None) -> bool:
        """Count the documents if they are split by share, which needs their number; `known` is what was counted before.

        Whether it was counted now.
        """
        if self._share is None:
            return False
        self.expected = self._share.count() if known is None else known
        return known is None

    def open(self, mark: Mark | None = None) -> Iterable[Item]:
        """The items from a mark of an earlier stream on, or all of them."""
        context = replace(self._context, start=mark.place if mark else None)
        self.report.place, self.report.share, self.mark, self._share_read = None, None, mark, None
        for counter, counted in ((self.report.dropped, mark and mark.dropped), (self.report.facts, mark and mark.facts)):
            counter.clear()
            counter.update(counted or {})
        self.report.hints.clear()
        items, splitter = (mark.items, self._splitter(mark.unsplit)) if mark else (0, self._splitter(0))
        for batch in self._batches(context):
            yield from map(splitter.split, batch) if splitter else batch  # type: ignore[arg-type]
            items += len(batch)
            self._share_read = self.report.share
            if self.report.place is not None:
                self.mark = Mark(
                    items=items,
                    unsplit=splitter.position if splitter else 0,
                    place=self.report.place,
                    dropped=dict(self.report.dropped),
                    facts=dict(self.report.facts),
                )
        if splitter:
            splitter.finish()

    def read_unreported(self) -> Iterable[Item]:
        """All items in a pass that leaves `report` and `mark` alone."""
        feed = Feed(self._batches, replace(self._context, report=SourceReport()), share=self._share, expected=self.expected)
        return feed.open()

    def positioned(self, chunks: Iterable[Batch], *, first: int = 0) -> Iterator[tuple[Batch, Position]]:
        """Each chunk of what was opened with its position, `first` items being before them all."""
        items = first
        for chunk in chunks:
            items += len(chunk)
            yield chunk, Position(items, self.mark, self.report.dropped.copy(), dict(self.report.facts), self._share_read)

    def _splitter(self, position: int) -> FractionSplitter | None:
        if self._share is None:
            return None
        if self.expected is None:
            self.count()
        assert self.expected is not None
        return FractionSplitter(count=self.expected, val_frac=self._share.val_frac, seed=self._share.seed, position=position)


class _Plain(Feed[Item]):
    def __init__(self, items: Iterable[Item], report: SourceReport) -> None:
        super().__init__(lambda context: iter(()), StreamContext(seed=0, report=report))
        self._items = items

    def open(self, mark: Mark | None = None) -> Iterable[Item]:
        return self._items
