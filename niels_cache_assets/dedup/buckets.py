"""Buckets of documents. The documents in a bucket share the hash of a band, or the digest of the text. (Digests are treated as band 0.)

1. `signatures` are read once, in blocks; their band hashes and digests are written to files in `scratch`.
2. For each band, the hashes are sorted, buckets with more than one document are numbered, and the bucket number of each document is written
   ((documents,) uint32).

Everything is computed band by band, in files, so a killed run loses little. `record` is called after each step. The last steps that
`record` put on the disk are passed as `done` to the next run. The time is that of sorting, n log n. Sorting a band takes about 50 bytes of
memory a document. The files take 28 + 8 x bands bytes a document, and 12 bytes a document for each band that was not recorded. The choice
of the documents to keep is in greedy.py. ranges.py does the same with less memory, for any number of documents.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.dedup.bands import NO_BUCKET, band_hashes
from niels_cache_assets.dedup.signatures import DIGEST_BYTES, Signatures
from niels_cache_runtime.errors import NielsCacheError

MAX_BUCKETS = 0xFFFFFFFF
RANGES_OF_MANY = 16
_AT_ONCE = 1 << 16
DIGESTS = "digests"  # (documents, 20) uint8
_HASH_BYTES, _BUCKET_BYTES = 8, 4


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The progress of a run.

    `documents`: the number of documents in the files of `scratch`. `bands`: the number of bands whose buckets are finished. The digests
    count as the first band.
    """

    documents: int
    bands: int


Record = Callable[[Steps, list[Path]], bool]
"""A function that takes the steps and the files that they need. It returns True if it has put both on the disk."""


Kept = tuple[NDArray[np.uint32], NDArray[Any]]
"""Documents that were kept: (bucket, document), both (n,). The documents of a bucket are in the order in which they were kept."""


class Window(Protocol):
    """Consecutive documents and their buckets. Numbers of buckets count from 1 in each window; 0 means no bucket."""

    @property
    def count(self) -> int:
        """The number of buckets, plus one for bucket 0."""

    def blocks(self) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        """Yield (ordinal of the first column, bucket numbers). The numbers are (bands + 1, up to 65,536) uint32. Row 0 is for the
        digests.
        """

    def sizes(self) -> NDArray[np.uint32]:
        """Return how many documents of each bucket this window has, (count,)."""

    def first_documents(self, dtype: np.dtype) -> NDArray[Any]:
        """Return the first document of each bucket of digests, (count,). The values of other buckets have no meaning."""

    def received(self) -> Kept:
        """Return the documents that earlier windows have kept."""

    def pass_on(self, kept: Callable[[], Kept]) -> None:
        """Pass the documents that were kept, in this window or earlier, on to later windows. This is the last use of the window."""


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The buckets of `documents` in the bands 0 (the digests) to `bands`. They are one window.

    `count`: the number of buckets in all bands, plus one for bucket 0, which means "no bucket".
    """

    scratch: Path
    documents: int
    bands: int
    count: int

    def digests(self) -> NDArray[np.uint8]:
        """Return the digests, (documents, 20) uint8, as a memory map."""
        return read_digests(self.scratch)

    def windows(self) -> Iterator[Window]:
        yield self

    def forget(self) -> None:
        """Do nothing: one window passes nothing on."""

    def sizes(self) -> NDArray[np.uint32]:
        return np.concatenate(
            [np.zeros(1, np.uint32), *(np.fromfile(self.scratch / _sizes(band), np.uint32) for band in range(self.bands + 1))]
        )

    def blocks(self) -> Iterator[tuple[int, NDArray[np.uint32]]]:
        with ExitStack() as stack:
            files = [stack.enter_context(open(self.scratch / _numbers(band), "rb")) for band in range(self.bands + 1)]
            start = 0
            while (block := np.stack([np.fromfile(file, dtype=np.uint32, count=_AT_ONCE) for file in files])).size:
                yield start, block
                start += block.shape[1]

    def first_documents(self, dtype: np.dtype) -> NDArray[Any]:
        first = np.full(self.count, np.iinfo(dtype).max, dtype=dtype)
        start = 0
        with open(self.scratch / _numbers(0), "rb") as file:
            while len(numbers := np.fromfile(file, dtype=np.uint32, count=_AT_ONCE)):
                shared = np.flatnonzero(numbers)
                np.minimum.at(first, numbers[shared], (shared + start).astype(dtype))
                start += len(numbers)
        return first

    def received(self) -> Kept:
        return np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.uint64)

    def pass_on(self, kept: Callable[[], Kept]) -> None:
        """Do nothing: one window passes nothing on."""


def fitting_ranges(documents: int, *, bands: int, ranges: int) -> int:
    """Return the number of ranges of hashes for so many documents. One range cannot number the buckets of 2^32 / (bands + 1) documents."""
    return RANGES_OF_MANY if ranges == 1 and documents * (bands + 1) >= MAX_BUCKETS else ranges


def read_digests(scratch: Path) -> NDArray[np.uint8]:
    """Return the digests in `scratch`, (documents, 20) uint8, as a memory map."""
    return np.memmap(scratch / DIGESTS, dtype=np.uint8, mode="r").reshape(-1, DIGEST_BYTES)


def in_blocks(signatures: Iterable[Signatures]) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint32]]]:
    """Yield (digests, slots) of at most 65,536 documents, in order."""
    for block in signatures:
        for start in range(0, len(block), _AT_ONCE):
            yield np.ascontiguousarray(block.digests[start : start + _AT_ONCE]), block.slots[start : start + _AT_ONCE]


def first_eight_bytes(digests: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the hash of each digest, (n,) uint64.

    Eight bytes distinguish digests, except if somebody made a collision on purpose. greedy.py compares all twenty bytes.
    """
    return np.ascontiguousarray(digests[:, :8]).view(np.uint64)[:, 0]


def hashes_bytes(documents: int, *, bands: int) -> int:
    """Return the number of bytes that the first step writes."""
    return documents * (DIGEST_BYTES + _HASH_BYTES * (bands + 1))


def number_buckets(
    signatures: Iterable[Signatures], *, bands: int, rows: int, scratch: Path, done: Steps | None, record: Record
) -> Buckets:
    """Run both steps (hashes, then buckets), and return the buckets.

    `record`: called after each step with the progress of the run, see Record. `done`: the newest progress that an earlier run recorded, or
    None. If `done` is given, the signatures are not read again. Raises NielsCacheError if bands and rows do not fit the signatures, and if
    there are 2^32 / (bands + 1) documents or more.
    """

    def after(steps: Steps) -> bool:
        return record(steps, _left_by(scratch, steps, bands=bands))

    if done is None:
        done = Steps(documents=_write_hashes(signatures, bands, rows, scratch), bands=0)
        after(done)
    documents = done.documents
    if documents * (bands + 1) >= MAX_BUCKETS:
        raise NielsCacheError(f"{documents:,} documents in {bands} bands are more than one range can number: raise ranges in [dedup]")
    if documents == 0:
        return Buckets(scratch=scratch, documents=0, bands=bands, count=1)
    count = 1 + sum((scratch / _sizes(band)).stat().st_size // _BUCKET_BYTES for band in range(done.bands))
    for band in range(done.bands, bands + 1):
        count += _number_band(scratch, band, first=count)
        if after(Steps(documents=documents, bands=band + 1)):
            for older in range(band + 1):
                (scratch / _hashes(older)).unlink(missing_ok=True)
    return Buckets(scratch=scratch, documents=documents, bands=bands, count=count)


def _left_by(scratch: Path, steps: Steps, *, bands: int) -> list[Path]:
    """Return the files that are needed to resume after `steps`."""
    done = range(steps.bands)
    names = [DIGESTS, *(name(band) for name in (_numbers, _sizes) for band in done), *map(_hashes, range(len(done), bands + 1))]
    return [scratch / name for name in names]


def _hashes(band: int) -> str:
    return f"hashes_{band}"


def _numbers(band: int) -> str:
    return f"buckets_{band}"


def _sizes(band: int) -> str:
    return f"sizes_{band}"


def _write_hashes(signatures: Iterable[Signatures], bands: int, rows: int, scratch: Path) -> int:
    """Write the digests, and the hashes of digests (band 0) and bands, to files in `scratch`. Return the number of documents."""
    documents = 0
    with ExitStack() as stack:
        digests_file, *hash_files = (
            stack.enter_context(open(scratch / name, "wb")) for name in [DIGESTS, *(_hashes(band) for band in range(bands + 1))]
        )
        for digests, slots in in_blocks(signatures):
            digests_file.write(digests.data)
            hash_files[0].write(first_eight_bytes(digests).data)
            for file, column in zip(hash_files[1:], band_hashes(slots, bands, rows).T, strict=True):
                file.write(np.ascontiguousarray(column).data)
            documents += len(digests)
    return documents


def _number_band(scratch: Path, band: int, *, first: int) -> int:
    """Number the buckets of one band, and return how many there are.

    Reads the hashes, (documents,) uint64. Writes the bucket of each document, and the sizes of the buckets. Buckets are numbered from
    `first`; 0 means no bucket. A bucket is a hash that more than one document has. The hash NO_BUCKET makes no bucket, except among the
    digests, where it is an ordinary hash.
    """
    hashes = np.fromfile(scratch / _hashes(band), dtype=np.uint64)
    order = np.argsort(hashes)  # the sort need not be stable, because the number of a bucket depends only on its hash
    hashes = hashes[order]
    starts = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]]))
    sizes = np.diff(starts, append=len(hashes))
    shared = sizes > 1
    if band > 0:
        shared &= hashes[starts] != NO_BUCKET
    del hashes
    bucket_of_run = np.zeros(len(starts), dtype=np.uint32)
    bucket_of_run[shared] = np.arange(first, first + np.count_nonzero(shared), dtype=np.uint32)
    buckets = np.empty(len(order), dtype=np.uint32)
    buckets[order] = np.repeat(bucket_of_run, sizes)
    _write_array(scratch / _numbers(band), buckets)
    _write_array(scratch / _sizes(band), sizes[shared].astype(np.uint32))
    return int(np.count_nonzero(shared))


def _write_array(path: Path, values: NDArray[Any]) -> None:
    with open(path, "wb") as file:
        file.write(values.data)
