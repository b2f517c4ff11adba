"""The choice of duplicates to drop. Documents are visited in order; a document is dropped if an earlier kept document matches it.

Two documents match if they share a band (and, with `verify`, are similar enough), or if they have the same digest (exact duplicates). The
result is the same as if the documents were inserted one after another into an index, but no index is needed. First, buckets.py finds which
documents share a hash, in files. Then one pass reads the bucket numbers of all bands, in order of the documents. The pass remembers the
first kept document of each bucket. With `verify`, it remembers the first 64. The order of `signatures` decides which document is first.

The cost is that of the buckets, and one pass. No step is quadratic, even if many documents are equal. The memory is first that of
buckets.py, then 4 bytes a bucket and 13 bytes for each dropped document. `verify` takes 17 bytes a bucket, 4 bytes for each document that
may be compared, and the memory of the similarity function. The members of the buckets are in a memory-mapped file in `scratch` (at most 4
bytes a document and band). This module reads no texts: the caller defines the similarity.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.dedup.buckets import Record, Steps, number_buckets
from niels_cache_assets.dedup.signatures import Signatures, compiled
from niels_cache_assets.disk.space import naming
from niels_cache_runtime.format.npy_files import create_npy

MEMBERS_COMPARED = 64  # `verify` compares at most this many members of a bucket
_NO_DOCUMENT = 0xFFFFFFFF
_AT_ONCE = 1 << 16
_Columns = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]  # the columns of Dropped, for some of the documents


@dataclass(frozen=True, kw_only=True)
class Verify:
    """An additional condition for duplicates. Documents that share a band must also reach a similarity of `threshold`.

    `similarity` is called once, with the ordinals (numbers) of all documents that may be compared, ascending (n,) uint32. It returns a
    function, and this function is then called for pairs of these ordinals. Of documents with the same digest, only the first is compared,
    so many equal copies cost as much as two.
    """

    similarity: Callable[[NDArray[np.uint32]], Callable[[int, int], float]]
    threshold: float


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """The dropped documents in order, as arrays of shape (n,).

    `ordinals` and `because` are uint32. `because` is the earliest kept document that is the reason. `exact` is bool, and says whether the
    digests are equal. `similarity` is float32. It is 1 for exact duplicates, the measured value with `verify`, and NaN otherwise.
    """

    documents: int
    ordinals: NDArray[np.uint32]
    because: NDArray[np.uint32]
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
    buckets = number_buckets(signatures, bands=bands, rows=rows, scratch=scratch, done=done, record=record)
    if buckets.documents == 0:
        return _dropped(0, [])
    with buckets.files() as files:
        if verify is None:
            return _dropped(buckets.documents, _drop(files, buckets.digests(), buckets.count))
        return _dropped(buckets.documents, _drop_verified(files, buckets.digests(), buckets.sizes(), verify, scratch))


def _blocks(files: Sequence[BinaryIO]) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Yield (ordinal of the first column, bucket numbers). The bucket numbers are (bands + 1, up to _AT_ONCE) uint32. Row 0 is for the
    digests.
    """
    start = 0
    while (block := np.stack([np.fromfile(file, dtype=np.uint32, count=_AT_ONCE) for file in files])).size:
        yield start, block
        start += block.shape[1]


def _drop(files: Sequence[BinaryIO], digests: NDArray[np.uint8], buckets: int) -> list[_Columns]:
    """Run the pass without `verify`. It remembers the first kept document of each bucket."""
    first_kept = np.full(buckets, _NO_DOCUMENT, dtype=np.uint32)
    found = []
    for start, block in _blocks(files):
        because = np.full(block.shape[1], _NO_DOCUMENT, dtype=np.uint32)
        exact = np.zeros(block.shape[1], dtype=np.bool_)
        compiled(_keep_block)(start, block, digests, first_kept, because, exact)
        gone = np.flatnonzero(because != _NO_DOCUMENT)
        found.append((gone.astype(np.uint32) + np.uint32(start), because[gone], exact[gone], np.where(exact[gone], 1, np.nan)))
    return found


def _keep_block(
    start: int,
    block: NDArray[np.uint32],
    digests: NDArray[np.uint8],
    first_kept: NDArray[np.uint32],
    because: NDArray[np.uint32],
    exact: NDArray[np.bool_],
) -> None:
    """Fill `because` and `exact` for one block of bucket numbers, (bands + 1, n).

    Row 0 belongs to the digests. The loops are plain, because numba compiles them.
    """
    for column in range(block.shape[1]):
        ordinal = start + column
        twin = first_kept[block[0, column]]
        if block[0, column] != 0 and twin != _NO_DOCUMENT:
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
        if because[column] == _NO_DOCUMENT:
            for band in range(block.shape[0]):
                if block[band, column] != 0 and first_kept[block[band, column]] == _NO_DOCUMENT:
                    first_kept[block[band, column]] = ordinal


def _drop_verified(
    files: Sequence[BinaryIO], digests: NDArray[np.uint8], sizes: NDArray[np.uint32], verify: Verify, scratch: Path
) -> list[_Columns]:
    """Run the pass with `verify`. A file holds the first MEMBERS_COMPARED kept documents of each bucket."""
    room = np.concatenate([[0], np.cumsum(np.minimum(sizes, MEMBERS_COMPARED), dtype=np.int64)])
    if room[-1] == 0:
        return []
    first_of = np.full(len(sizes), _NO_DOCUMENT, dtype=np.uint32)
    similarity = verify.similarity(_compared(files, digests, first_of))
    for file in files:
        file.seek(0)
    with naming(scratch / "members.npy"):
        members = create_npy(scratch / "members.npy", np.uint32, (int(room[-1]),))
    filled = np.zeros(len(sizes), dtype=np.uint8)
    found = []

    def kept_in(bucket: int) -> NDArray[np.uint32]:
        return members[room[bucket] : room[bucket] + filled[bucket]]

    def match(ordinal: int, representative: int, own: list[int]) -> tuple[int, bool, float] | None:
        for twin in kept_in(own[0]).tolist():
            if bytes(digests[twin]) == bytes(digests[ordinal]):
                return twin, True, 1.0
        for earlier in sorted({earlier for bucket in own[1:] for earlier in kept_in(bucket).tolist()}):
            measured = similarity(earlier, representative)
            if measured >= verify.threshold:
                return earlier, False, measured
        return None

    for start, block in _blocks(files):
        rows = []
        representatives = _representatives(start, block[0], digests, first_of)
        for column in np.flatnonzero(block.any(axis=0)).tolist():
            own = block[:, column].tolist()
            matched = match(start + column, int(representatives[column]), own)
            if matched is not None:
                rows.append((start + column, *matched))
                continue
            for bucket in own:
                if bucket and filled[bucket] < MEMBERS_COMPARED:
                    members[room[bucket] + filled[bucket]] = start + column
                    filled[bucket] += 1
        if rows:
            ordinals, because, exact, measured = zip(*rows, strict=True)
            found.append((np.array(ordinals), np.array(because), np.array(exact), np.array(measured)))
    return found


def _compared(files: Sequence[BinaryIO], digests: NDArray[np.uint8], first_of: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the documents that are in a bucket of some band, and are the first with their digest.

    Also sets `first_of`: the first document of each bucket of digests.
    """
    found = [np.empty(0, dtype=np.uint32)]
    for start, block in _blocks(files):
        ordinals = np.arange(start, start + block.shape[1], dtype=np.uint32)
        shared = block[0] != 0
        np.minimum.at(first_of, block[0][shared], ordinals[shared])
        own = _representatives(start, block[0], digests, first_of) == ordinals
        found.append(ordinals[block[1:].any(axis=0) & own])
    return np.concatenate(found)


def _representatives(
    start: int, buckets: NDArray[np.uint32], digests: NDArray[np.uint8], first_of: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """Return for each document from `start` on the first document with the same digest, (n,) uint32.

    Usually this is the document itself.
    """
    ordinals = np.arange(start, start + len(buckets), dtype=np.uint32)
    shared = np.flatnonzero(buckets)
    first = first_of[buckets[shared]]
    same = (digests[first] == digests[ordinals[shared]]).all(axis=1)
    ordinals[shared[same]] = first[same]
    return ordinals


def _dropped(documents: int, found: list[_Columns]) -> Dropped:
    def column(index: int, dtype: type[Any]) -> NDArray[Any]:
        return np.concatenate([np.empty(0, dtype=dtype), *(columns[index].astype(dtype) for columns in found)])

    return Dropped(
        documents=documents,
        ordinals=column(0, np.uint32),
        because=column(1, np.uint32),
        exact=column(2, np.bool_),
        similarity=column(3, np.float32),
    )
