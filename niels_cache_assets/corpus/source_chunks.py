"""The unconverted documents of a source, in chunks of 256 documents or about a megabyte. The chunks do not depend on the source's batches.
Each chunk has its position in the stream.

Chunks are made before the earlier ones are finished, so each has its own position. A stream that is resumed there gives the same chunks as
a pass from the beginning. Memory: a chunk, and a small object for each one in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from niels_cache_assets.build_cache.resuming import Reached, take_up
from niels_cache_assets.corpus.chunks import Chunk
from niels_cache_assets.documents import DocumentBatch, Documents
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_assets.streaming.encode import document_chunks
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.types import Mark


class SourceChunks:
    """The chunks after `reached`, to iterate once. `context.report` is then the same as in a pass from the beginning."""

    def __init__(self, source: PretrainSource, context: StreamContext, reached: Reached | None) -> None:
        self._feed: Feed[Documents] = Feed(source.unconverted, context)
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
        """Each call moves on by one chunk, and returns the position after that chunk."""
        return self._under_way.popleft()
