"""A reader of Megatron-LM's IndexedDataset: PREFIX.bin has all tokens, PREFIX.idx the positions of sequences and documents.

    .idx   magic 9 | version u64 = 1 | dtype code u8 | S u64 | D + 1 u64     34 bytes, little endian
           sequence lengths S x i32 (tokens) | pointers S x i64 (bytes into .bin) | document indices (D + 1) x i64 | modes S x i8
    .bin   tokens of every sequence

Only multimodal data sets have modes; the size of the .idx file shows whether it has them. Opening costs two maps and one pass over the
index, in blocks. The pass checks values that Megatron trusts: sizes, pointers, document indices. Reading a sequence is a slice of the map.
`gpt_dataset` makes samples of sequences.
"""

import hashlib
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.cache.checks import check_index
from niels_cache_runtime.cache.mmap import check_increasing
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Array, Int32s, Ints, Uints
from niels_cache_runtime.format.safe_open import open_regular

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")  # magic, version, dtype code, sequences, entries of the document indices
LENGTHS_DTYPE = np.dtype("<i4")
POINTERS_DTYPE = np.dtype("<i8")
DOCUMENTS_DTYPE = np.dtype("<i8")
MODES_DTYPE = np.dtype("i1")
MAX_SEQUENCE_TOKENS = np.iinfo(LENGTHS_DTYPE).max
BLOCK = 1 << 18  # entries of an index that are checked or written at a time

_NAMES_BY_CODE = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6: "float64", 7: "float32"}
DTYPES = {code: np.dtype(name) for code, name in _NAMES_BY_CODE.items()}
DTYPE_CODES = {dtype: code for code, dtype in DTYPES.items()}
DTYPE_OF_CACHE: dict[np.dtype, np.dtype] = {
    np.dtype("<u2"): np.dtype("<u2"),
    np.dtype("<u4"): np.dtype("<i4"),
}  # the format has no uint32; ids are below 2^31

_ADVICE = "write or copy it again"
_PROBES = 64
PROBE_BYTES = 4096


class IndexedDataset:
    """The sequences of PREFIX.bin and PREFIX.idx, mapped read-only.

    `[i]` is the tokens of sequence i, without its mode. The object can be pickled: a copy maps the files again, and raises an error if the
    files have changed. On the same host, the copy compares inode, size and modification time of the files. On any host, it compares blocks
    of their content.

    Args:
        prefix: The path of both files without .bin and .idx.
        idx_path: The path of the index, if it is not PREFIX.idx, for example because it is on a local disk.

    Attributes:
        dtype: The dtype of a token.
        tokens: All of .bin, a 1-D array of this dtype.
        sequence_lengths: The length of each sequence, (S,) int32, in tokens.
        sequence_pointers: Where each sequence starts in .bin, (S,) int64, in bytes.
        document_indices: (D + 1,) int64. Document i has the sequences `document_indices[i]` to `document_indices[i + 1] - 1`.
        sequence_modes: (S,) int8 for a multimodal data set, otherwise None.

    Raises:
        NielsCacheError: If a file is missing or has a wrong size, or if header, lengths, pointers and document indices are inconsistent.
            The message names the field.
    """

    def __init__(self, prefix: str | Path, *, idx_path: str | Path | None = None) -> None:
        self.prefix = os.path.abspath(prefix)
        self.bin_path = f"{self.prefix}.bin"
        self.idx_path = f"{self.prefix}.idx" if idx_path is None else os.path.abspath(idx_path)
        self._open()
        self._check()

    def _open(self) -> None:
        index, index_state = _map_bytes(self.idx_path)
        self._index = index
        self.dtype, sequences, entries = _read_header(self.idx_path, index)
        sections: list[tuple[np.dtype, int]] = [(LENGTHS_DTYPE, sequences), (POINTERS_DTYPE, sequences), (DOCUMENTS_DTYPE, entries)]
        expected = HEADER.size + sum(dtype.itemsize * count for dtype, count in sections)
        if len(index) not in (expected, expected + sequences):
            raise NielsCacheError(
                f"{self.idx_path}: has {len(index)} bytes; sequence count {sequences} and document count {entries} need {expected}, "
                f"or {expected + sequences} with modes (cut short, or a wrong count); {_ADVICE}"
            )
        arrays, offset = [], HEADER.size
        for dtype, count in sections:
            arrays.append(np.frombuffer(index, dtype=dtype, count=count, offset=offset))
            offset += dtype.itemsize * count
        self.sequence_lengths: Int32s = arrays[0]
        self.sequence_pointers: Ints = arrays[1]
        self.document_indices: Ints = arrays[2]
        multimodal = len(index) > expected
        self.sequence_modes: NDArray[np.int8] | None = np.frombuffer(index, dtype=MODES_DTYPE, offset=offset) if multimodal else None
        content, content_state = _map_bytes(self.bin_path)
        self._files = file_identities([content_state, index_state])
        tokens = int(self.sequence_pointers[-1]) + int(self.sequence_lengths[-1]) * self.dtype.itemsize if sequences else 0
        if len(content) != tokens:
            raise NielsCacheError(
                f"{self.bin_path}: has {len(content)} bytes, the last pointer and length in {self.idx_path} end at {tokens}; "
                "one of the two is cut short or of another data set"
            )
        if tokens % self.dtype.itemsize:
            raise NielsCacheError(
                f"{self.bin_path}: has {tokens} bytes, not a whole number of {self.dtype} tokens; it is damaged, or of another data set"
            )
        self.tokens = np.frombuffer(content, dtype=self.dtype)

    def _check(self) -> None:
        documents, sequences = self.document_indices, len(self)
        if not len(documents) or documents[0] != 0 or documents[-1] != sequences:
            found = f"from {documents[0]} to {documents[-1]}" if len(documents) else "empty"
            raise NielsCacheError(f"{self.idx_path}: document indices are {found}, not from 0 to the sequence count {sequences}; {_ADVICE}")
        check_increasing(self.idx_path, documents, name="document index", may_be_equal=True, advice=_ADVICE)
        place = 0  # offset in .bin, in bytes
        for start in range(0, sequences, BLOCK):
            lengths = self.sequence_lengths[start : start + BLOCK]
            if lengths.min() < 0:
                sequence = start + int(np.argmax(lengths < 0))
                raise NielsCacheError(
                    f"{self.idx_path}: sequence length {sequence} is {self.sequence_lengths[sequence]}, below 0; {_ADVICE}"
                )
            ends = lengths.cumsum(dtype=np.int64)
            ends *= self.dtype.itemsize
            ends += place
            wrong = self.sequence_pointers[start : start + BLOCK] != np.concatenate([[place], ends[:-1]])
            if wrong.any():
                sequence = start + int(np.argmax(wrong))
                raise NielsCacheError(
                    f"{self.idx_path}: sequence pointer {sequence} is {self.sequence_pointers[sequence]}, "
                    f"not where the lengths before it end in .bin; {_ADVICE}"
                )
            place = int(ends[-1])

    def __len__(self) -> int:
        return len(self.sequence_lengths)

    def __getitem__(self, index: int | slice) -> Array | list[Array]:
        """Return the tokens of a sequence, or a list of the tokens of each sequence in a slice. They are read-only views of the map.

        Raises:
            IndexError: If the index is beyond the last sequence.
        """
        if isinstance(index, slice):
            return [self.get(sequence) for sequence in range(*index.indices(len(self)))]
        return self.get(index)

    def __iter__(self) -> Iterator[Array]:
        return map(self.get, range(len(self)))

    def get(self, index: int, offset: int = 0, length: int | None = None) -> Array:
        """Return tokens of one sequence, as a read-only view of the map.

        Args:
            index: The number of the sequence.
            offset: The first token of the sequence to return.
            length: The number of tokens. By default, all tokens from `offset` on.

        Raises:
            IndexError: If the index is beyond the last sequence.
            NielsCacheError: If the sequence is too short.
        """
        sequence = check_index(index, len(self), what="sequence", from_end=True)
        tokens = int(self.sequence_lengths[sequence])
        taken = tokens - offset if length is None else length
        if offset < 0 or taken < 0 or offset + taken > tokens:
            raise NielsCacheError(f"{self.prefix}: sequence {sequence} has {tokens} tokens, asked for {taken} from {offset}")
        start = int(self.sequence_pointers[sequence]) // self.dtype.itemsize + offset
        return self.tokens[start : start + taken]

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 over header, lengths, document indices, modes, the size of .bin, and 64 blocks of 4 KiB of .bin.

        Everything that determines an index is hashed in full. The pointers are left out, because they follow from the lengths. A change of
        tokens between the blocks is not detected. The fingerprint does not depend on the location of the files.
        """
        arrays = (self.sequence_lengths, self.document_indices, self.sequence_modes)
        header = header_of(self.dtype, sequences=len(self), entries=len(self.document_indices))
        return fingerprint_of(header, (array for array in arrays if array is not None), _probe(self.tokens))

    @cached_property
    def _identity(self) -> str:
        """The hash that a copy in another process is compared with.

        It covers blocks of .bin, as the fingerprint does, and also blocks of the index.
        """
        return hashlib.sha256(_probe(np.frombuffer(self._index, dtype=np.uint8)) + _probe(self.tokens)).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {"prefix": self.prefix, "idx_path": self.idx_path, "identity": self._identity, "files": self._files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.prefix, self.idx_path = state["prefix"], state["idx_path"]
        self.bin_path = f"{self.prefix}.bin"
        self._open()  # the check is not repeated: the same files passed it when they were first opened
        if self._identity != state["identity"] or are_different_files(self._files, state["files"]):
            raise NielsCacheError(f"{self.prefix}: its files changed since it was opened; open it again in every process")


def sequence_lengths(folder: str | Path, ends: Uints, first: int = 0, stop: int | None = None) -> Iterator[Int32s]:
    """Yield the numbers of tokens of documents `first` to `stop` - 1 in blocks of int32.

    Args:
        folder: The folder of the split, for messages.
        ends: The ends of all documents, in tokens.
        first: The first document.
        stop: One more than the last document. By default, all documents from `first` on.

    Raises:
        NielsCacheError: If a document has more tokens than an int32 can count.
    """
    stop = len(ends) if stop is None else stop
    for start in range(first, stop, BLOCK):
        lengths = np.diff(ends[start : min(start + BLOCK, stop)], prepend=ends[start - 1] if start else np.uint64(0))
        if lengths.max() > MAX_SEQUENCE_TOKENS:
            document = start + int(lengths.argmax())
            raise NielsCacheError(
                f"{folder}: document {document} has {lengths.max()} tokens; Megatron counts those of a sequence in an int32"
            )
        yield lengths.astype(LENGTHS_DTYPE)


def count_up(count: int) -> Iterator[Ints]:
    """Yield 0 to count - 1 in blocks, with the dtype of document indices."""
    for start in range(0, count, BLOCK):
        yield np.arange(start, min(start + BLOCK, count), dtype=DOCUMENTS_DTYPE)


def header_of(dtype: np.dtype, *, sequences: int, entries: int) -> bytes:
    """Return the header of an .idx.

    Args:
        dtype: The dtype of a token.
        sequences: The number of sequences.
        entries: The number of document indices.
    """
    return HEADER.pack(MAGIC, VERSION, DTYPE_CODES[dtype], sequences, entries)


def fingerprint_of(header: bytes, sections: Iterable[Array], tokens: bytes) -> str:
    """Return the fingerprint of an IndexedDataset.

    Args:
        header: The header of the .idx.
        sections: The sections of the .idx after the header, without the pointers, in blocks.
        tokens: The `digest_of_blocks` of the .bin.
    """
    digest = hashlib.sha256(header)
    for section in sections:
        digest.update(section.data.cast("B") if len(section) else b"")
    digest.update(tokens)
    return digest.hexdigest()


def digest_of_blocks(size: int, read: Callable[[int], bytes]) -> bytes:
    """Return a digest of the size and of evenly spaced blocks, including the first and the last block.

    Args:
        size: The size in bytes.
        read: A function that returns the PROBE_BYTES bytes at an offset.
    """
    digest = hashlib.sha256(f"{size}\n".encode())
    last = max(size - PROBE_BYTES, 0)
    for offset in sorted({last * number // (_PROBES - 1) for number in range(_PROBES)}):
        digest.update(read(offset))
    return digest.digest()


def _probe(array: Array) -> bytes:
    content = array.view(np.uint8)
    return digest_of_blocks(len(content), lambda offset: content[offset : offset + PROBE_BYTES].tobytes())


def _read_header(path: str, index: memoryview) -> tuple[np.dtype, int, int]:
    """Return the dtype, the number of sequences, and the number of entries of the document indices."""
    if len(index) < HEADER.size:
        raise NielsCacheError(f"{path}: has {len(index)} bytes, its header alone takes {HEADER.size} (cut short?); write or copy it again")
    magic, version, code, sequences, entries = HEADER.unpack(index[: HEADER.size])
    if magic != MAGIC:
        raise NielsCacheError(f"{path}: magic is {magic!r}, not {MAGIC!r}: not an index of Megatron (or one of the legacy format)")
    if version != VERSION:
        raise NielsCacheError(f"{path}: version is {version}; only version {VERSION} is supported")
    if code in _FLOATS:
        raise NielsCacheError(f"{path}: dtype code is {code} ({_FLOATS[code]}): embeddings; only tokens are supported")
    if code not in DTYPES:
        raise NielsCacheError(f"{path}: dtype code is {code}; known are {sorted(DTYPES)}")
    return DTYPES[code], sequences, entries


def file_identities(files: Sequence[os.stat_result]) -> dict[str, Any]:
    """Return values that identify these files on this host. On another host, the same file may have other values."""
    return {"host": os.uname().nodename, "files": [(file.st_ino, file.st_size, file.st_mtime_ns) for file in files]}


def are_different_files(here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Return whether two results of `file_identities` certainly belong to different files."""
    return here != there and here.get("host") == there.get("host")


def _map_bytes(path: str) -> tuple[memoryview, os.stat_result]:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            state = os.fstat(file.fileno())
            mapped = mmap.mmap(file.fileno(), state.st_size, access=mmap.ACCESS_READ) if state.st_size else b""
            return memoryview(mapped), state
    except FileNotFoundError as error:
        raise NielsCacheError(f"{path}: no such file; give the prefix of a .bin and an .idx, without either ending") from error
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be mapped: {error.strerror or error}") from error
