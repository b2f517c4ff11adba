"""The seeded share of a finite source's documents that goes to val.

`val_mask` is the rule, and `HashRule` is the rule for data sets in parts. `FractionSplitter` applies it to documents. A document that
carries a split keeps it. Streams with token budgets are split by `streaming.splits`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from niels_cache_assets.base.documents import NO_SPLIT, DocumentBatch, Documents
from niels_cache_assets.base.random_numbers import TorchRandom
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS


def val_mask(count: int, *, val_frac: float, seed: int) -> np.ndarray:
    """Return a mask of `count` items, True for items that go to val.

    If count > 1 and val_frac > 0, max(1, int(count * val_frac)) items go to val. Otherwise, no item goes to val. The first items of
    `torch.randperm(count)` under `seed` are val, so the choice depends only on `count`, `val_frac` and `seed`.
    """
    if not 0 <= val_frac < 1:
        raise NielsCacheError(f"val_frac is {val_frac}; it must be at least 0 and below 1")
    mask = np.zeros(count, dtype=bool)
    if count > 1 and val_frac > 0:
        mask[TorchRandom(seed).permutation(count)[: max(1, int(count * val_frac))]] = True
    return mask


class FractionSplitter:
    """A splitter of a finite source. `val_mask` chooses the documents of val, and both splits keep the input order.

    `count`: the number of documents without a split, from a first pass. `position`: the number of such documents that already got a split.
    """

    def __init__(self, *, count: int, val_frac: float, seed: int, position: int = 0) -> None:
        self._is_val = val_mask(count, val_frac=val_frac, seed=seed)
        self.position = position

    def split(self, documents: Documents) -> DocumentBatch:
        """Return the next documents of the stream, with their splits."""
        batch = DocumentBatch.of(documents)
        free = np.flatnonzero(batch.split == NO_SPLIT)
        if not len(free):
            return batch
        is_val = self._is_val[self.position : self.position + len(free)]
        self.position += len(free)
        split = batch.split.copy()
        split[free[: len(is_val)]] = np.where(is_val, SPLITS.index("val"), SPLITS.index("train"))  # `finish` raises an error for the rest
        return replace(batch, split=split)

    def finish(self) -> None:
        """Check the number of documents after the last document. Raises NielsCacheError if this number is not `count`."""
        if self.position != len(self._is_val):
            raise NielsCacheError(
                f"the source gave {self.position} documents, but counted {len(self._is_val)} before; build again when its files are stable"
            )


@dataclass(frozen=True, kw_only=True)
class HashRule:
    """The rule for data sets in parts: a document is val if a hash of the seed, its file and its row is small enough.

    About the share `val_frac` of the documents goes to val. Nothing is counted before, and no document changes its split if the data set
    grows. Cost: about a microsecond for each document.
    """

    val_frac: float
    seed: int

    def split(self, documents: Documents) -> DocumentBatch:
        """Return the documents with their splits. A document that already has a split keeps it."""
        batch = DocumentBatch.of(documents)
        chosen = np.where(self.val_mask(batch), SPLITS.index("val"), SPLITS.index("train")).astype(np.int8)
        return replace(batch, split=np.where(batch.split == NO_SPLIT, chosen, batch.split))

    def val_mask(self, batch: DocumentBatch) -> np.ndarray:
        """Return bool (documents,), True for the documents that go to val."""
        found = np.zeros(len(batch), dtype=bool)
        first = 0
        for file, group in groupby(batch.file.tolist()):
            prefix = hashlib.sha256(f"{self.seed}\0{file}\0".encode("utf-8", "surrogatepass"))
            stop = first + sum(1 for _ in group)
            found[first:stop] = [self._is_below(prefix, row) for row in batch.row[first:stop].tolist()]
            first = stop
        return found

    def _is_below(self, prefix: hashlib._Hash, row: int) -> bool:
        digest = prefix.copy()
        digest.update(str(row).encode())
        return int.from_bytes(digest.digest()[:8]) < self.val_frac * 2**64


def split_by_fraction(batches: Iterable[Documents], *, count: int, val_frac: float, seed: int) -> Iterator[DocumentBatch]:
    """Yield the documents, each with its split; see FractionSplitter."""
    splitter = FractionSplitter(count=count, val_frac=val_frac, seed=seed)
    for batch in batches:
        yield splitter.split(batch)
    splitter.finish()
