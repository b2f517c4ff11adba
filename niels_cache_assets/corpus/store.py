"""The files of a corpus, which are written from start to end.

Documents and rejected examples are in Parquet files, digests and signatures in arrays. A file of documents ends at the end of a chunk. The
arrays can be extended, but a Parquet file cannot. So the rows of the open file of documents are also written to a spool, a line of JSON
each. A build that resumes writes the rows of the spool to the file again, which costs much less than cleaning and signing them again. One
row group of documents is in memory (2 MB of text, or 16,384 documents), for any size of the corpus and of its texts.
`artifacts/corpus.py` decides the content.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from niels_cache_assets.corpus.layout import (
    COUNTS_NAME,
    DIGESTS_NAME,
    DOCUMENTS,
    HASHES_NAME,
    KEPT,
    MEASURES_NAME,
    REJECTED,
    REJECTED_NAME,
    SIGNATURES_NAME,
    TEXT_BYTES_PER_FILE,
    documents_file,
)
from niels_cache_assets.disk.journal import SCRATCH_NAME, write_atomically
from niels_cache_assets.disk.table_file import ParquetWriter, sealing
from niels_cache_assets.disk.writers import Files, HashedFile, NpyWriter, add_file
from niels_cache_runtime.format.layout import META_NAME

if TYPE_CHECKING:
    from niels_cache_assets.cleaning.report import CleaningReport
    from niels_cache_assets.dedup.signatures import Signatures

TEXT_BYTES_PER_GROUP = 2_000_000  # small, because reading one document decompresses its whole row group
ROWS_PER_GROUP = 16_384  # a limit for short texts, whose rows take more memory than their text

_HASHES_NAME = f"{SCRATCH_NAME}/{HASHES_NAME}"  # hashes of the documents, back to back, until the corpus is complete
_HASH_BYTES = 32
_SPOOLS = "rows_*"
_NAMES = re.compile(r"documents_\d{5,}\.parquet")
_FIXED_NAMES = {META_NAME, REJECTED_NAME, DIGESTS_NAME, SIGNATURES_NAME, HASHES_NAME, COUNTS_NAME, MEASURES_NAME}


class DocumentRow(NamedTuple):
    """A row of DOCUMENTS without its ordinal, and the kept values."""

    text: str
    title: str | None
    source_id: str
    file: str
    row: int
    split: str | None
    characters: int
    bytes: int
    kept: str | None = None


def _spool_name(table: int) -> str:
    """Return the path of the spool of an open file of documents."""
    return f"{SCRATCH_NAME}/rows_{table:05d}"


def is_corpus_file(name: str) -> bool:
    """Return whether a corpus has files of this name."""
    return name in _FIXED_NAMES or _NAMES.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class CorpusWriterState:
    """The state after a chunk. The default is that before the first one.

    Attributes:
        documents: The number of documents.
        tables: The number of complete files of documents.
        open_rows: The number of documents in the open file.
    """

    documents: int = 0
    tables: int = 0
    open_rows: int = 0


class CorpusWriter:
    """A writer of documents, with digests and signatures. A file has about 128 MB of text.

    Use it as a context manager, which closes the files.
    """

    def __init__(
        self,
        root: Path,
        *,
        num_perm: int | None,
        state: CorpusWriterState,
        files: Files,
        hashes_stay: bool,
        has_kept_values: bool,
    ) -> None:
        """Open the files to write.

        Args:
            root: The folder of the corpus.
            num_perm: The number of slots (numbers) of a signature. None: no digests and signatures are written.
            state: The state of `root`.
            files: The finished files in `root`.
            hashes_stay: Whether the hashes of the documents are a file of the result.
            has_kept_values: Whether documents have kept values.
        """
        from niels_cache_assets.dedup.signatures import DIGEST_BYTES

        self._root = root
        self._columns = DOCUMENTS | KEPT if has_kept_values else DOCUMENTS
        self.files, self.documents, self._tables = dict(files), state.documents, state.tables
        self._table: ParquetWriter | None = None
        self._spool: HashedFile | None = None
        self._open_rows = 0
        self._text_bytes = 0  # bytes of text in the open file, without the waiting rows
        self._waiting: list[tuple[Any, ...]] = []  # rows of DOCUMENTS
        self._waiting_bytes = 0
        name, listed = (HASHES_NAME, self.files) if hashes_stay else (_HASHES_NAME, None)
        self._hashes = HashedFile(root, name, listed, resume_at=self.documents * _HASH_BYTES)
        arrays = ((DIGESTS_NAME, "u1", DIGEST_BYTES), (SIGNATURES_NAME, "<u4", num_perm)) if num_perm is not None else ()
        self._arrays = [
            NpyWriter(root, name, np.dtype(dtype), self.files, width=width, resume_at=self.documents) for name, dtype, width in arrays
        ]
        self._growing = [self._hashes, *self._arrays]
        if state.open_rows:
            self._replay(state)

    def __enter__(self) -> CorpusWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._table is not None:
            self._table.abandon()
        for part in self.unfinished:
            part.abandon()

    def write(self, rows: Sequence[DocumentRow], hashes: bytes, signatures: Signatures | None) -> bool:
        """Append a chunk of documents, and return whether a file of documents ended with this chunk.

        If the result is True, all documents so far are in finished files.

        Args:
            rows: The documents.
            hashes: The `document_hash` of each document, back to back.
            signatures: Their signatures. None without dedup.
        """
        self._hashes.append(hashes)
        columns: tuple[np.ndarray, ...] = () if signatures is None else (signatures.digests, signatures.slots)
        for array, values in zip(self._arrays, columns, strict=True):
            array.write(values)
        for row in rows:
            self._add(self.documents, row)
            self.documents += 1
        if rows:
            self._spool = self._spool or HashedFile(self._root, _spool_name(self._finished_tables))
            width = len(self._columns) - 1  # without the ordinal
            self._spool.append("".join(f"{json.dumps(row[:width])}\n" for row in rows).encode())
        if self._text_bytes < TEXT_BYTES_PER_FILE:
            return False
        self._flush()
        self._seal_table()
        return True

    def _add(self, ordinal: int, row: DocumentRow) -> None:
        """Append a row to the open file of documents."""
        self._waiting.append((ordinal, *row)[: len(self._columns)])
        self._waiting_bytes += row.bytes
        self._open_rows += 1
        if self._waiting_bytes >= TEXT_BYTES_PER_GROUP or len(self._waiting) == ROWS_PER_GROUP:
            self._flush()

    def _replay(self, state: CorpusWriterState) -> None:
        """Write the rows of the spool to a new file of documents. The journal has cut the spool to its recorded size."""
        name = _spool_name(state.tables)
        with open(self._root / name, encoding="ascii") as lines:
            for ordinal, line in enumerate(lines, start=state.documents - state.open_rows):
                self._add(ordinal, DocumentRow(*json.loads(line)))
        self._spool = HashedFile(self._root, name, resume_at=(self._root / name).stat().st_size)

    @property
    def unfinished(self) -> list[HashedFile]:
        """The unfinished files, except that of documents."""
        return [*self._growing, *([self._spool] if self._spool is not None else [])]

    @property
    def _finished_tables(self) -> int:
        return self._tables - (self._table is not None)

    @property
    def state(self) -> CorpusWriterState:
        """The state to resume from after a chunk."""
        return CorpusWriterState(documents=self.documents, tables=self._finished_tables, open_rows=self._open_rows)

    def remove_spools(self) -> None:
        """Remove the spools of finished files of documents. The caller has recorded a checkpoint after them."""
        for path in (self._root / SCRATCH_NAME).glob(_SPOOLS):
            if self._spool is None or path != self._spool.path:
                path.unlink()

    def seal(self) -> None:
        """Finish all files, and flush them to the disk."""
        self._flush()
        self._seal_table()
        for part in self._growing:
            part.seal()

    @property
    def content_sha256(self) -> str:
        """The sha256 over the hashes of all documents, in order. Read this property after `seal`.

        It does not depend on the version of the Parquet writer.
        """
        return self._hashes.sha256

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._table is None:
            self._table = ParquetWriter(self._root, documents_file(self._tables), self._columns, self.files)
            self._tables += 1
        self._table.write_group(zip(*self._waiting, strict=True))
        self._text_bytes += self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0

    def _seal_table(self) -> None:
        if self._table is not None:
            self._table.seal()
            self._table, self._text_bytes, self._open_rows = None, 0, 0
        if self._spool is not None:
            self._spool.abandon()
            self._spool = None


def write_rejected(root: Path, rows: Iterable[Mapping[str, Any]], files: Files) -> None:
    """Write rejected.parquet. Each row maps column names to values. Without rows, the file still has its columns."""
    all_rows = list(rows)
    with sealing(ParquetWriter(root, REJECTED_NAME, REJECTED, files)) as table:
        table.write_group([row[name] for row in all_rows] for name in REJECTED)


def write_measures(root: Path, report: CleaningReport, files: Files) -> None:
    """Write what the filters measured, if the report has it. No fingerprint and no `content_sha256` depends on this file."""
    steps = report.step_state()
    if report.measures is not None or steps:
        write_json(root, MEASURES_NAME, {**(report.measures.state() if report.measures is not None else {}), **steps}, files)


def write_json(root: Path, name: str, value: Mapping[str, Any], files: Files) -> None:
    """Write a file of JSON."""
    write_atomically(root / name, json.dumps(value, sort_keys=True).encode())
    add_file(root / name, name, files)


def document_hash(row: DocumentRow) -> bytes:
    """Return the sha256 of one row.

    For each field, the length of the value is hashed first, and then its UTF-8 bytes. Null and the empty string give different hashes.
    A row without kept values has no such field.
    """
    values = (None if value is None else str(value).encode() for value in (row if row.kept is not None else row[:-1]))
    return hashlib.sha256(b"".join(b"null:" if value is None else b"%d:%b" % (len(value), value) for value in values)).digest()
