"""The documents of one part: its files in order, the head that val has taken left out, and the split of each document.

With val_frac, a hash decides which documents are val (sources/val_share.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from niels_cache_assets.documents import DocumentBatch
from niels_cache_assets.sources.reading.files import SourceFile, file_digest, file_size
from niels_cache_assets.sources.types import FileReader, ListedFile, StreamContext
from niels_cache_assets.sources.val_share import HashRule
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Split


@dataclass(frozen=True, kw_only=True)
class PartStream:
    """The stream of one part.

    files: the files as the plan lists them, with their addresses. rule: divides documents without a split; None if budgets or upstream
    decide. skip: the number of documents at the head of the stream that val has taken.
    """

    reader: FileReader
    files: Sequence[tuple[ListedFile, SourceFile]]
    text_field: str | None
    rule: HashRule | None = None
    skip: int = 0

    def documents(self, context: StreamContext) -> Iterator[DocumentBatch]:
        """Yield the documents in batches, from the place where `context` begins. Raises NielsCacheError for files that cannot be read."""
        groups = [(split, [file for _, file in of_split]) for split, of_split in groupby(self.files, key=lambda each: each[0].split)]
        report, start = context.report, context.start or {"group": 0, "place": None}
        skip = self.skip if context.start is None else 0
        for number in range(start["group"], len(groups)):
            split, files = groups[number]
            place = start["place"] if number == start["group"] else None
            inner = replace(context, files=files, text_field=self.text_field, start=place)
            for each in self.reader.documents(inner):
                batch, place = DocumentBatch.of(each), report.place
                report.place = None  # the reader need not report a place for the next batch
                left_out = min(skip, len(batch))
                skip -= left_out
                if left_out == len(batch):
                    continue
                report.place = None if place is None else {"group": number, "place": place}
                yield self._with_split(batch[left_out:] if left_out else batch, split)
                report.place = None

    def _with_split(self, batch: DocumentBatch, split: Split | None) -> DocumentBatch:
        if split is None and self.rule is None:
            return batch
        if split is not None:
            return replace(batch, split=np.full(len(batch), SPLITS.index(split), np.int8))
        assert self.rule is not None
        return self.rule.split(batch)


def require_unchanged(files: Sequence[tuple[ListedFile, SourceFile]]) -> None:
    """Raise NielsCacheError if a file is not the one that the plan lists. Hashes local files; files of the hub cannot change."""
    for listed, file in files:
        if file.url.startswith("hf://"):
            continue
        if (file_size(file), file_digest(file)) != (listed.bytes, listed.digest):
            raise NielsCacheError(f"{file.name}: has changed since the plan of this data set was made; make the plan again")
