"""Buckets of documents that share the hash of a band or the digest of the text, which counts as band 0.

Each band is cut by hash into ranges, so that any number of documents can be searched. One range is enough for most inputs.

1. `signatures` are read once, in blocks. Each hash is written, with the number of its document, to the file of its band and range.
2. A job for each range and band sorts the hashes of its file, and writes a row for each document that shares its hash with another one.
   A row has the document, the bucket, and the next document of the bucket. The number of a bucket is its first document, with 64 bits.
   So numbers need no agreement between ranges, and no number of documents is too large.
3. greedy.py visits the documents in windows (`DocumentWindow`). A window knows only its own buckets. Of each bucket it receives the
   documents that earlier windows have kept, and it passes them on to the window of the next document (time-forward processing: Chiang
   et al., External-Memory Graph Algorithms, SODA 1995).

Memory: a job takes at most 50 bytes for each document of its range, and a copy of a text is in the range of its first copy. A window takes
at most about 100 bytes for each of its documents and bands, and usually a tenth of that, because most documents share no hash. A window has
131,072 documents, or a 4,096th of all documents if that is more. Its memory does not depend on the number of buckets. Disk: 20 + 16 x
(bands + 1) bytes per document for the hashes, 24 bytes for each row, and 16 bytes for each bucket that a window passes on.

The steps share nothing but files, so each range can be a job on a machine of its own (artifacts/duplicates.py).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from niels_cache_assets.dedup.bands import NO_BUCKET, band_hashes
from niels_cache_assets.dedup.signatures import DIGEST_BYTES, Signatures
from niels_cache_runtime.format.layout import Array, Bytes, Ints, Uint32s, Uints

DIGESTS = "digests"  # (documents, 20) uint8
MAX_DOCUMENTS_OF_ONE_RANGE = 1 << 28  # documents; the job for a range then takes 13 GB
RANGES_IF_MANY_DOCUMENTS = 16
MIN_WINDOW = 1 << 17  # documents
MAX_WINDOWS = 4096
_AT_ONCE = 1 << 16
_U64 = np.uint64
_BYTES = 8
_NONE = _U64(np.iinfo(_U64).max)  # no next document
_HEADER = 2  # numbers before the columns of a file of rows: how many windows and rows there are

KeptDocuments = tuple[Uint32s, Array]
"""Documents that were kept: (bucket, document), both (n,). The documents of a bucket are in the order in which they were kept."""


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The buckets of all documents in all bands, in files for each range of hashes.

    Attributes:
        scratch: Folder for the files that windows pass on.
        hashes: Folder with the digests.
        links: For each range, the folder with its rows.
        documents: Number of documents.
        bands: Number of the last band. Band 0 is that of the digests.
    """

    scratch: Path
    hashes: Path
    links: Sequence[Path]
    documents: int
    bands: int

    def digests(self) -> Bytes:
        """Return the digests, (documents, 20) uint8, as a memory map."""
        return np.memmap(self.hashes / DIGESTS, dtype=np.uint8, mode="r").reshape(-1, DIGEST_BYTES)

    def windows(self) -> Iterator["DocumentWindow"]:
        """Yield the windows, in the order of the documents."""
        size = _window_size(self.documents)
        for number, start in enumerate(range(0, self.documents, size)):
            yield DocumentWindow(self, number, start, min(start + size, self.documents))

    def remove_carried_over(self) -> None:
        """Remove the files that windows passed on in an earlier pass."""
        for path in self.scratch.glob("passed_*"):
            path.unlink()


class DocumentWindow:
    """The documents from `start` to `end`, with their buckets. Numbers of buckets count from 1 in each window; 0 means no bucket."""

    def __init__(self, buckets: Buckets, number: int, start: int, end: int) -> None:
        self._scratch, self._number, self._start, self._end = buckets.scratch, number, start, end
        self._bands, self._size = buckets.bands + 1, _window_size(buckets.documents)
        self._numbers = np.zeros((self._bands, end - start), dtype=np.uint32)
        keys, places, following = self._rows(buckets.links)
        self._keys, of_row = np.unique(keys, return_inverse=True)  # of bucket i + 1
        self._numbers[keys % _U64(self._bands), places] = of_row + 1
        self.sizes = np.bincount(of_row + 1, minlength=self.count).astype(np.uint32)  # how many documents of each bucket are here
        leaves = (following >= _U64(end)) & (following != _NONE)
        self._leaving = of_row[leaves].astype(np.uint32) + np.uint32(1)
        self._to = (following[leaves] // _U64(self._size)).astype(np.int64)

    def _rows(self, links: Sequence[Path]) -> tuple[Uints, Uints, Uints]:
        """Return the key of the bucket, the index in the window, and the next document of each row, (n,) uint64."""
        keys, places, following = [], [], []
        for band in range(self._bands):
            for number, folder in enumerate(links):
                documents, buckets, then = _read_rows(folder / links_name(band, number), self._number)
                keys.append(buckets * _U64(self._bands) + _U64(band))
                places.append(documents - _U64(self._start))
                following.append(then)
        return np.concatenate(keys), np.concatenate(places), np.concatenate(following)

    @property
    def count(self) -> int:
        """Number of buckets, plus one for bucket 0."""
        return len(self._keys) + 1

    def blocks(self) -> Iterator[tuple[int, Uint32s]]:
        """Yield (ordinal of the first column, bucket numbers). The numbers are (bands + 1, up to 65,536) uint32."""
        for first in range(0, self._end - self._start, _AT_ONCE):
            yield self._start + first, np.ascontiguousarray(self._numbers[:, first : first + _AT_ONCE])

    def first_documents(self, dtype: np.dtype) -> Array:
        """Return the first document of each bucket, even if it is in an earlier window, (count,)."""
        return np.concatenate([np.zeros(1, dtype), (self._keys // _U64(self._bands)).astype(dtype)])

    def read_carried_over(self) -> KeptDocuments:
        """Return the documents that earlier windows have kept."""
        path = self._scratch / _carried_over_name(self._number)
        rows = np.fromfile(path, dtype=_U64).reshape(-1, 2) if path.exists() else np.empty((0, 2), dtype=_U64)
        return (np.searchsorted(self._keys, rows[:, 0]) + 1).astype(np.uint32), rows[:, 1]

    def carry_over(self, kept: KeptDocuments) -> None:
        """Pass the kept documents on to the windows of the next documents. This is the last use of the window.

        Args:
            kept: The documents that were kept, ascending by bucket.
        """
        buckets, documents = kept
        first = np.searchsorted(buckets, self._leaving, side="left")
        counts = np.searchsorted(buckets, self._leaving, side="right") - first
        order = np.argsort(self._to, kind="stable")
        first, counts, to = first[order], counts[order], self._to[order]
        chosen = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        rows = np.stack([self._keys[buckets[chosen] - np.uint32(1)], documents[chosen].astype(_U64)], axis=1)
        _append(self._scratch, _carried_over_name, rows, np.repeat(to, counts))
        (self._scratch / _carried_over_name(self._number)).unlink(missing_ok=True)


def fitting_ranges(documents: int, ranges: int) -> int:
    """Return the number of ranges for this many documents: the configured one, or more if one range would be too large."""
    return RANGES_IF_MANY_DOCUMENTS if ranges == 1 and documents > MAX_DOCUMENTS_OF_ONE_RANGE else ranges


def hashes_bytes(documents: int, *, bands: int) -> int:
    """Return the number of bytes that the first step writes."""
    return documents * (DIGEST_BYTES + 2 * _BYTES * (bands + 1))


def write_hashes(signatures: Iterable[Signatures], *, bands: int, rows: int, ranges: int, folder: Path) -> int:
    """Write the digests, and for each band and range the pairs (document, hash), (n, 2) uint64.

    Band 0 is that of the digests. Documents without shingles have no hash in the other bands.

    Args:
        signatures: Signatures of the documents.
        bands: Number of bands.
        rows: Number of slots in a band.
        ranges: Number of ranges.
        folder: Folder for the files.

    Returns:
        The number of documents.
    """
    for band in range(bands + 1):
        for number in range(ranges):
            (folder / hashes_name(band, number)).write_bytes(b"")
    documents = 0
    with open(folder / DIGESTS, "wb") as digests_file:
        for block in signatures:
            digests = np.ascontiguousarray(block.digests)
            digests_file.write(digests.data)
            ordinals = np.arange(documents, documents + len(digests), dtype=_U64)
            # Eight bytes distinguish digests, except in a deliberate collision. greedy.py compares all twenty bytes.
            first_bytes = np.ascontiguousarray(digests[:, :8]).view(np.uint64)[:, 0]
            for band, hashes in enumerate([first_bytes, *band_hashes(block.slots, bands, rows).T]):
                pairs = np.stack([ordinals, hashes], axis=1)[(hashes != NO_BUCKET) | (band == 0)]
                numbers = ((pairs[:, 1] >> _U64(32)) * _U64(ranges)) >> _U64(32)  # a range is an equal share of all 64-bit numbers
                order = np.argsort(numbers, kind="stable")
                _append(folder, partial(hashes_name, band), pairs[order], numbers[order].astype(np.int64))
            documents += len(digests)
    return documents


def _append(folder: Path, name_of: Callable[[int], str], rows: Uints, targets: Ints) -> None:
    """Append each row to the file of its target. Targets ascend."""
    begin = 0
    for end in (np.flatnonzero(np.diff(targets, append=-1)) + 1).tolist():
        with open(folder / name_of(int(targets[begin])), "ab") as file:
            file.write(rows[begin:end].data)
        begin = end


def link_range(hashes: Path, links: Path, band: int, number: int, *, documents: int) -> None:
    """Write the rows of one range of one band, sorted by document. A job for a range does this for each band.

    The file has numbers of 64 bits: how many windows and rows there are, the end of the rows of each window, and three columns with the
    document, the bucket and the next document of each row. Memory: at most 50 bytes per document of the range.

    Args:
        hashes: Folder of `write_hashes`.
        links: Folder of the rows.
        band: Number of the band.
        number: Number of the range.
        documents: Number of all documents.
    """
    pairs = np.fromfile(hashes / hashes_name(band, number), dtype=_U64).reshape(-1, 2)
    values, ordinals = pairs[:, 1].copy(), pairs[:, 0].copy()
    del pairs
    order = np.argsort(values, kind="stable")  # stable, so the documents of a hash stay in order
    values = values[order]
    equal = values[1:] == values[:-1]
    del values
    ordinals = ordinals[order]
    del order
    follows, goes_on = np.zeros((2, len(ordinals)), dtype=np.bool_)  # whether the row before, and the row after, has the same hash
    follows[1:], goes_on[:-1] = equal, equal
    del equal
    shared = follows | goes_on
    ordinals, follows, goes_on = ordinals[shared], follows[shared], goes_on[shared]
    starts = np.flatnonzero(~follows)
    buckets = np.repeat(ordinals[starts], np.diff(starts, append=len(ordinals)))
    following = np.where(goes_on, np.append(ordinals[1:], _NONE)[: len(ordinals)], _NONE)
    del follows, goes_on, shared
    order = np.argsort(ordinals)
    size = _window_size(documents)
    windows = np.arange(size, documents + size, size, dtype=_U64)  # the end of each window
    with open(links / links_name(band, number), "wb") as file:
        ordinals = ordinals[order]
        file.write(np.array([len(windows), len(order), *np.searchsorted(ordinals, windows)], dtype=_U64).data)
        file.write(ordinals.data)
        for column in (buckets, following):
            file.write(column[order].data)


def _read_rows(path: Path, window: int) -> list[Uints]:
    """Return the three columns of the rows of one window, from the file of `link_range`."""
    with open(path, "rb") as file:

        def read(place: int, count: int) -> Uints:
            file.seek(place * _BYTES)
            return np.fromfile(file, dtype=_U64, count=count)

        windows, rows = read(0, _HEADER).tolist()
        before, end = read(_HEADER + window - 1, 2).tolist()  # the end of the window before (of the first one, a number of the header)
        begin = before if window else 0
        return [read(_HEADER + windows + column * rows + begin, end - begin) for column in range(3)]


def _window_size(documents: int) -> int:
    return max(MIN_WINDOW, -(-documents // MAX_WINDOWS))


def hashes_name(band: int, number: int) -> str:
    """Return the name of the file with the hashes of a band in a range."""
    return f"hashes_{band}_{number}"


def links_name(band: int, number: int) -> str:
    """Return the name of the file with the rows of a band in a range."""
    return f"links_{band}_{number}"


def _carried_over_name(window: int) -> str:
    return f"passed_{window}"
