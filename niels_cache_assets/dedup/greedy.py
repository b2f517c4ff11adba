"""The choice of duplicates to drop. Documents are visited in order; a document is dropped if an earlier kept document matches it.

Two documents match if they share a band (and, with `verify`, are similar enough), or if they have the same digest (exact duplicates). The
result is the same as if the documents were inserted one after another into an index, but no index is needed. First, ranges.py finds which
documents share a hash, in files. Then one pass reads the buckets of all bands, in order of the documents, window by window. The pass
remembers the first kept document of each bucket, or the first 64 with `verify`. The order of the signatures determines which document is
first.

The cost is that of the buckets, and one pass. No step is quadratic, even if many documents are equal. This module reads no texts: the
caller defines the similarity. The pass holds one window of documents and its buckets, so its memory is bounded, whatever the number of
documents and buckets. Digests are compared in a memory map. `verify` takes 4 bytes more for each document that may be compared, and the
memory of the similarity function. Each dropped document takes 13 bytes (21 bytes if there are 2^32 documents or more).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.dedup.kernels import compiled
from niels_cache_assets.dedup.ranges import Buckets, DocumentWindow, KeptDocuments
from niels_cache_runtime.format.layout import Array, Bools, Bytes, Ints, Uint32s

MEMBERS_COMPARED = 64  # `verify` compares at most this many members of a bucket
_SAME, _UNKNOWN = np.float32(1), np.float32(np.nan)  # similarities
_MAX_DOCUMENTS_OF_32_BITS = np.iinfo(np.uint32).max  # this number itself means that there is no document
_Columns = tuple[Array, Array, Array, Array]  # the columns of DropDecisions, for some of the documents


@dataclass(frozen=True, kw_only=True)
class SimilarityCondition:
    """An additional condition for duplicates: documents that share a band must also reach a similarity.

    Of documents with the same digest, only the first is compared, so many equal copies cost as much as two.

    Attributes:
        similarity: Called once with the ordinals (numbers) of all documents that may be compared, ascending, (n,) uint32 or uint64. Returns
            a function that is then called for pairs of these ordinals.
        threshold: Minimum similarity of duplicates.
    """

    similarity: Callable[[Array], Callable[[int, int], float]]
    threshold: float


@dataclass(frozen=True, kw_only=True)
class DropDecisions:
    """The dropped documents in order, as arrays of shape (n,).

    Attributes:
        documents: Number of all documents.
        ordinals: Ordinals of the dropped documents, uint32, or uint64 for 2^32 documents or more.
        kept_copies: Earliest kept document that is the reason, in the same dtype.
        exact: Whether the digests are equal, bool.
        similarity: float32: 1 for exact duplicates, the measured value with `verify`, and otherwise NaN.
    """

    documents: int
    ordinals: Array
    kept_copies: Array
    exact: Bools
    similarity: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ordinals)


def drop_later(buckets: Buckets, *, verify: SimilarityCondition | None) -> DropDecisions:
    """Return the documents to drop, given the buckets of the whole input."""
    found: list[_Columns] = []
    dtype = np.dtype(np.uint32 if buckets.documents <= _MAX_DOCUMENTS_OF_32_BITS else np.uint64)
    if buckets.documents:
        buckets.remove_carried_over()
        similarity = None if verify is None else _similarity(verify, buckets, dtype)
        for window in buckets.windows():
            digests = buckets.digests()  # a map for each window, so that pages of earlier windows take no memory
            found += _drop(window, digests, dtype, similarity, verify.threshold if verify is not None else 0.0)
    nothing = (np.empty(0, dtype), np.empty(0, dtype), np.empty(0, np.bool_), np.empty(0, np.float32))
    ordinals, kept_copies, exact, similar = (np.concatenate(columns) for columns in zip(nothing, *found, strict=True))
    return DropDecisions(documents=buckets.documents, ordinals=ordinals, kept_copies=kept_copies, exact=exact, similarity=similar)


class _Members:
    """The first kept documents of each bucket, at most `limit`."""

    def __init__(self, window: DocumentWindow, dtype: np.dtype, *, limit: int) -> None:
        numbers, documents = window.read_carried_over()
        sizes = window.sizes + np.bincount(numbers, minlength=window.count)
        self.limit = limit
        self.room = np.concatenate([[0], np.cumsum(np.minimum(sizes, limit), dtype=np.int64)])
        self.filled = np.zeros(window.count, dtype=np.uint8)
        self.documents = np.empty(int(self.room[-1]), dtype=dtype)
        _keep_members(numbers, documents.astype(dtype, copy=False), limit, self.room, self.filled, self.documents)

    def all(self) -> KeptDocuments:
        """Return (bucket, document) for all documents, ascending by bucket."""
        buckets = np.repeat(np.arange(len(self.filled), dtype=np.uint32), self.filled)
        own = np.arange(len(buckets)) - np.repeat(np.cumsum(self.filled, dtype=np.int64) - self.filled, self.filled)
        return buckets, self.documents[self.room[buckets] + own]


@compiled
def _keep_members(buckets: Uint32s, kept: Array, limit: int, room: Ints, filled: Bytes, documents: Array) -> None:
    """Add documents to buckets, in order."""
    for index in range(len(buckets)):
        bucket = buckets[index]
        if filled[bucket] < limit:
            documents[room[bucket] + filled[bucket]] = kept[index]
            filled[bucket] += 1


@compiled
def _next_to_compare(
    start: int,
    block: Uint32s,
    digests: Bytes,
    column: int,
    is_kept: bool,
    compares: bool,
    limit: int,
    room: Ints,
    filled: Bytes,
    documents: Array,
    kept_copies: Array,
    exact: Bools,
    measured: NDArray[np.float32],
    candidates: Array,
) -> tuple[int, int]:
    """Run the pass from a column to the next document that must be compared.

    A document with the digest of a kept one is written to `kept_copies`, `exact` and `measured`.

    Args:
        start: Ordinal of the first column.
        block: Bucket numbers, (bands + 1, columns).
        digests: Digests of all documents.
        column: Where the pass begins.
        is_kept: Whether the document of this column was compared and is kept.
        compares: Whether candidates must be compared. If not, the first of them is the reason to drop a document.
        limit: See _Members.
        room: See _Members.
        filled: See _Members.
        documents: See _Members.
        kept_copies: Receives the kept document for which a document is dropped, (columns,).
        exact: Receives whether the digests are equal, (columns,).
        measured: Receives the similarity, (columns,).
        candidates: Receives the kept documents in the buckets of the document to compare, ascending.

    Returns:
        The column of the document to compare, or the number of columns at the end of the block, and the number of candidates.
    """
    while column < block.shape[1]:
        is_dropped = False
        if not is_kept:
            bucket = block[0, column]
            for index in range(filled[bucket]):
                twin = documents[room[bucket] + index]
                same = True
                for byte in range(digests.shape[1]):
                    same = same and digests[twin, byte] == digests[start + column, byte]
                if same:
                    kept_copies[column], exact[column], measured[column] = twin, True, _SAME
                    is_dropped = True
                    break
            count = 0
            for band in range(1, block.shape[0]):
                bucket = block[band, column]
                for index in range(filled[bucket]):
                    candidates[count] = documents[room[bucket] + index]
                    count += 1
            if count > 0 and not is_dropped:
                if compares:
                    candidates[:count].sort()
                    different = 1
                    for index in range(1, count):
                        if candidates[index] != candidates[different - 1]:
                            candidates[different] = candidates[index]
                            different += 1
                    return column, different
                kept_copies[column] = candidates[:count].min()
                is_dropped = True
        if not is_dropped:
            for band in range(block.shape[0]):
                bucket = block[band, column]
                if bucket != 0 and filled[bucket] < limit:
                    documents[room[bucket] + filled[bucket]] = start + column
                    filled[bucket] += 1
        is_kept = False
        column += 1
    return column, 0


def _similarity(verify: SimilarityCondition, buckets: Buckets, dtype: np.dtype) -> Callable[[int, int], float]:
    """Return the function that compares two documents.

    The documents that may be compared are in a bucket of some band, and are the first with their digest.
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


def _drop(
    window: DocumentWindow, digests: Bytes, dtype: np.dtype, similarity: Callable[[int, int], float] | None, threshold: float
) -> list[_Columns]:
    """Run the pass over a window; `similarity` is None without `verify`."""
    members = _Members(window, dtype, limit=1 if similarity is None else MEMBERS_COMPARED)
    first_of, none = window.first_documents(dtype), dtype.type(np.iinfo(dtype).max)
    found = []
    for start, block in window.blocks():
        count = block.shape[1]
        kept_copies, exact, measured = np.full(count, none, dtype=dtype), np.zeros(count, dtype=np.bool_), np.full(count, _UNKNOWN)
        candidates = np.empty(block.shape[0] * members.limit, dtype=dtype)
        kept = (members.limit, members.room, members.filled, members.documents)
        state = (similarity is not None, *kept, kept_copies, exact, measured, candidates)
        column, compared = _next_to_compare(start, block, digests, 0, False, *state)
        if similarity is not None:
            representatives = _representatives(np.arange(start, start + count, dtype=dtype), block[0], digests, first_of)
            while column < count:
                for earlier in candidates[:compared].tolist():
                    measured_similarity = similarity(earlier, int(representatives[column]))
                    if measured_similarity >= threshold:
                        kept_copies[column], measured[column] = earlier, measured_similarity
                        break
                matched = kept_copies[column] != none
                column, compared = _next_to_compare(start, block, digests, column + matched, not matched, *state)
        dropped = np.flatnonzero(kept_copies != none)
        found.append((dropped.astype(dtype) + dtype.type(start), kept_copies[dropped], exact[dropped], measured[dropped]))
    window.carry_over(members.all())
    return found


def _representatives(ordinals: Array, buckets: Uint32s, digests: Bytes, first_of: Array) -> Array:
    """Return for each of these documents the first document with the same digest, (n,), which is usually the document itself.

    Args:
        ordinals: The documents.
        buckets: Bucket of the digest of each document.
        digests: Digests of all documents.
        first_of: First document of each bucket of digests.
    """
    representatives = ordinals.copy()
    shared = np.flatnonzero(buckets)
    first = first_of[buckets[shared]]
    same = (digests[first] == digests[ordinals[shared]]).all(axis=1)
    representatives[shared[same]] = first[same]
    return representatives
