"""A split of a cache as Megatron-LM's IndexedDataset: one sequence for each document, the bytes of megatron-core's IndexedDatasetBuilder.

Tokens are copied as they are, or linked where a part is one shard; lengths come from doc_ends, in blocks, so that memory does not grow
with the number of documents. A document ends with its EOT, as in the cache; which token that is, and names on a command line, are not
known here. Sequences that are not a split are the business of `indexed_builder`.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.cache.gather import check_positive
from niels_cache_runtime.cache.opening import OpenedSplit, open_split
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.doc_ends import cut_documents, require_doc_ends
from niels_cache_runtime.format.layout import TOKEN_BYTES, TOKEN_DTYPE
from niels_cache_runtime.megatron.indexed import BLOCK, DOCUMENTS_DTYPE, HEADER, LENGTHS_DTYPE, POINTERS_DTYPE
from niels_cache_runtime.megatron.indexed_builder import MAX_SEQUENCE_TOKENS, Output, refuse_existing, write_index

MAX_BYTES = 512 * 1000**3  # of one .bin
Link = Literal["copy", "hardlink", "reflink"]

_COPY_TOKENS = 1 << 23
_FICLONE = 0x40049409  # ioctl(2) on Linux: share the blocks of another file


@dataclass(frozen=True, kw_only=True)
class Part:
    """One .bin and .idx of a split: documents first_document to end_document - 1, tokens first_token to end_token - 1 of its stream."""

    prefix: str
    first_document: int
    end_document: int
    first_token: int
    end_token: int

    @property
    def documents(self) -> int:
        return self.end_document - self.first_document

    @property
    def bin_bytes(self) -> int:
        return (self.end_token - self.first_token) * TOKEN_BYTES

    @property
    def idx_bytes(self) -> int:
        per_document = LENGTHS_DTYPE.itemsize + POINTERS_DTYPE.itemsize + DOCUMENTS_DTYPE.itemsize
        return HEADER.size + DOCUMENTS_DTYPE.itemsize + per_document * self.documents


def plan_indexed(prefix: str | Path, folder: str | Path, *, max_bytes: int = MAX_BYTES, key: str | None = None) -> list[Part]:
    """The parts that a split's folder, such as `cache/pretrain/NAME/train`, is written as: one, or several of whole documents with at most
    `max_bytes` of tokens each, PREFIX_00000, PREFIX_00001, ...; `key`: Megatron's naming, PREFIX_<key>_document.

    Nothing is written. Raises NielsCacheError if the split cannot be opened, is empty or has no doc_ends file, if a document is larger
    than max_bytes or longer than an int32 can say.
    """
    return _plan(prefix, folder, _open(folder)[1], max_bytes=max_bytes, key=key)


def write_indexed(
    prefix: str | Path,
    folder: str | Path,
    *,
    max_bytes: int = MAX_BYTES,
    key: str | None = None,
    link: Link = "copy",
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Part]:
    """Write the parts that `plan_indexed` says, one sequence for each document.

    link: where a part is exactly one shard, "hardlink" makes .bin another name of it, "reflink" a copy that shares its blocks; where
    the file system cannot, and everywhere else, bytes are copied. progress: told (bytes of .bin done, total).
    Each part appears when it is complete. Raises NielsCacheError as `plan_indexed` does, if a file is there and not `force`, or if one
    cannot be written.
    """
    split, ends = _open(folder)
    parts = _plan(prefix, folder, ends, max_bytes=max_bytes, key=key)
    if not force:
        for part in parts:
            refuse_existing(part.prefix)
    total, done = sum(part.bin_bytes for part in parts), 0
    for part in parts:
        with Output(part.prefix) as output:
            if not _linked(split, part, output.bin_path, link):
                with open(output.bin_path, "wb") as file:
                    for copied in _copy_tokens(split, part, file):
                        if progress is not None:
                            progress(done + copied, total)
            with open(output.idx_path, "wb") as file:
                write_index(
                    file,
                    TOKEN_DTYPE,
                    sequences=part.documents,
                    lengths=lambda part=part: _lengths(ends, part),  # type: ignore[misc]
                    entries=part.documents + 1,
                    document_indices=lambda part=part: _count_up(part.documents + 1),  # type: ignore[misc]
                    modes=None,
                )
        done += part.bin_bytes
        if progress is not None:
            progress(done, total)
    return parts


def _open(folder: str | Path) -> tuple[OpenedSplit, NDArray[np.uint64]]:
    split = open_split(folder, doc_ends=True)
    ends = require_doc_ends(folder, split.doc_ends)
    if not len(ends):
        raise NielsCacheError(f"{folder}: this split is empty (0 tokens); there is nothing to export")
    return split, ends


def _plan(prefix: str | Path, folder: str | Path, ends: NDArray[np.uint64], *, max_bytes: int, key: str | None) -> list[Part]:
    max_tokens = check_positive("max_bytes", max_bytes) // TOKEN_BYTES
    for longest, document in _longest(ends):
        if longest > MAX_SEQUENCE_TOKENS:
            raise NielsCacheError(f"{folder}: document {document} has {longest} tokens; Megatron counts those of a sequence in an int32")
    cuts = cut_documents(folder, ends, max_tokens)
    ending = "" if key is None else f"_{key}_document"
    return [
        Part(
            prefix=f"{prefix}{f'_{number:05d}' if len(cuts) > 1 else ''}{ending}",
            first_document=first_document,
            end_document=end_document,
            first_token=first_token,
            end_token=end_token,
        )
        for number, (first_document, end_document, first_token, end_token) in enumerate(cuts)
    ]


def _longest(ends: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Tokens and number of the longest document of each block."""
    for start in range(0, len(ends), BLOCK):
        lengths = np.diff(ends[start : start + BLOCK], prepend=ends[start - 1] if start else np.uint64(0))
        yield int(lengths.max()), start + int(lengths.argmax())


def _lengths(ends: NDArray[np.uint64], part: Part) -> Iterator[NDArray[Any]]:
    for start in range(part.first_document, part.end_document, BLOCK):
        stop = min(start + BLOCK, part.end_document)
        yield np.diff(ends[start:stop], prepend=ends[start - 1] if start else np.uint64(0))


def _count_up(count: int) -> Iterator[NDArray[Any]]:
    for start in range(0, count, BLOCK):
        yield np.arange(start, min(start + BLOCK, count))


def _copy_tokens(split: OpenedSplit, part: Part, file: IO[bytes]) -> Iterator[int]:
    """Copy the part's tokens into the file, from the maps: all of one build, even if a rebuild comes between. Yields bytes so far."""
    shard_begin = 0
    for tokens in split.tokens.shards:
        first, end = max(part.first_token - shard_begin, 0), min(part.end_token - shard_begin, len(tokens))
        shard_begin += len(tokens)
        for start in range(first, end, _COPY_TOKENS):
            file.write(tokens[start : min(start + _COPY_TOKENS, end)].data)
            yield file.tell()


def _linked(split: OpenedSplit, part: Part, target: str, link: Link) -> bool:
    """Whether `target` now is the part's tokens without a copy."""
    shard_begin = 0
    for path, length in zip(split.shards, split.tokens.shard_lengths.tolist(), strict=True):
        if link != "copy" and (shard_begin, shard_begin + length) == (part.first_token, part.end_token):
            return _link(path, target) if link == "hardlink" else _reflink(path, target)
        shard_begin += length
    return False


def _link(path: str, target: str) -> bool:
    try:
        os.link(path, target)
    except OSError:  # another file system, or one without links
        return False
    return True


def _reflink(path: str, target: str) -> bool:
    with open(path, "rb") as source, open(target, "wb") as file:
        try:
            fcntl.ioctl(file, _FICLONE, source.fileno())
        except OSError:
            return False
    return True
