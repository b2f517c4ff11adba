"""Who goes, because of whom: documents in order, each dropped if a kept earlier one shares a band (or, for exact duplicates, the digest).

The rule of inserting one document after the other into an index, computed without one:

1. `signatures` come in blocks, once, in the order that decides who is first; their band hashes and digests go to files in `scratch`.
2. Each band alone: sort its hashes, number the buckets that hold more than one document, write (documents,) uint32 bucket numbers.
3. One pass in order over the bucket numbers of all bands. A bucket remembers the first kept document in it (with `verify`, the first 64).

Cost: sorting, n log n, and one pass; no step is quadratic, whatever share of the documents is the same. Memory: about 50 bytes a document
while a band is sorted, then 4 bytes a bucket and 13 for each document that goes; `verify` takes 17 bytes a bucket and 4 for each document
that may be compared, the members of the buckets, which are a mapped file, and what the similarity reads. Disk: 32 + 8 x bands bytes a
document at most, in `scratch`, those members included. No texts here: what similarity means is the caller's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.dedup.bands import NO_BUCKET, band_hashes
from niels_cache_assets.dedup.compiled import compiled
from niels_cache_assets.dedup.signatures import DIGEST_BYTES, Signatures
from niels_cache_runtime.errors import NielsCacheError

MEMBERS_COMPARED = 64  # of a bucket, by `verify`
_NOBODY = 0xFFFFFFFF
_AT_ONCE = 1 << 16
_Columns = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]  # those of Dropped, for some of the documents


@dataclass(frozen=True, kw_only=True)
class Verify:
    """A shared band alone is not enough: the similarity has to reach `threshold`.

    `similarity` is called once, with the ordinals of all documents that may be compared, ascending (n,) uint32: what it returns is then
    asked for pairs of them. Those with one digest are one document to it, the first of them: so many copies are as cheap as two.
    """

    similarity: Callable[[NDArray[np.uint32]], Callable[[int, int], float]]
    threshold: float


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """The documents that go, in order: (n,) each.

    `ordinals` and `because` (the kept document that each goes because of, the earliest there is) uint32; `exact` bool, the digests are
    equal; `similarity` float32: 1 if exact, what was measured with `verify`, else NaN.
    """

    documents: int
    ordinals: NDArray[np.uint32]
    because: NDArray[np.uint32]
    exact: NDArray[np.bool_]
    similarity: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ordinals)


def keep_first(signatures: Iterable[Signatures], *, bands: int, rows: int, scratch: Path, verify: Verify | None = None) -> Dropped:
    """Which of the documents go, given in the order in which the first one wins; `ordinals` count from 0 in that order.

    `scratch` is a folder that exists; what is left in it is the caller's to remove. A document with the digest of an earlier kept one goes
    without `verify`. Raises NielsCacheError where bands and rows do not fit the signatures, or from 2^32 / (bands + 1) documents on.
    """
    documents = _write_hashes(signatures, bands, rows, scratch)
    if documents * (bands + 1) >= _NOBODY:
        raise NielsCacheError(f"{documents:,} documents in {bands} bands are more than deduplication can number: prepare fewer data sets")
    if documents == 0:
        return _dropped(0, [])
    digests = np.memmap(scratch / "digests", dtype=np.uint8, mode="r").reshape(-1, DIGEST_BYTES)
    sizes = [np.zeros(1, dtype=np.uint32)]  # bucket 0 is none
    for band in range(bands + 1):
        hashes_file, buckets_file = scratch / f"hashes_{band}", scratch / f"buckets_{band}"
        sizes.append(_number_buckets(hashes_file, buckets_file, first=sum(map(len, sizes)), every=band == 0))
        hashes_file.unlink()
    with ExitStack() as stack:
        files = [stack.enter_context(open(scratch / f"buckets_{band}", "rb")) for band in range(bands + 1)]
        if verify is None:
            return _dropped(documents, _drop(files, digests, sum(map(len, sizes))))
        return _dropped(documents, _drop_verified(files, digests, np.concatenate(sizes), verify, scratch))


def _write_hashes(signatures: Iterable[Signatures], bands: int, rows: int, scratch: Path) -> int:
    """Spread blocks over the files of `scratch`: digests, and hashes of digests (band 0) and bands; return how many documents there are."""
    documents = 0
    with ExitStack() as stack:
        digests_file, *hash_files = (
            stack.enter_context(open(scratch / name, "wb")) for name in ["digests", *(f"hashes_{band}" for band in range(bands + 1))]
        )
        for block in signatures:
            for start in range(0, len(block), _AT_ONCE):
                digests = np.ascontiguousarray(block.digests[start : start + _AT_ONCE])
                digests_file.write(digests.data)
                # Eight bytes tell digests apart, but for a collision made on purpose: the pass compares all twenty.
                hash_files[0].write(np.ascontiguousarray(digests[:, :8]).data)
                hashes = band_hashes(block.slots[start : start + _AT_ONCE], bands, rows)
                for file, column in zip(hash_files[1:], hashes.T, strict=True):
                    file.write(np.ascontiguousarray(column).data)
            documents += len(block)
    return documents


def _number_buckets(hashes_file: Path, buckets_file: Path, *, first: int, every: bool) -> NDArray[np.uint32]:
    """Read (documents,) uint64 hashes, write the bucket of each, (documents,) uint32; return the buckets' sizes.

    Buckets are numbered from `first`, 0 is none. A bucket is a hash that more than one document has; NO_BUCKET has none, but where `every`
    hash counts.
    """
    hashes = np.fromfile(hashes_file, dtype=np.uint64)
    order = np.argsort(hashes)  # not stable: which number a bucket gets depends on its hash alone
    hashes = hashes[order]
    starts = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]]))
    sizes = np.diff(starts, append=len(hashes))
    shared = sizes > 1
    if not every:
        shared &= hashes[starts] != NO_BUCKET
    del hashes
    bucket_of_run = np.zeros(len(starts), dtype=np.uint32)
    bucket_of_run[shared] = np.arange(first, first + np.count_nonzero(shared), dtype=np.uint32)
    buckets = np.empty(len(order), dtype=np.uint32)
    buckets[order] = np.repeat(bucket_of_run, sizes)
    buckets.tofile(buckets_file)
    return sizes[shared].astype(np.uint32)


def _blocks(files: Sequence[BinaryIO]) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """The bucket numbers, (bands + 1, up to _AT_ONCE) uint32 at a time, row 0 those of the digests, and the ordinal of the first column."""
    start = 0
    while (block := np.stack([np.fromfile(file, dtype=np.uint32, count=_AT_ONCE) for file in files])).size:
        yield start, block
        start += block.shape[1]


def _drop(files: Sequence[BinaryIO], digests: NDArray[np.uint8], buckets: int) -> list[_Columns]:
    """The pass without `verify`: the first kept document of each bucket is all that it remembers."""
    first_kept = np.full(buckets, _NOBODY, dtype=np.uint32)
    found = []
    for start, block in _blocks(files):
        because = np.full(block.shape[1], _NOBODY, dtype=np.uint32)
        exact = np.zeros(block.shape[1], dtype=np.bool_)
        compiled(_keep_block)(start, block, digests, first_kept, because, exact)
        gone = np.flatnonzero(because != _NOBODY)
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
    """Plain loops over (bands + 1, n) bucket numbers, for numba to compile; row 0 is the digests'."""
    for column in range(block.shape[1]):
        ordinal = start + column
        twin = first_kept[block[0, column]]
        if block[0, column] != 0 and twin != _NOBODY:
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
        if because[column] == _NOBODY:
            for band in range(block.shape[0]):
                if block[band, column] != 0 and first_kept[block[band, column]] == _NOBODY:
                    first_kept[block[band, column]] = ordinal


def _drop_verified(
    files: Sequence[BinaryIO], digests: NDArray[np.uint8], sizes: NDArray[np.uint32], verify: Verify, scratch: Path
) -> list[_Columns]:
    """The pass with `verify`: a bucket remembers its first MEMBERS_COMPARED kept documents, in a file."""
    room = np.concatenate([[0], np.cumsum(np.minimum(sizes, MEMBERS_COMPARED), dtype=np.int64)])
    if room[-1] == 0:
        return []
    first_of = np.full(len(sizes), _NOBODY, dtype=np.uint32)
    similarity = verify.similarity(_compared(files, digests, first_of))
    for file in files:
        file.seek(0)
    members = np.memmap(scratch / "members", dtype=np.uint32, mode="w+", shape=(int(room[-1]),))
    filled = np.zeros(len(sizes), dtype=np.uint8)
    found = []

    def kept_in(bucket: int) -> NDArray[np.uint32]:
        return members[room[bucket] : room[bucket] + filled[bucket]]

    def match(ordinal: int, stand_in: int, own: list[int]) -> tuple[int, bool, float] | None:
        for twin in kept_in(own[0]).tolist():
            if bytes(digests[twin]) == bytes(digests[ordinal]):
                return twin, True, 1.0
        for earlier in sorted({earlier for bucket in own[1:] for earlier in kept_in(bucket).tolist()}):
            measured = similarity(earlier, stand_in)
            if measured >= verify.threshold:
                return earlier, False, measured
        return None

    for start, block in _blocks(files):
        rows = []
        stand_ins = _stand_ins(start, block[0], digests, first_of)
        for column in np.flatnonzero(block.any(axis=0)).tolist():
            own = block[:, column].tolist()
            matched = match(start + column, int(stand_ins[column]), own)
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
    """The documents in a bucket of a band that stand for themselves; fills in the first document of each bucket of digests."""
    found = [np.empty(0, dtype=np.uint32)]
    for start, block in _blocks(files):
        ordinals = np.arange(start, start + block.shape[1], dtype=np.uint32)
        shared = block[0] != 0
        np.minimum.at(first_of, block[0][shared], ordinals[shared])
        own = _stand_ins(start, block[0], digests, first_of) == ordinals
        found.append(ordinals[block[1:].any(axis=0) & own])
    return np.concatenate(found)


def _stand_ins(start: int, buckets: NDArray[np.uint32], digests: NDArray[np.uint8], first_of: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Who is compared for each document from `start` on, (n,) uint32: the first one with its digest, mostly itself."""
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
