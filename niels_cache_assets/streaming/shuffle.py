"""A buffered shuffle: it yields the documents of a stream in a seeded order, and holds `buffer_size` documents in memory.

Each new document replaces a document of the buffer that is drawn uniformly, and the replaced document is yielded. At the end, the documents
in the buffer are yielded in a random order. The random numbers are torch's. They are drawn in blocks, because one call per document would
cost more than the shuffle. All documents of a batch are exchanged in one step. If a slot of the buffer is drawn twice for a batch, the old
document leaves first, and the document that replaced it leaves second.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.documents import DocumentBatch

_DRAWS_PER_BLOCK = 8192
_LAST_DOCUMENTS = 256  # documents of a batch when the buffer is emptied at the end
_COLUMNS = ("text", "source_id", "file", "row", "split", "characters")


def shuffled(batches: Iterable[DocumentBatch], *, buffer_size: int, seed: int) -> Iterator[DocumentBatch]:
    """Yield every document of `batches` once, in an order that depends only on `seed`, `buffer_size` and the input order."""
    import torch  # takes 1.5 s, so import it only in a process that shuffles

    generator = torch.Generator().manual_seed(seed)
    draws = np.empty(0, np.int64)

    def draw(count: int) -> NDArray[np.int64]:
        """Return `count` random slots of the buffer. Each block of random numbers is used from its end."""
        nonlocal draws
        while len(draws) < count:
            block = torch.randint(buffer_size, (_DRAWS_PER_BLOCK,), generator=generator).numpy()[::-1]
            draws = np.concatenate([draws, block])
        drawn, draws = draws[:count], draws[count:]
        return drawn

    first: list[DocumentBatch] = []
    filled = 0
    buffer: _Buffer | None = None
    for batch in batches:
        if buffer is None:
            missing = buffer_size - filled
            first.append(batch[:missing])
            filled += len(first[-1])
            if filled < buffer_size:
                continue
            buffer, batch = _Buffer(first), batch[missing:]
            first.clear()
        if len(batch):
            yield buffer.exchange(batch, draw(len(batch)))
    if buffer is None:
        if not first:
            return
        buffer = _Buffer(first)
    order = torch.randperm(len(buffer.documents), generator=generator).numpy()
    for start in range(0, len(order), _LAST_DOCUMENTS):
        yield buffer.documents[order[start : start + _LAST_DOCUMENTS]]


class _Buffer:
    """The documents in the buffer. Titles and redirects are left out, because no step after a shuffle reads them."""

    def __init__(self, batches: list[DocumentBatch]) -> None:
        waiting = DocumentBatch.joined([replace(batch, title=None, redirect=None) for batch in batches])
        self.documents = waiting[np.arange(len(waiting))]  # a copy, because `exchange` writes into its columns

    def exchange(self, incoming: DocumentBatch, slots: NDArray[np.int64]) -> DocumentBatch:
        """Put each incoming document into its slot, one after the other, and return the documents that the slots held before."""
        order = np.argsort(slots, kind="stable")
        again = slots[order[1:]] == slots[order[:-1]]
        before, after = order[:-1][again], order[1:][again]  # pairs of incoming documents in one slot: `after` replaces `before`
        stays = np.ones(len(slots), dtype=bool)
        stays[before] = False
        leaving = self.documents[slots]
        for name in (*_COLUMNS, *([] if self.documents.kept is None else ["kept"])):
            column, new = getattr(leaving, name), getattr(incoming, name)
            column[after] = new[before]
            getattr(self.documents, name)[slots[stays]] = new[stays]
        return leaving
