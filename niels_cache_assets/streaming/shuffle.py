"""A buffered shuffle, which yields the documents of a stream in a seeded order and holds `buffer_size` documents in memory.

Each new document replaces a document of the buffer that is drawn uniformly, and the replaced document is yielded. At the end, the documents
in the buffer are yielded in a random order. The random numbers are torch's. They are drawn in blocks, because one call per document would
cost more than the shuffle. All documents of a batch are exchanged in one step. If a slot of the buffer is drawn twice for a batch, the old
document leaves first, and the document that replaced it leaves second. shuffle_buffers.py holds the documents.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from niels_cache_assets.base.documents import DocumentBatch
from niels_cache_assets.base.random_numbers import TorchRandom
from niels_cache_assets.streaming.shuffle_buffers import Buffer, buffer_of
from niels_cache_runtime.format.layout import Ints

_DRAWS_PER_BLOCK = 8192
_LAST_DOCUMENTS = 256  # documents of a batch when the buffer is emptied at the end


def shuffled(batches: Iterable[DocumentBatch], *, buffer_size: int, seed: int) -> Iterator[DocumentBatch]:
    """Yield every document of `batches` once, in an order that depends only on `seed`, `buffer_size` and the input order."""
    random = TorchRandom(seed)
    draws = np.empty(0, np.int64)

    def draw(count: int) -> Ints:
        """Return `count` random slots of the buffer. Each block of random numbers is used from its end."""
        nonlocal draws
        while len(draws) < count:
            draws = np.concatenate([draws, random.below(buffer_size, _DRAWS_PER_BLOCK)[::-1]])
        drawn, draws = draws[:count], draws[count:]
        return drawn

    first: list[DocumentBatch] = []
    filled = 0
    buffer: Buffer | None = None
    for batch in batches:
        if buffer is None:
            missing = buffer_size - filled
            first.append(batch[:missing])
            filled += len(first[-1])
            if filled < buffer_size:
                continue
            buffer, batch = buffer_of(first), batch[missing:]
        if len(batch):
            slots = draw(len(batch))
            leaving = buffer.exchange(batch, slots)
            if leaving is None:
                buffer = buffer.with_objects()
                leaving = buffer.exchange(batch, slots)
                assert leaving is not None
            yield leaving
            del leaving
    if buffer is None:
        if not first:
            return
        buffer = buffer_of(first)
    order = random.permutation(len(buffer))
    for start in range(0, len(order), _LAST_DOCUMENTS):
        yield buffer.documents(order[start : start + _LAST_DOCUMENTS])
