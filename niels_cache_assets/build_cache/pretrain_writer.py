"""A writer of a pretrain cache: shards, document ends, edges of files and lineage of both splits. The builder writes meta.json."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.disk.journal import SCRATCH_NAME
from niels_cache_assets.disk.lineage_files import LineageWriter, RowSpool
from niels_cache_assets.disk.table_file import TEXT_HASH
from niels_cache_assets.disk.writers import Files, HashedFile, NpyWriter, ShardWriter
from niels_cache_assets.streaming.splits import SplitPart
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, SPLITS, Split, doc_ends_name, documents_name

LINEAGE = {"source_id": "string", "file": "string", "row": "int64", "tokens": "int64"}
KEPT = {"kept": "string"}  # one more column with `keep`: the kept values as a JSON object


def spool_name(split: Split) -> str:
    """Return the path of the rows of lineage that only a resumed build reads."""
    return f"{SCRATCH_NAME}/{split}.arrow"


@dataclass(frozen=True, kw_only=True)
class SplitState:
    """The state of a split at a checkpoint.

    Attributes:
        cut: The ordinal of the document that a token budget has cut. None if there is none.
    """

    tokens: int = 0
    documents: int = 0
    spool_bytes: int = 0
    characters: int = 0
    cut: int | None = None


@dataclass(frozen=True, kw_only=True)
class WriterState:
    """The state of a PretrainWriter at a checkpoint. The list of finished files is recorded separately. The default is that of no files."""

    splits: dict[Split, SplitState] = field(default_factory=lambda: dict.fromkeys(SPLITS, SplitState()))
    copies: list[list[int]] = field(default_factory=list)


class _SplitWriter:
    def __init__(
        self,
        root: Path,
        split: Split,
        *,
        dtype: np.dtype,
        shard_bytes: int,
        files: Files,
        state: SplitState,
        has_kept_values: bool,
        has_edges: bool,
    ) -> None:
        schema = {**LINEAGE, TEXT_HASH: "int64", **(KEPT if has_kept_values else {})}
        self.shards = ShardWriter(root, split, dtype=dtype, shard_bytes=shard_bytes, files=files, resume_at=state.tokens)
        self.doc_ends = NpyWriter(root, doc_ends_name(split), DOC_ENDS_DTYPE, files, resume_at=state.documents)
        self._spool = RowSpool(root, spool_name(split), schema, resume_at=state.spool_bytes)
        self._lineage = LineageWriter(root, documents_name(split), schema, files)
        if state.spool_bytes:
            for rows in self._spool.read():
                self._lineage.write_batch(rows)
        self.characters = state.characters
        self.cut = state.cut
        self._edges: list[Any] = []
        if has_edges:
            self._edges = [load_beside("corpora", "code.edges").EdgeWriter(root, split, files, is_resumed=state.documents > 0)]

    @property
    def bytes(self) -> int:
        return self.shards.bytes + self.doc_ends.bytes + self._spool.bytes

    def write(self, part: SplitPart) -> None:
        if part.cut is not None:
            self.cut = self.doc_ends.items + part.cut
        self.doc_ends.write(np.cumsum(part.lengths) + self.shards.tokens)
        for writer in self._edges:
            writer.write_part(part, before=self.shards.tokens)
        self.shards.write(part.tokens)
        self._lineage.write_batch(self._spool.write(part.lineage))
        self.characters += part.characters

    @property
    def unfinished(self) -> list[HashedFile]:
        return [*self.shards.unfinished, self.doc_ends, self._spool, *self._edges]

    @property
    def state(self) -> SplitState:
        return SplitState(
            tokens=self.shards.tokens,
            documents=self.doc_ends.items,
            spool_bytes=self._spool.bytes,
            characters=self.characters,
            cut=self.cut,
        )

    def seal(self) -> None:
        self.shards.seal()
        self.doc_ends.seal()
        self._lineage.seal()
        for writer in self._edges:
            writer.seal()

    def abandon(self) -> None:
        for part in self.unfinished:
            part.abandon()
        self._lineage.abandon()


class PretrainWriter:
    """A writer of the output of a splitter into a folder. Use it as a context manager, so that files are closed in any case.

    Args:
        root: The folder.
        dtype: The dtype of the tokens.
        shard_bytes: The size of a shard in bytes.
        state: The checkpoint to resume from. The journal has already cut the files back to their sizes at this checkpoint.
        files: The files that were finished at this checkpoint.
        has_kept_values: Whether lineage has the kept values of documents.
        has_edges: Whether documents have edges of files.
        fim: What makes the copies of train, or None.
    """

    def __init__(
        self,
        root: Path,
        *,
        dtype: np.dtype,
        shard_bytes: int,
        state: WriterState,
        files: Files,
        has_kept_values: bool,
        has_edges: bool = False,
        fim: Any = None,
    ) -> None:
        self.files: Files = dict(files)
        self._copies = [fim.writer(root, dtype, shard_bytes, self.files, state)] if fim else []
        self._splits: dict[Split, _SplitWriter] = {
            split: _SplitWriter(
                root,
                split,
                dtype=dtype,
                shard_bytes=shard_bytes,
                files=self.files,
                state=state.splits[split],
                has_kept_values=has_kept_values,
                has_edges=has_edges,
            )
            for split in SPLITS
        }

    def __enter__(self) -> "PretrainWriter":
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.abandon()

    @property
    def _writers(self) -> list[Any]:
        return [*self._splits.values(), *self._copies]

    @property
    def bytes(self) -> int:
        """The bytes written so far."""
        return sum(writer.bytes for writer in self._writers)

    def write(self, parts: dict[Split, SplitPart]) -> None:
        """Append the parts of a batch to their splits."""
        for split, part in parts.items():
            for writer in (self._splits[split], *self._copies):
                writer.write(part)

    @property
    def unfinished(self) -> list[HashedFile]:
        """The unfinished files."""
        return [file for writer in self._writers for file in writer.unfinished]

    @property
    def state(self) -> WriterState:
        """The state to resume from."""
        splits = {split: writer.state for split, writer in self._splits.items()}
        return WriterState(splits=splits, copies=[counts for writer in self._copies for counts in writer.state])

    def seal(self) -> None:
        """Finish every file of the cache, and flush it to the disk. Scratch files stay, because an interrupted build resumes from them."""
        for writer in self._writers:
            writer.seal()

    def tokens(self, split: Split) -> int:
        """Return the number of tokens of a split so far."""
        return self._splits[split].shards.tokens

    def documents(self, split: Split) -> int:
        """Return the number of documents of a split so far."""
        return self._splits[split].doc_ends.items

    def totals(self) -> dict[str, Any]:
        """Return the keys of meta.json that count the output.

        The keys are `train_tokens` and `val_tokens`, and four mappings by split. `documents` and `characters` are numbers. `cut` is the
        number of documents that a token budget has cut (0 or 1), and `cut_document` is the ordinal of that document, or None.
        """
        return {
            **{f"{split}_tokens": self.tokens(split) for split in SPLITS},
            "documents": {split: self.documents(split) for split in SPLITS},
            "characters": {split: writer.characters for split, writer in self._splits.items()},
            "cut": {split: int(writer.cut is not None) for split, writer in self._splits.items()},
            "cut_document": {split: writer.cut for split, writer in self._splits.items()},
            **{key: value for writer in self._copies for key, value in writer.totals.items()},
        }
