"""The middle of a pretrain build: documents are taken from the source, encoded, compared with val, split and written, chunk by chunk.

Between two chunks a build can be stopped and taken up again: `State` is all it needs for that, next to what the writer has on the disk.
The guard that keeps val out of train is not recorded; it is shown val again, which is little. Settings, meta.json and the end are
pretrain.py's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from niels_cache_assets.build_cache.outcome import OnProgress, Progress
from niels_cache_assets.build_cache.resuming import Counts, Reached, take_up
from niels_cache_assets.disk.journal import Journal
from niels_cache_assets.documents import Document, SourceReport
from niels_cache_assets.streaming.decontaminate import TrainGuard
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.intake import as_documents
from niels_cache_assets.streaming.pretrain_writer import PretrainWriter, WriterState
from niels_cache_assets.streaming.shuffle import shuffled
from niels_cache_assets.streaming.splits import BudgetSplitter
from niels_cache_assets.streaming.types import EncodedDocuments, Mark, Position
from niels_cache_runtime.format.layout import Split

_LONG_COUNT_SECONDS = 1.0  # a pass over the source that took longer is worth a record of its own


@dataclass(frozen=True, kw_only=True)
class State:
    """A build between two chunks: `documents` of those that were reached are left, `dropped` are the builder's; `ended`: all is read."""

    reached: Reached
    documents: int
    expected: int | None
    remaining: dict[Split, int]
    dropped: dict[str, int]
    writer: WriterState
    ended: Counts | None


@dataclass(frozen=True, kw_only=True)
class PretrainStream:
    """What the middle of a build works with.

    `encode` is encode_documents with all that is set, `new_splitter` makes a splitter of the budgets (all of them, or what is left:
    `remaining`), `val_texts` are known to be of val before the build.
    """

    feed: Feed[Any]
    shuffle_buffer: int | None
    seed: int
    encode: Callable[..., Generator[EncodedDocuments]]
    new_splitter: Callable[..., BudgetSplitter]
    val_texts: Iterable[str | Document] | None
    progress: OnProgress | None
    log: Callable[[str], None]

    def write(self, writer: PretrainWriter, splitter: BudgetSplitter, guard: TrainGuard | None, journal: Journal | None) -> Counts:
        """Write the stream, or the rest of it where the journal has a state; `splitter` and `writer` are as they were then."""
        state: State | None = journal.state if journal is not None else None
        if state is not None and state.ended is not None:
            return state.ended
        counted = self.feed.count(state.expected if state is not None else None)
        seen, dropped = (state.documents, Counter(state.dropped)) if state is not None else (0, Counter[str]())

        def share(position: Position) -> float | None:
            if self.feed.expected:
                return seen / self.feed.expected
            return position.share if splitter.share is None else splitter.share

        def record(position: Position, *, ended: Counts | None = None) -> None:
            assert journal is not None
            on_disk, sizes = writer.checkpoint()
            now = State(
                reached=Reached(items=position.items, mark=position.mark if self.shuffle_buffer is None else None, share=position.share),
                documents=seen,
                expected=self.feed.expected,
                remaining=splitter.remaining,
                dropped=dict(dropped),
                writer=on_disk,
                ended=ended,
            )
            journal.record(
                asdict(now),
                finished=writer.files,
                files=sizes,
                sums=sizes.sums,
                bytes_written=writer.bytes,
                share=share(position),
                documents=seen,
            )

        if guard is not None and self.val_texts is not None:
            with closing(self.encode(as_documents(self.val_texts), feed=Feed.of((), SourceReport()))) as given:
                for batch in given:
                    guard.read_val(batch)
        position = Position(0, None, Counter(), {}, None)
        if journal is not None and counted and journal.due(writer.bytes, finished=len(writer.files), seconds=_LONG_COUNT_SECONDS):
            record(position)
        documents = self._documents(state, guard)
        first = state.reached.items if state is not None else 0
        with closing(self.encode(documents, feed=self.feed, first=first, screen=guard.screen if guard else None)) as batches:
            for batch in batches:
                position = batch.position
                if guard is not None:
                    batch = guard.admit(batch, is_val=splitter.val_mask(batch))
                dropped.update(batch.dropped)
                writer.write(splitter.place(batch))
                seen += len(batch.documents)
                if self.progress is not None:
                    self.progress(Progress(seen, writer.tokens("train") + writer.tokens("val"), share(position)))
                if splitter.met:
                    source_dropped, facts = position.dropped, position.facts  # and not what was read ahead
                    break
                del batch  # a long text is not held while the next is encoded
                if journal is not None and journal.due(writer.bytes, finished=len(writer.files)):
                    record(position)
            else:
                source_dropped, facts = self.feed.report.dropped, self.feed.report.facts
        ended = Counts(dropped=dict(dropped + source_dropped), facts=facts)
        if journal is not None and journal.recorded:
            record(position, ended=ended)  # what is left to do takes time, too
        return ended

    def _documents(self, state: State | None, guard: TrainGuard | None) -> Iterator[Document]:
        """What there is to encode, and, of a build that goes on, the guard as it was."""

        def stream(mark: Mark | None) -> Iterator[Document]:
            documents = as_documents(self.feed.open(mark), first=mark.items if mark else 0)
            return documents if self.shuffle_buffer is None else shuffled(documents, buffer_size=self.shuffle_buffer, seed=self.seed)

        def show_val(documents: Iterator[Document]) -> None:
            """The documents up to where val was complete, split as they were then."""
            assert guard is not None
            splitter = self.new_splitter()
            with closing(self.encode(documents, feed=Feed.of((), SourceReport()))) as batches:
                for batch in batches:
                    guard.admit(batch, is_val=splitter.val_mask(batch))
                    if guard.val_is_known:
                        return
                    splitter.place(batch)

        if state is None:
            return stream(None)
        return take_up(stream, state.reached, log=self.log, replay=show_val if guard is not None else None)
