"""Buckets of documents. The documents in a bucket share the hash of a band, or the digest of the text. (Digests are treated as band 0.)

1. `signatures` are read once, in blocks; their band hashes and digests are written to files in `scratch`.
2. For each band, the hashes are sorted, buckets with more than one document are numbered, and the bucket number of each document is written
   ((documents,) uint32).

Everything is computed band by band, in files, so a killed run loses little. `record` is called after each step. The last steps that
`record` put on the disk are passed as `done` to the next run. The time is that of sorting, n log n. Sorting a band takes about 50 bytes of
memory a document. The files take 28 + 8 x bands bytes a document, and 12 bytes a document for each band that was not recorded. The choice
of the documents to keep is in greedy.py.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.dedup.bands import NO_BUCKET, band_hashes
from niels_cache_assets.dedup.signatures import DIGEST_BYTES, Signatures
from niels_cache_runtime.errors import NielsCacheError

MAX_BUCKETS = 0xFFFFFFFF
_AT_ONCE = 1 << 16
_DIGESTS = "digests"  # (documents, 20) uint8
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


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The buckets of `documents` in the bands 0 (the digests) to `bands`.

    `count`: the number of buckets in all bands, plus one for bucket 0, which means "no bucket".
    """

    scratch: Path
    documents: int
    bands: int
    count: int

    def digests(self) -> NDArray[np.uint8]:
        """Return the digests, (documents, 20) uint8, as a memory map."""
        return np.memmap(self.scratch / _DIGESTS, dtype=np.uint8, mode="r").reshape(-1, DIGEST_BYTES)

    def sizes(self) -> NDArray[np.uint32]:
        """Return the number of documents in each bucket, (count,)."""
        return np.concatenate(
            [np.zeros(1, np.uint32), *(np.fromfile(self.scratch / _sizes(band), np.uint32) for band in range(self.bands + 1))]
        )

    @contextmanager
    def files(self) -> Iterator[list[BinaryIO]]:
        """Yield a list of files open for reading, one for each band. A file holds the bucket of each document, (documents,) uint32, 0 for
        no bucket.
        """
        with ExitStack() as stack:
            yield [stack.enter_context(open(self.scratch / _numbers(band), "rb")) for band in range(self.bands + 1)]


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
        raise NielsCacheError(f"{documents:,} documents in {bands} bands are more than deduplication can number: prepare fewer data sets")
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
    names = [_DIGESTS, *(name(band) for name in (_numbers, _sizes) for band in done), *map(_hashes, range(len(done), bands + 1))]
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
            stack.enter_context(open(scratch / name, "wb")) for name in [_DIGESTS, *(_hashes(band) for band in range(bands + 1))]
        )
        for block in signatures:
            for start in range(0, len(block), _AT_ONCE):
                digests = np.ascontiguousarray(block.digests[start : start + _AT_ONCE])
                digests_file.write(digests.data)
                # Eight bytes distinguish digests, except if somebody made a collision on purpose. greedy.py compares all twenty bytes.
                hash_files[0].write(np.ascontiguousarray(digests[:, :8]).data)
                hashes = band_hashes(block.slots[start : start + _AT_ONCE], bands, rows)
                for file, column in zip(hash_files[1:], hashes.T, strict=True):
                    file.write(np.ascontiguousarray(column).data)
            documents += len(block)
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
