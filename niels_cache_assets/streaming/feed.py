"""The batches of a source in order, with everything that is needed to resume the stream in the middle.

Between batches, a source reports its position (SourceReport.place). A Feed stores the latest position, with the number of items before it
and the counts until then: a Mark. The rest of the stream can be opened from a Mark. A source that reports no position has no marks; its
stream is opened from the beginning and skipped. Items are read before they are encoded and written, the more so with more threads.
Therefore each chunk has its own Position. Cost: one small object per batch. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from niels_cache_assets.documents import SourceReport
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.sources.val_share import FractionSplitter
from niels_cache_assets.streaming.intake import in_lists
from niels_cache_assets.streaming.types import Mark, Position

Chunk = TypeVar("Chunk", bound=Sized)
Batch = TypeVar("Batch", bound=Sized)  # a list of documents or conversations, or a DocumentBatch


@dataclass(frozen=True, kw_only=True)
class ValShare:
    """The seeded share of documents that goes to val. `count` returns the number of documents, in an extra pass."""

    val_frac: float
    seed: int
    count: Callable[[], int]


class Feed(Generic[Batch]):
    """The items of a source, in batches. `open` may be called again; `report` and `mark` belong to the stream that was opened last."""

    def __init__(
        self,
        batches: Callable[[StreamContext], Iterable[Batch]],
        context: StreamContext,
        *,
        share: ValShare | None = None,
        expected: int | None = None,
    ) -> None:
        """`share`: assigns a split to documents without one. `expected`: the number of items, if it is known without counting."""
        self._batches, self._context, self._share = batches, context, share
        self.report = context.report
        self.expected = expected
        self.mark: Mark | None = None
        self._share_read: float | None = None  # share of the source in the batches before

    @classmethod
    def of(cls, items: Iterable[Any], report: SourceReport) -> Feed[list[Any]]:
        """Return a feed of any iterable of items, without marks. The caller fills `report`."""
        return _Plain(items, report)

    def count(self, known: int | None = None) -> bool:
        """Count the documents if a split by share needs their number. `known`: the number from an earlier count.

        Return whether they were counted now.
        """
        if self._share is None:
            return False
        self.expected = self._share.count() if known is None else known
        return known is None

    def open(self, mark: Mark | None = None) -> Iterator[Batch]:
        """Yield the batches from a mark of an earlier stream on, or all of them."""
        context = replace(self._context, start=mark.place if mark else None)
        self.report.place, self.report.share, self.mark, self._share_read = None, None, mark, None
        for counter, counted in ((self.report.dropped, mark and mark.dropped), (self.report.facts, mark and mark.facts)):
            counter.clear()
            counter.update(counted or {})
        self.report.hints.clear()
        items, splitter = (mark.items, self._splitter(mark.unsplit)) if mark else (0, self._splitter(0))
        for batch in self._batches(context):
            count = len(batch)
            yield splitter.split(batch) if splitter else batch  # type: ignore[misc, arg-type]  # only documents have a share for val
            del batch  # so that a long text is not kept in memory while the next batch is read
            items += count
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

    def read_unreported(self) -> Iterator[Batch]:
        """Return all batches in a pass that does not change `report` and `mark`."""
        feed = Feed(self._batches, replace(self._context, report=SourceReport()), share=self._share, expected=self.expected)
        return feed.open()

    def positioned(self, chunks: Iterable[Chunk], *, first: int = 0) -> Iterator[tuple[Chunk, Position]]:
        """Yield each chunk of the opened stream with its position. `first`: the number of items before all chunks."""
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


class _Plain(Feed[list[Any]]):
    def __init__(self, items: Iterable[Any], report: SourceReport) -> None:
        super().__init__(lambda context: iter(()), StreamContext(seed=0, report=report))
        self._items = items

    def open(self, mark: Mark | None = None) -> Iterator[list[Any]]:
        return in_lists(self._items)
