"""An open prepared data set: its corpus without the documents in its drop list and without its cuts, and the split of each document.

A cache of a data set with `prepare` is built from a PreparedCorpus instead of the source. Mixtures read the data set through a
PreparedMember. artifacts/prepared_corpora.py checks that corpus and drop list (the list of duplicates) fit the configuration. Everything
that is read belongs to the meta.json that was opened. If a file of the corpus or the drop list was replaced since then, an error is raised,
so old and new data are never mixed. One row group of text (2 MB) is in memory, and two bytes per document of the corpus. Parquet is
decompressed at several hundred megabytes a second. Nothing is cleaned or compared here.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import PrivateAttr

from niels_cache_assets.base.documents import NO_SPLIT, Document, DocumentBatch, Documents, object_array
from niels_cache_assets.base.fingerprint import Identity, fingerprint_of
from niels_cache_assets.corpus.identity import require_unchanged, split_identity
from niels_cache_assets.corpus.layout import documents_file, duplicates_file
from niels_cache_assets.disk.table_file import open_table, rows_of
from niels_cache_assets.sources.reading.rows import column_values
from niels_cache_assets.sources.text_column import pass_facts, text_field_fact
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_assets.sources.val_share import val_mask
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Ints
from niels_cache_runtime.format.meta import Meta

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_COLUMNS = ["text", "source_id", "file", "row", "title"]
EMPTIED = "only_repeats"  # the reason for which a document is dropped of which the cuts leave nothing


@dataclass(frozen=True, kw_only=True)
class PreparedCorpus:
    """A corpus and its drop list. Opening reads two small files; `splits` and `is_dropped` are computed when needed.

    Attributes:
        duplicates: The meta.json of the drop lists (lists of duplicates). None without "dedup", and if duplicates are kept.
        cuts: The cuts (CutList of niels_cache_repeats) of each step that cuts repeated text, in the order of the steps.
    """

    name: str
    directory: Path
    meta: Meta
    source: PretrainSource
    seed: int
    duplicates: Meta | None
    duplicates_directory: Path
    cuts: tuple[Any, ...] = ()

    @property
    def drops(self) -> dict[str, Any] | None:
        """The entry of this data set in the meta.json of the drop lists, or None if duplicates are kept."""
        return self.duplicates["datasets"][self.name] if self.duplicates is not None else None

    @property
    def keep(self) -> tuple[str, ...]:
        """The columns whose values are kept with the documents."""
        return tuple(self.meta.get("keep", ()))

    @property
    def kept(self) -> int:
        """The number of kept documents."""
        searched = int(self.meta["documents"]["kept"]) - (self.drops["exact"] + self.drops["near"] if self.drops else 0)
        return searched - self.emptied

    @property
    def dropped(self) -> Counter[str]:
        """The number of dropped documents for each reason.

        The source, the cleaning and the search for duplicates each have their own reasons.
        """
        drops = {f"{kind}_duplicate": self.drops[kind] for kind in ("exact", "near")} if self.drops else {}
        return +Counter({**self.meta["dropped"], **drops, EMPTIED: self.emptied})

    @property
    def emptied(self) -> int:
        """The number of documents of which the cuts leave nothing."""
        return sum(cut.counts["emptied"] for cut in self.cuts)

    @property
    def drop_sha256(self) -> str | None:
        """The sha256 of the ordinals in the drop list, or None without a drop list."""
        return self.drops["drop_sha256"] if self.drops else None

    @cached_property
    def splits(self) -> np.ndarray:
        """The split of every document of the corpus: (documents,) int8, an index into SPLITS, or NO_SPLIT."""
        return document_splits(self.meta, self.directory, self.source, self.seed)

    @cached_property
    def is_dropped(self) -> np.ndarray:
        """Whether each document is in the drop list, or nothing is left of it: (documents,) bool.

        Raises:
            NielsCacheError: If the drop list was replaced since it was opened.
        """
        is_dropped = np.zeros(self.meta["documents"]["kept"], dtype=bool)
        is_dropped[self.drop_list[0]] = True
        for cut in self.cuts:
            is_dropped[cut.emptied] = True
        return is_dropped

    @cached_property
    def drop_list(self) -> tuple[np.ndarray, np.ndarray]:
        """The ordinals in the drop list, ascending (n,) int64, and whether each is an exact duplicate, (n,) bool."""
        if self.duplicates is None:
            return np.empty(0, np.int64), np.empty(0, bool)
        import pyarrow.compute

        path = self.duplicates_directory / duplicates_file(self.name)
        with _explain_replaced(self.duplicates_directory, self.duplicates), open_documents(path) as parquet:
            table = parquet.read(columns=["ordinal", "kind"])
        ordinals = table["ordinal"].to_numpy()
        if ordinals_sha256(ordinals) != self.drop_sha256:
            raise NielsCacheError(f"{path}: was replaced while it was read; run this again")
        return ordinals, pyarrow.compute.equal(table["kind"], "exact").to_numpy()

    def identity(self) -> Identity:
        """Return everything that decides the documents and their splits.

        The result is part of the fingerprint of each cache that is built from these documents.
        """
        return {
            "content_sha256": self.meta["content_sha256"],
            "drop_sha256": self.drop_sha256,
            "splits": split_identity(self.source, self.seed),
            **({"cuts": {cut.step: cut.counts["cuts_sha256"] for cut in self.cuts}} if self.cuts else {}),
        }

    def stream(self, context: StreamContext, ordinals: range | None = None) -> Iterator[DocumentBatch]:
        """Yield the kept documents, in batches of about 2 MB of text, in the order of the corpus.

        Dropped documents, facts and positions are reported in `context.report`, as by every source. A stream can start at a reported
        position. The `row` of a position is the ordinal of a document, which determines the file and the row group. A file that is already
        open is read to its end, even if it is replaced.

        Args:
            context: The context of the stream.
            ordinals: The ordinals of one of `parts`. Only its duplicates count as dropped, because documents that the source or the
                cleaning have dropped belong to no part. None: all documents.

        Raises:
            NielsCacheError: If a file cannot be read, or another corpus has replaced this corpus.
        """
        part = range(self.meta["documents"]["kept"]) if ordinals is None else ordinals
        if context.start is None and ordinals is None:
            context.report.dropped.update(self.dropped)
            context.report.facts.update(pass_facts(self.meta))
        elif context.start is None:
            within = slice(*np.searchsorted(self.drop_list[0], [part.start, part.stop]))
            exact = int(self.drop_list[1][within].sum())
            near = int(within.stop - within.start) - exact
            emptied = sum(int(np.diff(np.searchsorted(cut.emptied, [part.start, part.stop]))[0]) for cut in self.cuts)
            context.report.dropped.update(+Counter({"exact_duplicate": exact, "near_duplicate": near, EMPTIED: emptied}))
            context.report.facts.update(text_field_fact(self.meta))
        for first, table in self.groups(context.start["row"] if context.start else part.start, part.stop, self._columns):
            end = first + len(table)
            stays = ~self.is_dropped[first:end]
            if stays.any():
                context.report.position = {"file": self.name, "row": end}
                batch = self._as_documents(np.arange(first, end), table)
                yield batch if stays.all() else batch[stays]

    def documents(self) -> Iterator[DocumentBatch]:
        """Yield what `stream` yields from the beginning."""
        return self.stream(StreamContext(seed=self.seed))

    @cached_property
    def parts(self) -> list[range]:
        """The ordinals of the documents of each part, if the corpus was joined from parts."""
        ends = [0, *accumulate(part["documents"] for part in self.meta["parts"])]
        return [range(start, end) for start, end in pairwise(ends)]

    def select(self, ordinals: np.ndarray) -> list[Document]:
        """Return the documents with these ascending ordinals, including documents in the drop list."""
        selected: list[Document] = []
        with _explain_replaced(self.directory, self.meta):
            for inside, rows in document_rows(document_files(self.directory, self.meta), ordinals, self._columns):
                require_unchanged(self.directory, self.meta)
                selected += self._as_documents(inside, rows)
        return selected

    @property
    def _columns(self) -> list[str]:
        return [*_COLUMNS, *(["kept"] if self.keep else [])]

    def _as_documents(self, ordinals: np.ndarray, table: pa.Table) -> DocumentBatch:
        count = len(table)
        strings = {name: object_array(column_values(table[name]), count) for name in self._columns if name != "row"}
        for cut in self.cuts:
            cut.apply(ordinals, strings["text"], strings.setdefault("kept", np.full(count, None, dtype=object)))
        characters = np.fromiter(map(len, strings["text"]), np.int64, count)
        return DocumentBatch(**strings, row=table["row"].to_numpy(), split=self.splits[ordinals], characters=characters)

    def groups(self, start: int, stop: int, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield (ordinal of the first row, these columns) for each row group from ordinal `start` to `stop`, in order.

        Dropped documents are among them, and the texts are not cut.
        """
        first, documents = 0, self.meta["documents"]["kept"]
        for path in document_files(self.directory, self.meta):
            if documents > first >= stop:  # a part of a corpus ends with a file
                return
            with _open_part(path, self.meta) as parquet:
                for group in range(parquet.num_row_groups):
                    end = first + parquet.metadata.row_group(group).num_rows
                    if first < start < end:
                        raise NielsCacheError(f"{path}: no row group begins at document {start}; build the data set again with force")
                    if first >= start:
                        yield first, parquet.read_row_group(group, columns=list(columns))
                    first = end
        if first != documents:
            raise NielsCacheError(f"{self.directory}: the corpus holds {first} documents, its meta.json says {documents}; prepare it again")


class PreparedMember(PretrainSource):
    """A source that streams a prepared data set. The data set is opened at the first use, and stays open.

    So the identity and every stream belong to one corpus and one drop list. If the corpus or the drop list is replaced meanwhile, reading
    raises an error.
    """

    source: Literal["prepared"] = "prepared"
    _open: Callable[[], PreparedCorpus] = PrivateAttr()
    _opened: PreparedCorpus | None = PrivateAttr(None)

    @classmethod
    def of(cls, opener: Callable[[], PreparedCorpus], *, against: tuple[str, ...] = ()) -> PreparedMember:
        """Return a source that reads what `opener` returns.

        Args:
            opener: Opens the prepared data set.
            against: The value of `decontaminate_against` of the data set, for mixtures.
        """
        member = cls().model_copy(update={"decontaminate_against": against})
        member._open = opener
        return member

    @property
    def has_own_splits(self) -> bool:
        """Whether documents have their own splits.

        Always True: each document has its split in the corpus, so val_frac is not applied.
        """
        return True

    def revision(self, siblings: Mapping[str, PretrainSource]) -> str | None:
        return f"sha256:{fingerprint_of(self.identity())}"

    def identity(self) -> Identity:
        return {"prepared": self.prepared.identity()}

    def documents(self, context: StreamContext) -> Iterator[Documents]:
        return self.prepared.stream(context)

    @property
    def prepared(self) -> PreparedCorpus:
        """The data set that this source streams."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened


def document_splits(meta: Meta, directory: Path, source: PretrainSource, seed: int) -> np.ndarray:
    """Return the split of every document of a corpus: (documents,) int8, an index into SPLITS, or NO_SPLIT.

    A document has the split that upstream gives it. If the source has a seeded val_frac, `val_mask` divides the documents without such a
    split.
    """
    splits = np.full(meta["documents"]["kept"], NO_SPLIT, dtype=np.int8)
    if set(meta["splits"]) - {"unknown"}:
        first = 0
        for table in _tables(directory, meta, ["split"]):
            own = table["split"].to_pylist()
            splits[first : first + len(own)] = [NO_SPLIT if split is None else SPLITS.index(split) for split in own]
            first += len(own)
    if source.seeded_val_frac is not None:
        free = np.flatnonzero(splits == NO_SPLIT)
        is_val = val_mask(len(free), val_frac=source.seeded_val_frac, seed=seed)
        splits[free] = np.where(is_val, SPLITS.index("val"), SPLITS.index("train"))
    return splits


def document_sizes(directory: Path, meta: Meta) -> dict[str, np.ndarray]:
    """Return the numbers of `characters` and `bytes` of every document, (documents,) int64 each."""
    names = ["characters", "bytes"]
    columns = [[table[name].to_numpy() for name in names] for table in _tables(directory, meta, names)]
    return dict(zip(names, map(np.concatenate, zip(*columns, strict=True)), strict=True))


def _tables(directory: Path, meta: Meta, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield these columns of each documents_*.parquet of a corpus, in order."""
    for path in document_files(directory, meta):
        with _open_part(path, meta) as parquet:
            yield parquet.read(columns=columns)


def ordinals_sha256(ordinals: np.ndarray) -> str:
    """Return the sha256 that identifies a drop list. The hash covers the ordinals as little-endian int64."""
    return hashlib.sha256(ordinals.astype("<i8").tobytes()).hexdigest()


def document_files(directory: Path, meta: Meta) -> list[Path]:
    """Return the documents_*.parquet of a corpus, in order."""
    count = sum(name.startswith("documents_") for name in meta["files"])
    return [directory / documents_file(index) for index in range(count)]


def open_documents(path: Path) -> AbstractContextManager[pq.ParquetFile]:
    """Open a file of a corpus."""
    return open_table(path, "prepare this data set again with force")


def document_rows(paths: Sequence[Path], ordinals: Ints, columns: Sequence[str]) -> Iterator[tuple[Ints, pa.Table]]:
    """Yield (ordinals, rows) for each row group of these files that contains some of `ordinals`. No other row group is read.

    Args:
        paths: The files of documents, in order.
        ordinals: The numbers of the rows of all files in order, strictly ascending.
        columns: The columns to read.

    Raises:
        NielsCacheError: If a row is missing.
    """
    first = 0
    for path in paths:
        with open_documents(path) as parquet:
            yield from rows_of(parquet, ordinals, columns, first=first)
            first += parquet.metadata.num_rows
    if len(missing := ordinals[(ordinals < 0) | (ordinals >= first)]):
        folder = paths[0].parent if paths else "no file"
        raise NielsCacheError(f"{folder}: has {first:,} rows, so there is no row {missing[0]:,}; build it again with --force")


@contextmanager
def _open_part(path: Path, meta: Meta) -> Iterator[pq.ParquetFile]:
    """Yield an open file of the corpus with this meta.json. One check after opening is enough, because an open file does not change."""
    with _explain_replaced(path.parent, meta), open_documents(path) as parquet:
        require_unchanged(path.parent, meta)
        yield parquet


@contextmanager
def _explain_replaced(directory: Path, meta: Meta) -> Iterator[None]:
    """Raise an error that says that the folder was replaced, if this is why a file of the folder cannot be read."""
    try:
        yield
    except NielsCacheError:
        require_unchanged(directory, meta)
        raise
