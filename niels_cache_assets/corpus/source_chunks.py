"""The unconverted documents of a source, in chunks of 256 documents or about a megabyte.

Chunks do not depend on the batches of the source. Each chunk has its own position in the stream, because new chunks are made before earlier
chunks are finished. A stream that resumes at a position gives the same chunks as a pass from the beginning. The memory is that of a chunk,
and a small object for each chunk that is not finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from niels_cache_assets.build_cache.resuming import Reached, take_up
from niels_cache_assets.corpus.chunks import Chunk
from niels_cache_assets.documents import DocumentBatch, Documents
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.streaming.encode import document_chunks
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.types import Mark

Stream = Callable[[StreamContext], Iterator[Documents]]


class SourceChunks:
    """The chunks of a stream after `reached`. The chunks can be iterated only once.

    At the end, `context.report` is the same as after a pass from the beginning.
    """

    def __init__(self, unconverted: Stream, context: StreamContext, reached: Reached | None) -> None:
        self._feed: Feed[Documents] = Feed(unconverted, context)
        self._log, self._reached = context.log, reached
        self._under_way: deque[Reached] = deque()

    def __iter__(self) -> Iterator[Chunk]:
        def opened(mark: Mark | None) -> Iterator[DocumentBatch]:
            return map(DocumentBatch.of, self._feed.open(mark))

        documents, first = opened(None), 0
        if self._reached is not None:
            documents = take_up(opened, self._reached, log=self._log)
            first = self._reached.items
        chunks = document_chunks(documents)
        for chunk, position in self._feed.positioned(chunks, first=first):
            self._under_way.append(Reached(items=position.items, mark=position.mark, share=position.share))
            yield Chunk(position.items - len(chunk), list(chunk))

    def next_reached(self) -> Reached:
        """Return the position in the source after the next chunk. Each call moves on by one chunk, in the order in which the chunks were
        yielded.
        """
        return self._under_way.popleft()
