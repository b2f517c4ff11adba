"""The head of a stream, encoded until a token budget of val is met. Not much more is encoded than val needs.

A build encodes far ahead of what it writes. For a small budget, this would be many times the budget. So a head is encoded in rounds. A
round takes as many documents as the rest of the budget needs, by the bytes for a token so far. The first round takes one byte for each
missing token. No round takes more bytes than the budget and its rest have tokens together. A tokenizer gives at most one token for a byte,
so at most twice the budget is encoded, and one document. The documents of a round are encoded on all threads. A reader reads in batches,
so it has read a little more, and this is not encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing

import numpy as np

from niels_cache_assets.documents import DocumentBatch
from niels_cache_assets.streaming.splits import BudgetSplitter
from niels_cache_assets.streaming.types import EncodedDocuments
from niels_cache_assets.strings import Strings

_FRAME = 3  # BOS, EOT, and the blank that some tokenizers put before a text

Encode = Callable[[Iterable[DocumentBatch]], Generator[EncodedDocuments]]


def encoded_head(documents: Iterable[DocumentBatch], encode: Encode, splitter: BudgetSplitter) -> Generator[EncodedDocuments]:
    """Yield encoded documents in order until val of `splitter` is full, or the stream ends.

    encode: encodes a stream of documents in order. The caller places what it gets with `splitter` before it asks for more.
    """
    head = _Head(documents)
    budget, tokens = splitter.remaining["val"], 0
    while missing := splitter.remaining["val"]:
        most = missing if not tokens else min(-(-missing * head.bytes // tokens), budget + missing)
        is_over = True
        with closing(encode(head.take(most))) as batches:
            for batch in batches:
                tokens, is_over = tokens + len(batch.tokens), False
                yield batch
                if splitter.val_is_full:
                    return
        if is_over:
            return


class _Head:
    """A stream of documents that is taken in pieces. bytes: of the texts that were taken, with their frames."""

    def __init__(self, documents: Iterable[DocumentBatch]) -> None:
        self._batches = iter(documents)
        self._rest: DocumentBatch | None = None
        self.bytes = 0

    def take(self, most: int) -> Iterator[DocumentBatch]:
        """Yield documents up to this number of bytes. The last one may exceed it."""
        end = self.bytes + most
        while self.bytes < end:
            batch = next(self._batches, None) if self._rest is None else self._rest
            self._rest = None
            if batch is None:
                return
            ends = self.bytes + np.cumsum(_sizes(batch))
            count = min(len(batch), int(np.searchsorted(ends, end, side="left")) + 1)
            if count < len(batch):
                self._rest = batch[count:]
            if count:
                self.bytes = int(ends[count - 1])
                yield batch[:count]


def _sizes(batch: DocumentBatch) -> np.ndarray:
    """Return the bytes of each text with its frame, (n,) int64. A document has at most as many tokens."""
    if isinstance(batch.text, Strings):
        return np.diff(batch.text.buffers()[1]) + _FRAME
    return np.fromiter((len(text.encode("utf-8", "surrogatepass")) + _FRAME for text in batch.text), np.int64, len(batch))
