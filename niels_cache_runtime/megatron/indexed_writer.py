"""A writer of Megatron-LM's IndexedDataset: the bytes are those of megatron-core's IndexedDatasetBuilder.

`IndexedWriter` writes any sequences, one after the other. Until the end, it keeps lengths and document indices in temporary files beside
the output. `write_indexed` writes a split of a cache, with one sequence for each document. It copies the bytes of tokens, or links to them
if a part is exactly one shard; uint32 tokens are int32 there, with the same bytes. It takes lengths from doc_ends, in blocks, so memory
does not grow with the number of sequences. Files appear when they are complete. The .bin appears first, so an .idx always belongs to its
.bin. A document ends with its end-of-text token (EOT), as in the cache. This module does not need the id of EOT.
"""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

import numpy as np

from niels_cache_runtime.cache.checks import check_positive
from niels_cache_runtime.cache.mmap import slice_pieces
from niels_cache_runtime.cache.opening import OpenedSplit, cut_documents, open_split, require_doc_ends
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import sync
from niels_cache_runtime.format.layout import TOKEN_DTYPE, Array, Uints
from niels_cache_runtime.megatron.indexed import (
    BLOCK,
    DOCUMENTS_DTYPE,
    DTYPE_CODES,
    DTYPE_OF_CACHE,
    HEADER,
    LENGTHS_DTYPE,
    MAX_SEQUENCE_TOKENS,
    POINTERS_DTYPE,
    count_up,
    header_of,
    sequence_lengths,
)

MAX_BYTES = 512 * 1000**3  # the largest size of one .bin
Link = Literal["copy", "hardlink", "reflink"]
TokenBlocks = Callable[[], Iterator[Array]]

_COPY_TOKENS = 1 << 23
_FICLONE = 0x40049409  # an ioctl(2) request on Linux that shares the blocks of another file


class IndexedWriter:
    """A writer of PREFIX.bin and PREFIX.idx, sequence by sequence. The bytes are those of megatron-core's IndexedDatasetBuilder.

    It is a context manager: the files appear when its block ends without an error.

    Args:
        prefix: The path of both files without .bin and .idx.
        dtype: The dtype of a token, one that the format has. The default is uint16.
        force: Whether to replace existing files.

    Raises:
        NielsCacheError: If the format does not have the dtype, if a token does not fit into it, if a file cannot be written, or if a file
            exists and `force` is not set.
    """

    def __init__(self, prefix: str | Path, *, dtype: Any = TOKEN_DTYPE, force: bool = False) -> None:
        self.dtype = np.dtype(dtype).newbyteorder("<")
        if self.dtype not in DTYPE_CODES:
            raise NielsCacheError(f"dtype={self.dtype}: this format has {', '.join(str(known) for known in DTYPE_CODES)}")
        if not force:
            refuse_existing(str(prefix))
        self._prefix = str(prefix)
        self._sequences = 0
        self._entries = 1

    def add_sequence(self, tokens: Array | Sequence[int]) -> None:
        """Add a sequence to the open document. If the document has only one sequence, `add_document` is simpler.

        Args:
            tokens: The token ids, (n,).

        Raises:
            NielsCacheError: If a token does not fit into the dtype, or if there are more tokens than an int32 can count.
        """
        given = np.asarray(tokens)
        converted = given.astype(self.dtype, casting="unsafe")
        if len(given) and not np.array_equal(converted, given):
            raise NielsCacheError(f"{self._prefix}: sequence {self._sequences} has a token that does not fit into {self.dtype}")
        if len(given) > MAX_SEQUENCE_TOKENS:
            raise NielsCacheError(f"{self._prefix}: sequence {self._sequences} has {len(given)} tokens, more than an int32 can count")
        self._bin.write(converted.tobytes())
        self._lengths.write(np.array(len(given), dtype=LENGTHS_DTYPE).tobytes())
        self._sequences += 1

    def end_document(self) -> None:
        """End the open document. A document without sequences is allowed."""
        self._documents.write(np.array(self._sequences, dtype=DOCUMENTS_DTYPE).tobytes())
        self._entries += 1

    def add_document(self, tokens: Array | Sequence[int], *, lengths: Sequence[int] | None = None) -> None:
        """Add a whole document.

        Args:
            tokens: The token ids of the document, (n,).
            lengths: The lengths of its sequences in tokens, which add up to n. By default, the document is one sequence.

        Raises:
            NielsCacheError: If the lengths do not add up to n, and for the reasons that `add_sequence` lists.
        """
        lengths = [len(tokens)] if lengths is None else lengths
        if sum(lengths) != len(tokens):
            raise NielsCacheError(f"{self._prefix}: lengths add up to {sum(lengths)}, the document has {len(tokens)} tokens")
        start = 0
        for length in lengths:
            self.add_sequence(tokens[start : start + length])
            start += length
        self.end_document()

    def __enter__(self) -> Self:
        with ExitStack() as files:
            bin_path, self._idx_path = files.enter_context(_new_files(self._prefix))
            self._bin = files.enter_context(open(bin_path, "wb"))
            folder = os.path.dirname(bin_path)  # not the system's temporary folder: the disk of the output has room
            self._lengths, self._documents = (files.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(2))
            self._documents.write(np.array(0, dtype=DOCUMENTS_DTYPE).tobytes())
            self._files = files.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None:
            self._files.callback(self._write_index)
        self._files.__exit__(kind, error, traceback)

    def _write_index(self) -> None:
        with open(self._idx_path, "wb") as file:
            write_index(
                file,
                self.dtype,
                sequences=self._sequences,
                lengths=lambda: _read_spool(self._lengths, LENGTHS_DTYPE),
                entries=self._entries,
                document_indices=lambda: _read_spool(self._documents, DOCUMENTS_DTYPE),
            )


def _read_spool(spool: IO[bytes], dtype: np.dtype) -> Iterator[Array]:
    spool.seek(0)
    while block := spool.read(BLOCK * dtype.itemsize):
        yield np.frombuffer(block, dtype=dtype)


def write_index(
    file: IO[bytes], dtype: np.dtype, *, sequences: int, lengths: TokenBlocks, entries: int, document_indices: TokenBlocks
) -> None:
    """Write an .idx, section by section.

    Args:
        file: The file to write to.
        dtype: The dtype of a token.
        sequences: The number of sequences.
        lengths: A function that yields the lengths of the sequences in blocks. It is called twice.
        entries: The number of document indices.
        document_indices: A function that yields the document indices in blocks.
    """
    file.write(header_of(dtype, sequences=sequences, entries=entries))
    for block in lengths():
        file.write(block.astype(LENGTHS_DTYPE).tobytes())
    pointer = 0
    for block in lengths():
        ends = block.cumsum(dtype=np.int64) * dtype.itemsize + pointer
        file.write(np.concatenate([[pointer], ends[:-1]]).astype(POINTERS_DTYPE).tobytes())
        pointer = int(ends[-1])
    for block in document_indices():
        file.write(block.astype(DOCUMENTS_DTYPE).tobytes())


def refuse_existing(prefix: str) -> None:
    """Raise NielsCacheError if PREFIX.bin or PREFIX.idx exists."""
    for path in (f"{prefix}.bin", f"{prefix}.idx"):
        if os.path.lexists(path):
            raise NielsCacheError(f"{path}: already exists; choose another prefix, or replace it (force)")


@contextmanager
def _new_files(prefix: str) -> Iterator[tuple[str, str]]:
    """Yield temporary names for PREFIX.bin and PREFIX.idx. They are renamed if the block ends without an error, and removed otherwise."""
    bin_path, idx_path = f"{prefix}.bin.partial", f"{prefix}.idx.partial"
    folder = os.path.dirname(os.path.abspath(prefix))

    def discard() -> None:
        for path in (bin_path, idx_path):
            with suppress(FileNotFoundError):
                os.unlink(path)

    try:
        os.makedirs(folder, exist_ok=True)
        discard()
    except OSError as error:
        raise NielsCacheError(f"{folder}: cannot write there: {error.strerror or error}; choose another prefix") from error
    try:
        yield bin_path, idx_path
        for path in (bin_path, idx_path):
            sync(Path(path))
        with suppress(FileNotFoundError):
            os.unlink(f"{prefix}.idx")  # the old .bin is about to be replaced
        os.replace(bin_path, f"{prefix}.bin")
        os.replace(idx_path, f"{prefix}.idx")
    except OSError as error:
        raise NielsCacheError(f"{error.filename or prefix}: {error.strerror or error}; nothing was written") from error
    finally:
        discard()


@dataclass(frozen=True)
class IndexedPart:
    """One .bin and .idx of a split, with a range of whole documents and their tokens.

    Attributes:
        prefix: The path of both files without .bin and .idx.
        first_document: The first document of the split in this part.
        end_document: One more than the last document.
        first_token: The first token of the split in this part.
        end_token: One more than the last token.
        dtype: The dtype of a token in .bin, uint16 or int32.
    """

    prefix: str
    first_document: int
    end_document: int
    first_token: int
    end_token: int
    dtype: np.dtype

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.end_document - self.first_document

    @property
    def bin_bytes(self) -> int:
        """Size of the .bin file in bytes."""
        return (self.end_token - self.first_token) * self.dtype.itemsize

    @property
    def idx_bytes(self) -> int:
        """Size of the .idx file in bytes."""
        per_document = LENGTHS_DTYPE.itemsize + POINTERS_DTYPE.itemsize + DOCUMENTS_DTYPE.itemsize
        return HEADER.size + DOCUMENTS_DTYPE.itemsize + per_document * self.documents


def plan_indexed(prefix: str | Path, folder: str | Path, *, max_bytes: int = MAX_BYTES, key: str | None = None) -> list[IndexedPart]:
    """Return the parts into which a split of a cache is exported, without writing anything.

    There is one part, PREFIX, if the split has at most `max_bytes` bytes of tokens. Otherwise there are several parts of whole documents
    with at most `max_bytes` each, PREFIX_00000, PREFIX_00001, ...

    Args:
        prefix: The prefix of the parts.
        folder: The folder of the split, such as `cache/pretrain/NAME/train`.
        max_bytes: The largest size of a .bin file. The default is 512 GB.
        key: If given, the names get Megatron's ending, as in `PREFIX_<key>_document`.

    Raises:
        NielsCacheError: If the split cannot be opened, is empty or has no doc_ends file, or if a document is larger than `max_bytes` or
            longer than an int32 can count.
    """
    return _plan(prefix, folder, *open_documents(folder), max_bytes=max_bytes, key=key)


def write_indexed(
    prefix: str | Path,
    folder: str | Path,
    *,
    max_bytes: int = MAX_BYTES,
    key: str | None = None,
    link: Link = "copy",
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[IndexedPart]:
    """Write the parts of `plan_indexed`, with one sequence for each document. Each part appears when it is complete.

    Args:
        prefix: The prefix of the parts.
        folder: The folder of the split, such as `cache/pretrain/NAME/train`.
        max_bytes: The largest size of a .bin file. The default is 512 GB.
        key: If given, the names get Megatron's ending, as in `PREFIX_<key>_document`.
        link: How to write a part that is exactly one shard. "copy", the default, copies the bytes. "hardlink" makes .bin another name of
            the shard. "reflink" makes .bin a copy that shares the shard's blocks. If the file system does not support this, and for all
            other parts, bytes are copied.
        force: Whether to replace existing files.
        progress: Called with (bytes of .bin done, total).

    Returns:
        The parts.

    Raises:
        NielsCacheError: For the reasons that `plan_indexed` lists, if a file cannot be written, or if a file exists and `force` is not set.
    """
    split, ends = open_documents(folder)
    parts = _plan(prefix, folder, split, ends, max_bytes=max_bytes, key=key)
    if not force:
        for part in parts:
            refuse_existing(part.prefix)
    total, done = sum(part.bin_bytes for part in parts), 0
    for part in parts:
        with _new_files(part.prefix) as (bin_path, idx_path):
            if not _link_shard(split, part, bin_path, link):
                with open(bin_path, "wb") as file:
                    for copied in _copy_tokens(split, part, file):
                        if progress is not None:
                            progress(done + copied, total)
            with open(idx_path, "wb") as file:
                write_index(
                    file,
                    part.dtype,
                    sequences=part.documents,
                    lengths=partial(sequence_lengths, folder, ends, part.first_document, part.end_document),
                    entries=part.documents + 1,
                    document_indices=partial(count_up, part.documents + 1),
                )
        done += part.bin_bytes
        if progress is not None:
            progress(done, total)
    return parts


def open_documents(folder: str | Path) -> tuple[OpenedSplit, Uints]:
    """Open a split of a cache with its document ends.

    Raises:
        NielsCacheError: If the split cannot be opened, is empty, or has no doc_ends.
    """
    split = open_split(folder, doc_ends=True)
    ends = require_doc_ends(folder, split.doc_ends)
    if not len(ends):
        raise NielsCacheError(f"{folder}: this split is empty (0 tokens); there is nothing to read")
    return split, ends


def _plan(prefix: str | Path, folder: str | Path, split: OpenedSplit, ends: Uints, *, max_bytes: int, key: str | None) -> list[IndexedPart]:
    dtype = DTYPE_OF_CACHE[split.tokens.dtype]
    max_tokens = check_positive("max_bytes", max_bytes) // dtype.itemsize
    for _ in sequence_lengths(folder, ends):  # `sequence_lengths` raises for a document that is too long
        pass
    cuts = cut_documents(folder, ends, max_tokens, token_bytes=dtype.itemsize)
    ending = "" if key is None else f"_{key}_document"
    return [
        IndexedPart(f"{prefix}{f'_{number:05d}' if len(cuts) > 1 else ''}{ending}", *cut, dtype=dtype) for number, cut in enumerate(cuts)
    ]


def _copy_tokens(split: OpenedSplit, part: IndexedPart, file: IO[bytes]) -> Iterator[int]:
    """Copy the part's tokens into the file, and yield the number of bytes copied so far.

    The tokens come from the memory maps, so they are all of one build, even after a rebuild.
    """
    for tokens in slice_pieces(split.tokens.shards, part.first_token, part.end_token):
        for start in range(0, len(tokens), _COPY_TOKENS):
            file.write(tokens[start : start + _COPY_TOKENS].data)
            yield file.tell()


def _link_shard(split: OpenedSplit, part: IndexedPart, target: str, link: Link) -> bool:
    """Link `target` to the part's shard if the part is exactly one shard. Return whether it was linked."""
    shard_begin = 0
    for path, length in zip(split.shards, split.tokens.shard_lengths.tolist(), strict=True):
        if link != "copy" and (shard_begin, shard_begin + length) == (part.first_token, part.end_token):
            try:
                if link == "hardlink":
                    os.link(path, target)
                else:
                    with open(path, "rb") as source, open(target, "wb") as file:
                        fcntl.ioctl(file, _FICLONE, source.fileno())
            except OSError:  # `target` is on another file system, or the file system has no such links
                return False
            return True
        shard_begin += length
    return False
