"""The choice of duplicates to drop. Documents are visited in order; a document is dropped if an earlier kept document matches it.

Two documents match if they share a band (and, with `verify`, are similar enough), or if they have the same digest (exact duplicates). The
result is the same as if the documents were inserted one after another into an index, but no index is needed. First, buckets.py finds which
documents share a hash, in files. Then one pass reads the bucket numbers of all bands, in order of the documents. The pass remembers the
first kept document of each bucket. With `verify`, it remembers the first 64. The order of `signatures` decides which document is first.

The cost is that of the buckets, and one pass. No step is quadratic, even if many documents are equal. This module reads no texts: the
caller defines the similarity. The memory depends on the buckets:

* With those of buckets.py, the pass takes 4 bytes a bucket. `verify` takes 17 bytes a bucket, 4 bytes for each document that may be
  compared, and the memory of the similarity function. The members of the buckets are in a memory-mapped file in `scratch` (at most 4 bytes
  a document and band).
* With those of ranges.py, the pass holds one window of documents and its buckets, so its memory is bounded, whatever the number of
  documents and buckets. Digests are compared in a memory map.

In addition, each dropped document takes 13 bytes (21 bytes if there are 2^32 documents or more).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.dedup.buckets import Buckets, Kept, Record, Steps, Window, number_buckets
from niels_cache_assets.dedup.ranges import RangedBuckets
from niels_cache_assets.dedup.signatures import Signatures, compiled
from niels_cache_assets.disk.space import naming
from niels_cache_runtime.format.npy_files import create_npy

MEMBERS_COMPARED = 64  # `verify` compares at most this many members of a bucket
_SAME, _UNKNOWN = np.float32(1), np.float32(np.nan)  # similarities
_MOST_DOCUMENTS_OF_32_BITS = np.iinfo(np.uint32).max  # this number itself means that there is no document
_Columns = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]  # the columns of Dropped, for some of the documents


@dataclass(frozen=True, kw_only=True)
class Verify:
    """An additional condition for duplicates. Documents that share a band must also reach a similarity of `threshold`.

    `similarity` is called once, with the ordinals (numbers) of all documents that may be compared, ascending (n,) uint32 or uint64. It
    returns a function, and this function is then called for pairs of these ordinals. Of documents with the same digest, only the first is
    compared, so many equal copies cost as much as two.
    """

    similarity: Callable[[NDArray[Any]], Callable[[int, int], float]]
    threshold: float


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """The dropped documents in order, as arrays of shape (n,).

    `ordinals` and `because` are uint32, or uint64 for 2^32 documents or more. `because` is the earliest kept document that is the reason.
    `exact` is bool, and says whether the digests are equal. `similarity` is float32. It is 1 for exact duplicates, the measured value with
    `verify`, and NaN otherwise.
    """

    documents: int
    ordinals: NDArray[Any]
    because: NDArray[Any]
    exact: NDArray[np.bool_]
    similarity: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ordinals)


def keep_first(
    signatures: Iterable[Signatures],
    *,
    bands: int,
    rows: int,
    scratch: Path,
    verify: Verify | None = None,
    done: Steps | None = None,
    record: Record = lambda steps, files: False,
) -> Dropped:
    """Return the documents to drop. The order of the signatures decides which copy is kept; `ordinals` count from 0 in this order.

    `scratch` is an existing folder; the caller removes its content. If an earlier kept document has the same digest, a document is dropped
    even without the condition of `verify`. `done` and `record` are the arguments of `number_buckets`; steps after `done` are repeated.
    Raises the errors of `number_buckets`.
    """
    return drop_later(number_buckets(signatures, bands=bands, rows=rows, scratch=scratch, done=done, record=record), verify=verify)


def drop_later(buckets: Buckets | RangedBuckets, *, verify: Verify | None) -> Dropped:
    """Return the documents to drop. The buckets are those of the whole input."""
    found: list[_Columns] = []
    dtype = np.dtype(np.uint32 if buckets.documents <= _MOST_DOCUMENTS_OF_32_BITS else np.uint64)
    if buckets.documents:
        buckets.forget()
        similarity = None if verify is None else _similarity(verify, buckets, dtype)
        for window in buckets.windows():
            digests = buckets.digests()  # a map for each window, so that pages of earlier windows take no memory
            if verify is None or similarity is None:
                found += _drop(window, digests, dtype)
            else:
                found += _drop_verified(window, digests, similarity, verify.threshold, buckets.scratch, dtype)
    return _dropped(buckets.documents, found, dtype)


def _drop(window: Window, digests: NDArray[np.uint8], dtype: np.dtype) -> list[_Columns]:
    """Run the pass without `verify` over a window. It remembers the first kept document of each bucket."""
    none = dtype.type(np.iinfo(dtype).max)
    first_kept = np.full(window.count, none, dtype=dtype)
    numbers, documents = window.received()
    first_kept[numbers] = documents
    found = []
    for start, block in window.blocks():
        because = np.full(block.shape[1], none, dtype=dtype)
        exact = np.zeros(block.shape[1], dtype=np.bool_)
        compiled(_keep_block)(start, block, digests, first_kept, because, exact, none)
        gone = np.flatnonzero(because != none)
        found.append((gone.astype(dtype) + dtype.type(start), because[gone], exact[gone], np.where(exact[gone], _SAME, _UNKNOWN)))

    def kept() -> Kept:
        buckets = np.flatnonzero(first_kept != none)
        return buckets.astype(np.uint32), first_kept[buckets]

    window.pass_on(kept)
    return found


def _keep_block(
    start: int,
    block: NDArray[np.uint32],
    digests: NDArray[np.uint8],
    first_kept: NDArray[Any],
    because: NDArray[Any],
    exact: NDArray[np.bool_],
    none: Any,
) -> None:
    """Fill `because` and `exact` for one block of bucket numbers, (bands + 1, n).

    Row 0 belongs to the digests. `none`: the number that means no document. The loops are plain, because numba compiles them.
    """
    for column in range(block.shape[1]):
        ordinal = start + column
        twin = first_kept[block[0, column]]
        if block[0, column] != 0 and twin != none:
            same = True
            for byte in range(digests.shape[1]):
                same = same and digests[twin, byte] == digests[ordinal, byte]
            if same:
                because[column] = twin
                exact[column] = True
                continue
        for band in range(1, block.shape[0]):
            if block[band, column] != 0:
                because[column] = min(because[column], first_kept[block[band, column]])
        if because[column] == none:
            for band in range(block.shape[0]):
                if block[band, column] != 0 and first_kept[block[band, column]] == none:
                    first_kept[block[band, column]] = ordinal


class _Members:
    """The first MEMBERS_COMPARED kept documents of each bucket, in a memory-mapped file in `scratch`."""

    def __init__(self, window: Window, scratch: Path, dtype: np.dtype) -> None:
        numbers, documents = window.received()
        sizes = window.sizes() + np.bincount(numbers, minlength=window.count)
        self._room = np.concatenate([[0], np.cumsum(np.minimum(sizes, MEMBERS_COMPARED), dtype=np.int64)])
        self._filled = np.zeros(window.count, dtype=np.uint8)
        self._documents = np.empty(0, dtype=dtype)
        if self._room[-1]:
            with naming(scratch / "members.npy"):
                self._documents = create_npy(scratch / "members.npy", dtype, (int(self._room[-1]),))
        for bucket, document in zip(numbers.tolist(), documents.tolist(), strict=True):
            self.add(bucket, document)

    def of(self, bucket: int) -> NDArray[Any]:
        begin = self._room[bucket]
        return self._documents[begin : begin + self._filled[bucket]]

    def add(self, bucket: int, document: int) -> None:
        if self._filled[bucket] < MEMBERS_COMPARED:
            self._documents[self._room[bucket] + self._filled[bucket]] = document
            self._filled[bucket] += 1

    def all(self) -> Kept:
        """Return (bucket, document) for all documents, ascending by bucket."""
        buckets = np.repeat(np.arange(len(self._filled), dtype=np.uint32), self._filled)
        own = np.arange(len(buckets)) - np.repeat(np.cumsum(self._filled, dtype=np.int64) - self._filled, self._filled)
        return buckets, self._documents[self._room[buckets] + own]


def _similarity(verify: Verify, buckets: Buckets | RangedBuckets, dtype: np.dtype) -> Callable[[int, int], float]:
    """Return the function that compares two documents. The documents that may be compared are in a bucket of some band, and are the first
    with their digest.
    """
    found, has_buckets = [np.empty(0, dtype=dtype)], False
    for window in buckets.windows():
        has_buckets = has_buckets or window.count > 1
        first_of, digests = window.first_documents(dtype), buckets.digests()
        for start, block in window.blocks():
            ordinals = np.arange(start, start + block.shape[1], dtype=dtype)
            own = _representatives(ordinals, block[0], digests, first_of) == ordinals
            found.append(ordinals[block[1:].any(axis=0) & own])
    return verify.similarity(np.concatenate(found)) if has_buckets else lambda earlier, later: 0.0


def _drop_verified(
    window: Window,
    digests: NDArray[np.uint8],
    similarity: Callable[[int, int], float],
    threshold: float,
    scratch: Path,
    dtype: np.dtype,
) -> list[_Columns]:
    """Run the pass with `verify` over a window."""
    members = _Members(window, scratch, dtype)
    first_of = window.first_documents(dtype)
    found = []

    def match(ordinal: int, representative: int, own: list[int]) -> tuple[int, bool, float] | None:
        for twin in members.of(own[0]).tolist():
            if bytes(digests[twin]) == bytes(digests[ordinal]):
                return twin, True, 1.0
        for earlier in sorted({earlier for bucket in own[1:] for earlier in members.of(bucket).tolist()}):
            measured = similarity(earlier, representative)
            if measured >= threshold:
                return earlier, False, measured
        return None

    for start, block in window.blocks():
        rows = []
        ordinals = np.arange(start, start + block.shape[1], dtype=dtype)
        representatives = _representatives(ordinals, block[0], digests, first_of)
        for column in np.flatnonzero(block.any(axis=0)).tolist():
            own = block[:, column].tolist()
            matched = match(start + column, int(representatives[column]), own)
            if matched is not None:
                rows.append((start + column, *matched))
                continue
            for bucket in own:
                if bucket:
                    members.add(bucket, start + column)
        if rows:
            dropped, because, exact, measured = zip(*rows, strict=True)
            found.append((np.array(dropped), np.array(because), np.array(exact), np.array(measured)))
    window.pass_on(members.all)
    return found


def _representatives(
    ordinals: NDArray[Any], buckets: NDArray[np.uint32], digests: NDArray[np.uint8], first_of: NDArray[Any]
) -> NDArray[Any]:
    """Return for each of these documents the first document with the same digest, (n,). Usually this is the document itself.

    `buckets`: the bucket of the digest of each document. `first_of`: the first document of each bucket of digests.
    """
    representatives = ordinals.copy()
    shared = np.flatnonzero(buckets)
    first = first_of[buckets[shared]]
    same = (digests[first] == digests[ordinals[shared]]).all(axis=1)
    representatives[shared[same]] = first[same]
    return representatives


def _dropped(documents: int, found: list[_Columns], dtype: np.dtype) -> Dropped:
    def column(index: int, dtype: type[Any] | np.dtype) -> NDArray[Any]:
        return np.concatenate([np.empty(0, dtype=dtype), *(columns[index].astype(dtype, copy=False) for columns in found)])

    return Dropped(
        documents=documents,
        ordinals=column(0, dtype),
        because=column(1, dtype),
        exact=column(2, np.bool_),
        similarity=column(3, np.float32),
    )
