"""The source `huggingface`, for any text data set of the Hugging Face hub, and the base class of `fineweb_edu`.

The hub's library shuffles the documents. With val_frac, which numbers them in the order of the files, the builder does.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, model_validator

from niels_cache_assets.base import defaults
from niels_cache_assets.base.documents import DocumentBatch
from niels_cache_assets.sources.hub.data import HubData, format_of, hub_files
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading.columns import batch_of, texts_of
from niels_cache_assets.sources.reading.encodings import DecodingCounts
from niels_cache_assets.sources.reading.file_source import list_files_for_plan, locate_listed_files
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.reading.keep import HasColumns
from niels_cache_assets.sources.reading.positions import RowsPass, UpstreamSplit
from niels_cache_assets.sources.reading.rows import BATCH_DOCUMENTS, TextFieldCheck
from niels_cache_assets.sources.text_column import MISSING_FIELD_REASON
from niels_cache_assets.sources.types import AddedHubFiles, ListedFile, SourceWithParts, StreamContext
from niels_cache_runtime.errors import NielsCacheError


class _HubParquet(Parquet):
    reads_files: ClassVar[bool] = False


class _HubJsonl(Jsonl):
    reads_files: ClassVar[bool] = False


_READERS: dict[tuple[str, bool], type[Parquet] | type[Jsonl]] = {  # (loader, `reads_files`) -> reader
    ("parquet", True): Parquet,
    ("parquet", False): _HubParquet,
    ("json", True): Jsonl,
    ("json", False): _HubJsonl,
}


class HubText(HasColumns, HubData, SourceWithParts):
    """One document per row of a hub data set."""

    shuffles_itself = True

    shuffle_buffer: NonNegativeInt = defaults.SHUFFLE_BUFFER
    """Size of the shuffle buffer in documents; 0 disables shuffling"""
    added: tuple[AddedHubFiles, ...] = Field((), strict=False)

    @model_validator(mode="after")
    def _check_added(self) -> Self:
        if self.added and self.local_key:
            raise ValueError(f'added is for files of the hub here; read your {self.local_key} with source = "parquet" or "jsonl"')
        if self.added and self.parts == 1 and self.pinned_revision is None:
            raise ValueError(
                "added to a data set of the hub without parts needs pinned_revision, the commit of the built data set "
                "(dataset_revision in its meta.json)"
            )
        return self

    def revision_of_files(self, number: int, revision: str | None) -> str | None:
        return (self.added[number - 1].revision if number else None) or revision

    def _list_added(self, group: int, revision: str | None) -> list[ListedFile]:
        revision = self.revision_of_files(group, revision)
        files = hub_files(self, revision)
        found = [file for file in files if self._group_of(file.name) == group]
        if not found:
            patterns = self.added[group - 1].files
            where = f"{self.dataset}: added: {', '.join(patterns)}"
            if taken := next((file.name for file in files if _matches(file.name, patterns)), None):
                raise NielsCacheError(f"{where}: an earlier table names these files already ({taken}); name each file in one table")
            nearest_match = difflib.get_close_matches(patterns[0], _patterns_of(files), n=1, cutoff=0.3)
            hint = f"; the nearest files are {nearest_match[0]!r}" if nearest_match else ""
            raise NielsCacheError(f"{where} matches no file of this configuration at {revision}{hint}")
        return found

    def _group_of(self, name: str) -> int:
        """Return the number of the first table `added` that names a file, from 1, or 0 if there is none."""
        return next((number for number, each in enumerate(self.added, 1) if _matches(name, each.files)), 0)

    def list_files(self, revision: str | None, *, group: int = 0, hashed: bool = True) -> list[ListedFile]:
        if group:
            return self._list_added(group, revision)
        if not self.files:
            every = hub_files(self, revision)
            files = [file for file in every if not self._group_of(file.name)]
            if every and not files:
                raise NielsCacheError(
                    f"{self.dataset}: added: the patterns name all files of this configuration at {revision}, and leave none for the parts "
                    "before; name only files that are new"
                )
            if self.parts == 1 and len(files) < len(every):  # one process reads all files of the configuration
                name = next(file.name for file in every if self._group_of(file.name))
                raise NielsCacheError(
                    f"{self.dataset}: added: {name} is there at {revision} already, which one process reads as a whole; name only files "
                    "that came later, or set pinned_revision to the commit before them"
                )
            return files
        return [file for part, files in self.files_by_part() for file in list_files_for_plan(files, part.split, hashed=hashed)]

    def located(self, files: Sequence[ListedFile], revision: str | None) -> list[SourceFile]:
        if not self.files:
            return [SourceFile(f"hf://datasets/{self.dataset}@{revision}/{file.name}", file.name) for file in files]
        found = {part.split: files for part, files in self.files_by_part()}
        return [each for file in files for each in locate_listed_files(found[file.split], [file])]

    def file_reader(self, names: Sequence[str]) -> Parquet | Jsonl:
        """Return the reader of the user's files, because the stream of the hub's library cannot begin at a file."""
        kind = format_of(list(names)), self.reads_files
        if kind not in _READERS:
            raise NielsCacheError(f"{names[0]}: parts are read from Parquet and JSON Lines files only; remove parts")
        keys = ("text_field", "id_field", "where", "keep", "encoding", "max_replaced_share", "max_document_mib")
        reader = _READERS[kind]
        return reader(source=reader.model_fields["source"].default, files=["*"], **{key: getattr(self, key) for key in keys})

    def documents(self, context: StreamContext) -> Iterator[DocumentBatch]:
        rows_pass, check = RowsPass(context), TextFieldCheck()
        drop, decoding = context.report.drop_row, DecodingCounts(self, context)
        fields: dict[str, bool] = {}  # the fields of the current part
        where, id_field = self.condition, self.id_field or "id"
        without: set[str] = set()

        for part, begin in rows_pass.parts(self.upstream_splits()):

            def choose(found: dict[str, bool], part: UpstreamSplit = part) -> list[str]:
                fields.clear()
                fields.update(found)
                return self._columns(found, part, context)

            stream = self.stream(part, context, choose, shuffle_buffer=self.stream_shuffle, start=begin, without=without)
            for columns, files, rows, damaged in stream:
                check.field = next(iter(columns))
                values = columns[check.field]
                texts = texts_of(values, limit=self.max_document_bytes, judged=self.reads_files, damaged=damaged)
                if len(texts.odd) < len(values):
                    check.record_text()
                kept = np.ones(len(values), dtype=bool)
                if where is not None:
                    for index, row in enumerate(zip(*(columns[name] for name in where.columns), strict=True)):
                        if problem := where.problem(dict(zip(where.columns, row, strict=True))):
                            drop(problem, files[index], rows[index])
                            kept[index] = False
                for index in texts.odd:
                    if not kept[index]:
                        continue
                    replaced = decoding.count(files[index], damaged[index]) if index in damaged else 0
                    if problem := check.problem(values[index], files[index], rows[index]):
                        drop(
                            MISSING_FIELD_REASON if values[index] is None and files[index] in without else problem,
                            files[index],
                            rows[index],
                        )
                        kept[index] = False
                    else:
                        kept[index] = decoding.admits(files[index], values[index], replaced=replaced, row=rows[index])
                found = batch_of(
                    texts,
                    files=files,
                    numbers=rows,
                    ids=columns.get(id_field) if id_field != check.field else None,
                    split=part.split,
                    kept=self._kept(columns, files, rows, kept.tolist()) if self.keep else None,
                )
                batch = found if kept.all() else found[kept]
                for start in range(0, len(batch), BATCH_DOCUMENTS):
                    context.report.position = None
                    if not self.stream_shuffle and start + BATCH_DOCUMENTS >= len(batch):  # all of these rows are counted
                        rows_pass.file, rows_pass.row = files[-1], rows[-1] + 1
                        rows_pass.report_position()
                    yield batch[start : start + BATCH_DOCUMENTS]
        check.report_hint(context, fields, key="text_field")

    def _columns(self, fields: dict[str, bool], part: UpstreamSplit, context: StreamContext) -> list[str]:
        """Return the text field, the id field if the rows have one, and the columns of `where` and `keep`."""
        self.require_columns(fields, self.origin)
        text_field = self.text_field_at(fields, part, context)
        id_field = self.id_field or "id"
        condition_columns = self.condition.columns if self.condition else ()
        return list(dict.fromkeys([text_field, *([id_field] if id_field in fields else []), *condition_columns, *self.keep]))

    def _kept(
        self, columns: Mapping[str, Sequence[Any]], files: Sequence[str], rows: Sequence[int], is_kept: Sequence[bool]
    ) -> list[str | None]:
        """Return the values of the `keep` columns of each row as JSON, or None for a row that is dropped."""
        values = zip(*(columns[name] for name in self.keep), strict=True)
        return [
            self.kept_of(dict(zip(self.keep, row, strict=True)), file, number) if keep else None
            for row, file, number, keep in zip(values, files, rows, is_kept, strict=True)
        ]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    path = PurePosixPath(name)
    return any(path.match(pattern) for pattern in patterns)


def _patterns_of(files: Iterable[ListedFile]) -> list[str]:
    """Return two patterns for each folder of these files: one with all parent folders, and one with the folder's own name only."""
    folders = dict.fromkeys(PurePosixPath(file.name).parent for file in files)
    return [f"{pattern}/*" for folder in folders for pattern in dict.fromkeys((folder.name, str(folder))) if pattern]


class Huggingface(HubText):
    """Any text data set on the hub."""

    source: Literal["huggingface"] = "huggingface"
