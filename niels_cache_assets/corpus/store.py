"""The files of a corpus, which are written from start to end. Documents and rejected examples are in Parquet files, digests and signatures
in arrays.

A file of documents ends at the end of a chunk, and a build can resume there. A build cannot resume inside a file of documents, because a
parquet file cannot be extended. The arrays can be extended. One row group of documents is in memory (2 MB of text, or 16,384 documents),
for any size of the corpus and of its texts. `artifacts/corpus.py` decides the content.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from niels_cache_assets.corpus.layout import (
    DIGESTS_NAME,
    DOCUMENTS,
    REJECTED,
    REJECTED_NAME,
    SIGNATURES_NAME,
    TEXT_BYTES_PER_FILE,
    documents_file,
)
from niels_cache_assets.dedup.signatures import DIGEST_BYTES
from niels_cache_assets.disk.journal import SCRATCH_NAME
from niels_cache_assets.disk.table_file import TableFile, closing_table
from niels_cache_assets.disk.writers import Files, HashedFile, NpyWriter, Sizes
from niels_cache_runtime.format.layout import META_NAME

TEXT_BYTES_PER_GROUP = 2_000_000  # small, because reading one document decompresses its whole row group
ROWS_PER_GROUP = 16_384  # a limit for short texts, whose rows take more memory than their text

_HASHES_NAME = f"{SCRATCH_NAME}/hashes"  # hashes of the documents, back to back, until the corpus is complete
_HASH_BYTES = 32
_NAMES = re.compile(r"documents_\d{5,}\.parquet")
_FIXED_NAMES = {META_NAME, REJECTED_NAME, DIGESTS_NAME, SIGNATURES_NAME}


class DocumentRow(NamedTuple):
    """A row of DOCUMENTS without its ordinal."""

    text: str
    title: str | None
    source_id: str
    file: str
    row: int
    split: str | None
    characters: int
    bytes: int


def is_corpus_file(name: str) -> bool:
    """Return whether a corpus has files of this name."""
    return name in _FIXED_NAMES or _NAMES.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class Written:
    """The state after the last complete file of documents: the number of `documents`, and the number of such files (`tables`)."""

    documents: int = 0
    tables: int = 0


class CorpusWriter:
    """A writer of documents, with digests and signatures. A file has about 128 MB of text. The writer is a context manager, which closes
    the files.
    """

    def __init__(self, root: Path, *, num_perm: int | None, there: Written | None = None, files: Files | None = None) -> None:
        """Open the files to write.

        `num_perm`: the number of slots (numbers) of a signature. With None, no digests and signatures are written. `there`: the state of
        `root` if a build resumes. `files`: the finished files in `root`.
        """
        self._root = root
        there = there or Written()
        self.files, self.documents, self._tables = dict(files or {}), there.documents, there.tables
        self._table: TableFile | None = None
        self._text_bytes = 0  # bytes of text in the open file, without the waiting rows
        self._waiting: list[tuple[Any, ...]] = []  # rows of DOCUMENTS
        self._waiting_bytes = 0
        self._hashes_files: Files = {}
        self._hashes = HashedFile(root, _HASHES_NAME, self._hashes_files, resume_at=self.documents * _HASH_BYTES)
        self._digests = self._slots = None
        if num_perm is not None:
            self._digests = self._array(DIGESTS_NAME, "u1", DIGEST_BYTES)
            self._slots = self._array(SIGNATURES_NAME, "<u4", num_perm)
        self._growing = [part for part in (self._hashes, self._digests, self._slots) if part is not None]

    def _array(self, name: str, dtype: str, width: int) -> NpyWriter:
        return NpyWriter(self._root, name, np.dtype(dtype), self.files, width=width, resume_at=self.documents)

    def __enter__(self) -> CorpusWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._table is not None:
            self._table.abandon()
        for part in self._growing:
            part.abandon()

    def write(self, rows: Sequence[DocumentRow], hashes: bytes, digests: np.ndarray | None, slots: np.ndarray | None) -> bool:
        """Append a chunk of documents. Return whether a file of documents ended with this chunk.

        If the result is True, all documents so far are in finished files. `hashes`: the `document_hash` of each document, back to back.
        `digests` is (n, 20) uint8, and `slots` is (n, num_perm) uint32. Both are None without dedup.
        """
        self._hashes.append(hashes)
        if rows and self._digests is not None and self._slots is not None:
            assert digests is not None
            assert slots is not None
            self._digests.write(digests)
            self._slots.write(slots)
        for row in rows:
            self._waiting.append((self.documents, *row))
            self._waiting_bytes += row.bytes
            self.documents += 1
            if self._waiting_bytes >= TEXT_BYTES_PER_GROUP or len(self._waiting) == ROWS_PER_GROUP:
                self._flush()
        if self._text_bytes < TEXT_BYTES_PER_FILE:
            return False
        self._flush()
        self._seal_table()
        return True

    def checkpoint(self) -> tuple[Written, Sizes]:
        """Put everything on the disk after a finished file of documents.

        Return the state to resume from, and the number of bytes of each unfinished file.
        """
        sizes = Sizes()
        for part in self._growing:
            part.checkpoint(sizes)
        return Written(documents=self.documents, tables=self._tables), sizes

    def seal(self) -> None:
        self._flush()
        self._seal_table()
        for part in self._growing:
            part.seal()

    @property
    def content_sha256(self) -> str:
        """The sha256 over the hashes of all documents, in order. It does not depend on the version of the Parquet writer. Read this
        property after `seal`.
        """
        return str(self._hashes_files[_HASHES_NAME]["sha256"])

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._table is None:
            self._table = TableFile(self._root, documents_file(self._tables), DOCUMENTS, self.files)
            self._tables += 1
        self._table.write_group(zip(*self._waiting, strict=True))
        self._text_bytes += self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0

    def _seal_table(self) -> None:
        if self._table is not None:
            self._table.seal()
            self._table, self._text_bytes = None, 0


def write_rejected(root: Path, rows: Iterable[Mapping[str, Any]], files: Files) -> None:
    """Write rejected.parquet. Each row maps column names to values. Without rows, the file still has its columns."""
    held = list(rows)
    with closing_table(TableFile(root, REJECTED_NAME, REJECTED, files)) as table:
        table.write_group([row[name] for row in held] for name in REJECTED)


def document_hash(row: DocumentRow) -> bytes:
    """Return the sha256 of one row.

    For each field, the length of the value is hashed first, and then its UTF-8 bytes. Null and the empty string give different hashes.
    """
    digest = hashlib.sha256()
    for value in row:
        data = b"" if value is None else str(value).encode()
        digest.update(f"{'null' if value is None else len(data)}:".encode())
        digest.update(data)
    return digest.digest()
