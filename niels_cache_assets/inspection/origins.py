"""The origin of the tokens in a row of a batch: the documents in the row, with their lineage (source id, file and row) and text.

The runtime traces every token of a batch, and `row_of` makes a `BatchRow` from this trace. Source ids come from the lineage parquet file.
Text comes from the tokenizer of the cache root. Both are opened once per data set. If the lineage or the tokenizer is missing, a note
reports this, and everything else is still shown.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from niels_cache_assets.disk.table_file import lineage_files
from niels_cache_assets.facts.lineage import Lineage, read_lineage
from niels_cache_assets.tokenizer.decoding import as_text, open_tokenizer
from niels_cache_assets.tokenizer.kinds import TextTokenizer, built_model
from niels_cache_runtime.cache.opening import current_tokenizer_sha256
from niels_cache_runtime.format.layout import META_NAME, Ints, Split, Tokens, documents_name, examples_name, tokenizer_dir, tokens_name
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.loader.trace import BatchTrace

UNKNOWN = -1  # as a file, this value means padding; as a document, it means that the document is not known


class Segment(NamedTuple):
    """Columns first..last-1 of a row: consecutive tokens of one document in one file, or padding if `file` is UNKNOWN."""

    first: int
    last: int
    file: int
    offset: int
    document: int
    document_offset: int

    @property
    def is_padding(self) -> bool:
        return self.file == UNKNOWN

    @property
    def is_in_document(self) -> bool:
        return self.document != UNKNOWN


@dataclass(frozen=True, kw_only=True)
class BatchRow:
    """A row of a batch: the number of its sample, its T+1 tokens, and the origin of each token as in `source.TokenOrigins`."""

    number: int
    dataset: str
    epoch: int
    sample: int
    tokens: Tokens
    files: Ints
    offsets: Ints
    documents: Ints
    document_offsets: Ints

    @property
    def segments(self) -> list[Segment]:
        """Segments of the row. A new segment starts at each change of document or file."""
        changes = (np.diff(self.documents) != 0) | (np.diff(self.files) != 0)
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(self.tokens)]
        return [
            Segment(first, last, *(int(values[first]) for values in (self.files, self.offsets, self.documents, self.document_offsets)))
            for first, last in pairwise(edges)
        ]


def row_of(trace: BatchTrace, number: int) -> BatchRow:
    """Return row `number`, 0..B-1, of a batch."""
    return BatchRow(
        number=number,
        dataset=trace.names[trace.dataset_ids[number]],
        epoch=int(trace.epochs[number]),
        sample=int(trace.numbers[number]),
        tokens=trace.tokens[number],
        files=trace.files[number],
        offsets=trace.offsets[number],
        documents=trace.documents[number],
        document_offsets=trace.document_offsets[number],
    )


class TracedCache:
    """The lineage and the tokenizer of one data set. `notes` report a missing lineage or tokenizer.

    Args:
        name: Name of the data set.
        folder: Folder of the split on this machine.
        files: Token files of the split.
        documents: Ordinals of the documents to look up.

    Raises:
        NielsCacheError: If a lineage or tokenizer exists but cannot be read.
    """

    def __init__(self, name: str, folder: str | Path, files: tuple[str, ...], documents: Ints) -> None:
        self.name, self.folder, self._files = name, str(folder), files
        self._split = Path(folder).absolute()
        split = cast(Split, self._split.name)  # a bare folder may have any name
        packs = (self._split.parent / tokens_name(split)).exists()
        self.unit = "example" if packs else "document"
        self.notes: list[str] = []
        self.lineage = self._read_lineage(examples_name(split) if packs else documents_name(split), documents)
        self.tokenizer = self._open_tokenizer()
        self._special = frozenset(self.tokenizer.special_token_ids().values()) if self.tokenizer else frozenset()

    def _read_lineage(self, file: str, documents: Ints) -> dict[int, Lineage]:
        path = self._split.parent / file
        missing = [table.path for table in lineage_files(path) if not table.path.exists()]
        if not missing:
            return read_lineage(path, documents[documents != UNKNOWN].tolist())
        self.notes.append(f"{self.name}: source ids are unknown, because there is no {missing[0]}")
        return {}

    def _open_tokenizer(self) -> TextTokenizer | None:
        meta, root = self._split.parent / META_NAME, self._split.parent.parent.parent
        used = read_meta(meta).get("tokenizer_sha256") if meta.exists() else None
        if used is None:
            self.notes.append(f"{self.name}: showing token ids, because no meta.json names the tokenizer")
        elif used != current_tokenizer_sha256(self._split.parent) or not built_model(tokenizer_dir(root)).exists():
            self.notes.append(f"{self.name}: showing token ids, because their tokenizer is not in {tokenizer_dir(root)}")
        else:
            return open_tokenizer(root)
        return None

    def text(self, row: BatchRow, first: int, last: int) -> str:
        """Return columns first..last-1 of a row as text, or as token ids without a tokenizer."""
        tokens = row.tokens[first:last].tolist()
        if self.tokenizer is None:
            return " ".join(map(str, tokens))
        if first >= last:
            return ""
        begins = row.document_offsets[first] == 0 or (first > 0 and int(row.tokens[first - 1]) in self._special)
        return as_text(tokens, self.tokenizer, continues=not begins)

    def file(self, index: int) -> str:
        """Return the path of a token file, relative to the folder of the data set."""
        return Path(self._files[index]).absolute().relative_to(self._split.parent).as_posix()


def caches_of(trace: BatchTrace, numbers: Sequence[int], *, beside: Callable[[str], Path]) -> dict[str, TracedCache]:
    """Open the data sets that these rows of a batch come from, and return them by name.

    Args:
        trace: Trace of the batch.
        numbers: Numbers of the rows.
        beside: Returns the folder of a split on this machine, given its folder or address. Lineage and tokenizer are beside it.
    """
    shown = trace.dataset_ids[list(numbers)]
    return {
        trace.names[source]: TracedCache(
            trace.names[source], beside(trace.folders[source]), trace.file_names[source], trace.documents[list(numbers)][shown == source]
        )
        for source in np.unique(shown).tolist()
    }
