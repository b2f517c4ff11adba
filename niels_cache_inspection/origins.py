"""The origin of the tokens in a row of a batch: the documents in the row, with their lineage (source id, file and row) and text.

The runtime traces every token of a batch, and a `BatchRow` is a row of this trace. Source ids come from the lineage parquet file.
Text comes from the tokenizer of the cache root. Both are opened once per data set. If the lineage or the tokenizer is missing, a note
reports this, and everything else is still shown.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.disk.table_file import lineage_files
from niels_cache_assets.facts.lineage import Lineage, read_lineage
from niels_cache_assets.tokenizer.decoding import as_text, open_tokenizer
from niels_cache_assets.tokenizer.kinds import TextTokenizer, built_model
from niels_cache_runtime.cache.mmap import slice_pieces
from niels_cache_runtime.cache.opening import current_tokenizer_sha256, open_split, require_doc_ends
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, Ints, Split, Tokens, documents_name, examples_name, tokenizer_dir, tokens_name
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.loader.trace import BatchTrace, TokenOrigin


class Segment(NamedTuple):
    """Columns first..last-1 of a row: consecutive tokens of one document in one file, or padding. `origin` is that of the first token.

    Tokens that FIM has added are segments too.
    """

    first: int
    last: int
    origin: TokenOrigin

    @property
    def is_padding(self) -> bool:
        return self.origin.file is None and not self.origin.is_sentinel


class BatchRow(NamedTuple):
    """A row of a batch: the trace of the batch, and the number of the row, 0..B-1."""

    trace: BatchTrace
    number: int

    @property
    def tokens(self) -> Tokens:
        return self.trace.tokens[self.number]

    def origin(self, column: int = 0) -> TokenOrigin:
        """Return the origin of one token. All tokens of a row have the same data set, epoch and sample."""
        return self.trace.token(self.number, column)

    @property
    def segments(self) -> list[Segment]:
        """Segments of the row. A new segment starts at each change of document or file, and where FIM goes on elsewhere in a document."""
        documents, files, offsets = (each[self.number] for each in (self.trace.documents, self.trace.files, self.trace.offsets))
        moves = (files[1:] >= 0) & (np.diff(offsets) != 1)
        changes = (np.diff(documents) != 0) | (np.diff(files) != 0) | moves
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(self.tokens)]
        return [Segment(first, last, self.origin(first)) for first, last in pairwise(edges)]


class TracedCache:
    """The lineage and the tokenizer of one data set. `notes` report a missing lineage or tokenizer.

    Args:
        name: Name of the data set.
        folder: Folder of the split on this machine.
        documents: Ordinals of the documents to look up.

    Raises:
        NielsCacheError: If a lineage or tokenizer exists but cannot be read.
    """

    def __init__(self, name: str, folder: str | Path, documents: Ints) -> None:
        self.name, self.folder = name, str(folder)
        self._split = Path(folder).absolute()
        split = cast(Split, self._split.name)  # a bare folder may have any name
        packs = (self._split.parent / tokens_name(split)).exists()
        self.unit = "example" if packs else "document"
        self.notes: list[str] = []
        self.lineage = self._read_lineage(examples_name(split) if packs else documents_name(split), documents)
        path = self._split.parent / META_NAME
        meta = read_meta(path) if path.exists() else {}
        source = meta.get("source")  # an imported cache has none
        self._file_start = source.get("file_start") if isinstance(source, dict) else None
        self._sentinels: list[int] = meta.get("fim", {}).get("sentinels", [])
        self.tokenizer = self._open_tokenizer(meta.get("tokenizer_sha256"))
        self._special = frozenset(self.tokenizer.special_token_ids().values()) if self.tokenizer else frozenset()

    def _read_lineage(self, file: str, documents: Ints) -> dict[int, Lineage]:
        path = self._split.parent / file
        missing = [table.path for table in lineage_files(path) if not table.path.exists()]
        if not missing:
            return read_lineage(path, documents[documents >= 0].tolist())
        self.notes.append(f"{self.name}: source ids are unknown, because there is no {missing[0]}")
        return {}

    def _open_tokenizer(self, used: str | None) -> TextTokenizer | None:
        root = self._split.parent.parent.parent
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
        begins = row.origin(first).document_offset == 0 or (first > 0 and int(row.tokens[first - 1]) in self._special)
        return as_text(tokens, self.tokenizer, continues=not begins)

    def path(self, origin: TokenOrigin) -> str | None:
        """Return the file of a repository that a token is from, if its document has several files (`code`), and None if this is unknown."""
        lineage, start = self.lineage.get(origin.document or 0), self._file_start
        if start is None or lineage is None or self.tokenizer is None or origin.document_offset is None:
            return None
        with suppress(NielsCacheError):  # the tokens may be elsewhere
            split = open_split(self._split.with_name(Path(str(origin.file)).parent.name), doc_ends=True)  # that of the copy of train
            ends, document = require_doc_ends(self.folder, split.doc_ends), int(origin.document or 0)
            first, end = int(ends[document - 1]) if document else 0, int(ends[document])
            tokens, place = np.concatenate([*slice_pieces(split.tokens.shards, first, end)]).tolist(), origin.document_offset
            if self._sentinels and tokens.count(self._sentinels[0]):
                tokens, place = _with_middle_in_place(tokens, place, self._sentinels)
            decode = self.tokenizer.decode
            whole = decode(tokens)
            return load_beside("corpora", "code.joining").path_at(whole, len(decode(tokens[: place + 1])), lineage.kept, start)
        return None

    def file(self, origin: TokenOrigin) -> str:
        """Return the path of the file with a token, relative to the folder of the data set."""
        return Path(str(origin.file)).absolute().relative_to(self._split.parent).as_posix()


def _with_middle_in_place(tokens: list[int], place: int, sentinels: Sequence[int]) -> tuple[list[int], int]:
    """Return the tokens of a document that a build has rearranged, in their order before that, and the place of one of them.

    A sentinel has the place of the token after it.
    """
    pre, suf, mid = map(tokens.index, sentinels)
    end = len(tokens) - 1  # EOT
    numbers = [*range(pre), *range(pre + 1, suf), *range(mid + 1, end), *range(suf + 1, mid), end]
    while place not in numbers:
        place += 1
    return [tokens[number] for number in numbers], numbers.index(place)


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
            trace.names[source], beside(trace.folders[source]), trace.documents[list(numbers)][shown == source]
        )
        for source in np.unique(shown).tolist()
    }
