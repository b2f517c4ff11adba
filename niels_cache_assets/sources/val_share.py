"""The seeded share of a finite source's documents that goes to val.

`val_mask` is the rule, and `FractionSplitter` applies it to documents. `HashSplitRule` is the rule for data sets in parts. A document that
already has a split keeps it.

Streams with token budgets are split by `streaming.splits`.
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
    """Return a bool mask of shape (count,), True for items that go to val.

    The first items of `torch.randperm(count)` under `seed` are val, so the choice depends only on the arguments. If count > 1 and val_frac
    > 0, max(1, int(count * val_frac)) items go to val, otherwise none.

    Raises:
        NielsCacheError: If `val_frac` is not at least 0 and below 1.
    """
    if not 0 <= val_frac < 1:
        raise NielsCacheError(f"val_frac is {val_frac}; it must be at least 0 and below 1")
    mask = np.zeros(count, dtype=bool)
    if count > 1 and val_frac > 0:
        mask[TorchRandom(seed).permutation(count)[: max(1, int(count * val_frac))]] = True
    return mask


class FractionSplitter:
    """A splitter for a finite source.

    `val_mask` chooses the val documents, and both splits keep the input order.

    Args:
        count: The number of documents without a split, from a first pass.
        val_frac: The share of these documents that goes to val.
        seed: The seed of the choice.
        position: The number of these documents that already have a split.
    """

    def __init__(self, *, count: int, val_frac: float, seed: int, position: int = 0) -> None:
        self._is_val = val_mask(count, val_frac=val_frac, seed=seed)
        self.position = position

    def split(self, documents: Documents) -> DocumentBatch:
        """Return the next documents of the stream with their splits."""
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
        """Check the number of documents after the last one.

        Raises:
            NielsCacheError: If the stream had another number of documents without a split than the first pass counted.
        """
        if self.position != len(self._is_val):
            raise NielsCacheError(
                f"the source gave {self.position} documents, but counted {len(self._is_val)} before; build again when its files are stable"
            )


@dataclass(frozen=True, kw_only=True)
class HashSplitRule:
    """The rule for data sets in parts: a document is val if a hash of the seed, its file and its row is small enough.

    About the share `val_frac` of the documents goes to val. No documents are counted beforehand, and no document changes its split when the
    data set grows. It costs about a microsecond per document.
    """

    val_frac: float
    seed: int

    def split(self, documents: Documents) -> DocumentBatch:
        """Return the documents with their splits. A document that already has a split keeps it."""
        batch = DocumentBatch.of(documents)
        chosen = np.where(self.val_mask(batch), SPLITS.index("val"), SPLITS.index("train")).astype(np.int8)
        return replace(batch, split=np.where(batch.split == NO_SPLIT, chosen, batch.split))

    def val_mask(self, batch: DocumentBatch) -> np.ndarray:
        """Return a bool array of shape (documents,), True for the documents that go to val."""
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
    """Yield the documents, each with its split; see `FractionSplitter`."""
    splitter = FractionSplitter(count=count, val_frac=val_frac, seed=seed)
    for batch in batches:
        yield splitter.split(batch)
    splitter.finish()
