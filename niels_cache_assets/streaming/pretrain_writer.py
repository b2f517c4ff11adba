"""The files of a pretrain cache, both splits at once: shards, document ends, lineage. meta.json is the builder's."""

from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_assets.streaming.splits import SplitPart
from niels_cache_assets.streaming.writers import Files, LineageWriter, NpyWriter, ShardWriter
from niels_cache_runtime.formats import DOC_ENDS_DTYPE, SPLITS, Split, doc_ends_name, documents_name

LINEAGE = {"source_id": "string", "file": "string", "row": "int64", "tokens": "int64"}


class _SplitWriter:
    def __init__(self, root: Path, split: Split, *, shard_bytes: int, files: Files) -> None:
        self.shards = ShardWriter(root, split, shard_bytes=shard_bytes, files=files)
        self.doc_ends = NpyWriter(root, doc_ends_name(split), DOC_ENDS_DTYPE, files)
        self.lineage = LineageWriter(root, documents_name(split), LINEAGE, files)
        self.characters = 0
        self.cut: int | None = None  # ordinal

    def write(self, part: SplitPart) -> None:
        if part.cut is not None:
            self.cut = self.doc_ends.items + part.cut
        self.doc_ends.write(np.cumsum(part.lengths) + self.shards.tokens)
        self.shards.write(part.tokens)
        self.lineage.write(
            {
                "source_id": [document.source_id for document in part.documents],
                "file": [document.file for document in part.documents],
                "row": [document.row for document in part.documents],
                "tokens": part.lengths.tolist(),
            }
        )
        self.characters += part.characters


class PretrainWriter:
    """Writes what a splitter hands out into `root`; use as a context manager so that files are closed on any way out."""

    def __init__(self, root: Path, *, shard_bytes: int) -> None:
        self.files: Files = {}
        self._splits: dict[Split, _SplitWriter] = {
            split: _SplitWriter(root, split, shard_bytes=shard_bytes, files=self.files) for split in SPLITS
        }

    def __enter__(self) -> "PretrainWriter":
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._splits.values():
            for part in (writer.shards, writer.doc_ends, writer.lineage):
                part.abandon()

    def write(self, parts: dict[Split, SplitPart]) -> None:
        for split, part in parts.items():
            self._splits[split].write(part)

    def seal(self) -> None:
        """Finish every file and put it on the disk."""
        for writer in self._splits.values():
            for part in (writer.shards, writer.doc_ends, writer.lineage):
                part.seal()

    def tokens(self, split: Split) -> int:
        return self._splits[split].shards.tokens

    def documents(self, split: Split) -> int:
        return self._splits[split].doc_ends.items

    def totals(self) -> dict[str, Any]:
        """Of meta.json: tokens, and by split documents, characters, cut documents, and the ordinal of the one that was cut (or None)."""
        return {
            **{f"{split}_tokens": self.tokens(split) for split in SPLITS},
            "documents": {split: self.documents(split) for split in SPLITS},
            "characters": {split: writer.characters for split, writer in self._splits.items()},
            "cut": {split: int(writer.cut is not None) for split, writer in self._splits.items()},
            "cut_document": {split: writer.cut for split, writer in self._splits.items()},
        }
