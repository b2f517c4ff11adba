"""The source's own documents in chunks of 256 or about a megabyte, however it batches them, and how far the stream is behind each of them.

Chunks are made ahead of those whose work is done, so how far it was goes with each. A stream that is taken up there gives the chunks behind
it, the same as in a pass from the beginning. Memory: a chunk, and a small object for each that is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from niels_cache_assets.build_cache.resuming import Reached, take_up
from niels_cache_assets.corpus.chunks import Chunk
from niels_cache_assets.documents import Document
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_assets.streaming.encode import in_chunks
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.types import Mark


class SourceChunks:
    """To be iterated once, from what was `reached` on; `context.report` is then what it would be in a pass from the beginning."""

    def __init__(self, source: PretrainSource, context: StreamContext, reached: Reached | None) -> None:
        self._feed: Feed[Document] = Feed(source.unconverted, context)
        self._log, self._reached = context.log, reached
        self._under_way: deque[Reached] = deque()

    def __iter__(self) -> Iterator[Chunk]:
        def opened(mark: Mark | None) -> Iterator[Document]:
            return iter(self._feed.open(mark))

        documents, first = opened(None), 0
        if self._reached is not None:
            documents = take_up(opened, self._reached, log=self._log)
            first = self._reached.items
        chunks = in_chunks(documents, lambda document: len(document.text))
        for chunk, position in self._feed.positioned(chunks, first=first):
            self._under_way.append(Reached(items=position.items, mark=position.mark, share=position.share))
            yield Chunk(position.items - len(chunk), chunk)

    def next_reached(self) -> Reached:
        """How far the stream was behind the chunk after the one that was asked for last."""
        return self._under_way.popleft()
