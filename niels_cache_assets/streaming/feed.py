"""The batches of a source in order, and the points from which a build can resume this stream in the middle.

Between two batches, a source reports its position (SourceReport.position). A Feed then stores a ResumePoint: this position, the number of
items before it, and the counts so far. The rest of the stream can be opened from a ResumePoint. If a source reports no position, there are
no ResumePoints: its stream is opened at the beginning, and the items that are done are skipped. A build reads items before it encodes and
writes them; with more threads, it reads further ahead. Therefore each chunk has its own StreamPosition. Cost: one small object per batch.
This module writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from niels_cache_assets.base.documents import SourceReport
from niels_cache_assets.sources.excluding import without_excluded
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.sources.val_share import FractionSplitter
from niels_cache_assets.streaming.intake import in_lists
from niels_cache_assets.streaming.types import BuildPosition, ResumePoint, StreamPosition

Chunk = TypeVar("Chunk", bound=Sized)
Batch = TypeVar("Batch", bound=Sized)  # a list of documents or conversations, or a DocumentBatch


@dataclass(frozen=True, kw_only=True)
class ValShare:
    """The seeded share of documents that goes to val.

    Attributes:
        val_frac: The share, 0 to 1.
        seed: The seed of the choice.
        count: Returns the number of documents. It reads the source once more.
        exclude: The file with the ids of documents that are left out after the choice, so that the rest of val stays. None: no document is.
    """

    val_frac: float
    seed: int
    count: Callable[[], int]
    exclude: str | None = None


class Feed(Generic[Batch]):
    """The items of a source, in batches.

    `open` may be called several times. `report` and `mark` describe the stream that was opened last.
    """

    def __init__(
        self,
        batches: Callable[[StreamContext], Iterable[Batch]],
        context: StreamContext,
        *,
        share: ValShare | None = None,
        expected: int | None = None,
    ) -> None:
        """Prepare a feed, without opening the source.

        Args:
            batches: Opens the source.
            context: The context in which the source is opened.
            share: The rule that gives a split to documents without one. None: such documents stay without a split.
            expected: The number of items, if it is known without counting.
        """
        self._batches, self._context, self._share = batches, context, share
        self.report = context.report
        self.expected = expected
        self.mark: ResumePoint | None = None
        self._share_read: float | None = None  # share of the source that the earlier batches cover

    @classmethod
    def of(cls, items: Iterable[Any], report: SourceReport) -> Feed[list[Any]]:
        """Return a feed of an iterable of items. This feed has no ResumePoints, and the caller fills `report`."""
        return _IterableFeed(items, report)

    def count(self, known: int | None = None) -> bool:
        """Count the documents if a split by share needs their number, and return whether they were counted now.

        Args:
            known: The number from an earlier count, or None. If it is given, nothing is counted.
        """
        if self._share is None:
            return False
        self.expected = self._share.count() if known is None else known
        return known is None

    def open(self, mark: ResumePoint | None = None) -> Iterator[Batch]:
        """Yield all batches, or only the batches after a ResumePoint of an earlier stream."""
        context = replace(self._context, start=mark.place if mark else None)
        self.report.position, self.report.share, self.mark, self._share_read = None, None, mark, None
        for counter, counted in ((self.report.dropped, mark and mark.dropped), (self.report.facts, mark and mark.facts)):
            counter.clear()
            counter.update(counted or {})
        self.report.hints.clear()
        items, splitter = (mark.items, self._splitter(mark.unsplit)) if mark else (0, self._splitter(0))
        batches: Iterable[Any] = self._batches(context)
        if splitter and self._share:
            batches = without_excluded(splitter.batches(batches), self._share.exclude, self.report)
        for batch in batches:
            count = len(batch)
            yield batch
            del batch  # so that a long text is not kept in memory while the next batch is read
            items += count
            self._share_read = self.report.share
            if self.report.position is not None:
                self.mark = ResumePoint(
                    items=items,
                    unsplit=splitter.position if splitter else 0,
                    place=self.report.position,
                    dropped=dict(self.report.dropped),
                    facts=dict(self.report.facts),
                )

    def read_unreported(self) -> Iterator[Batch]:
        """Return all batches of a separate pass, which does not change `report` and `mark`."""
        feed = Feed(self._batches, replace(self._context, report=SourceReport()), share=self._share, expected=self.expected)
        return feed.open()

    def positioned(self, chunks: Iterable[Chunk], *, first: int) -> Iterator[tuple[Chunk, StreamPosition]]:
        """Yield each chunk of the opened stream with its StreamPosition.

        Args:
            chunks: The chunks.
            first: The number of items before the first chunk.
        """
        items = first
        for chunk in chunks:
            items += len(chunk)
            yield chunk, self.position(items)

    def position(self, items: int) -> StreamPosition:
        """Return the current position of the opened stream, after `items` items."""
        reached = BuildPosition(items=items, mark=self.mark, share=self._share_read)
        return StreamPosition(reached, self.report.dropped.copy(), dict(self.report.facts))

    def _splitter(self, position: int) -> FractionSplitter | None:
        if self._share is None:
            return None
        if self.expected is None:
            self.count()
        assert self.expected is not None
        whole = FractionSplitter.of(self.expected, val_frac=self._share.val_frac, seed=self._share.seed)
        return replace(whole, position=position)


class _IterableFeed(Feed[list[Any]]):
    def __init__(self, items: Iterable[Any], report: SourceReport) -> None:
        super().__init__(lambda context: iter(()), StreamContext(seed=0, report=report))
        self._items = items

    def open(self, mark: ResumePoint | None = None) -> Iterator[list[Any]]:
        return in_lists(self._items)
