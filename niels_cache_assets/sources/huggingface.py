"""The source `huggingface`, for any text data set of the Hugging Face hub, and the base class of `fineweb_edu`.

Its files are read like the user's own files, by the readers of `parquet` and `jsonl`.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import PurePosixPath
from typing import Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from niels_cache_assets.base import defaults
from niels_cache_assets.base.documents import DocumentBatch
from niels_cache_assets.sources.hub.data import HubData, format_of, hub_files
from niels_cache_assets.sources.hub.errors import hub_errors
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.reading.encodings import Values
from niels_cache_assets.sources.reading.file_source import list_files_for_plan, locate_listed_files
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.reading.keep import HasColumns
from niels_cache_assets.sources.reading.part_stream import PartStream
from niels_cache_assets.sources.reading.where import WRONG_TYPE, RowCondition
from niels_cache_assets.sources.text_column import text_field_of_pass
from niels_cache_assets.sources.types import AddedHubFiles, ListedFile, SourceWithParts, StreamContext
from niels_cache_runtime.errors import NielsCacheError


class _Lines(Jsonl):
    rows_of = staticmethod(partial(rows.line_rows, keep_ends=False))


class HubCsv(Jsonl):
    """CSV files with a header and the delimiter that their names promise."""

    rows_of = staticmethod(rows.csv_rows)

    def where_problem(self, where: RowCondition, values: Values) -> str | None:
        """Compare values that look like numbers as numbers, if they cannot be compared as strings."""
        problem = where.problem(values)
        return where.problem({name: _number(value) for name, value in values.items()}) if problem == WRONG_TYPE else problem


_READERS: dict[str, type[Parquet] | type[Jsonl]] = {"parquet": Parquet, "json": Jsonl, "text": _Lines, "csv": HubCsv}


class HubText(HasColumns, HubData, SourceWithParts):
    """One document per row of a hub data set."""

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

    def list_files(self, revision: str | None, *, group: int = 0, hashed: bool = True) -> list[ListedFile]:
        if self.files:
            return [file for part, files in self.files_at(revision) for file in list_files_for_plan(files, part.split, hashed=hashed)]
        revision = self.revision_of_files(group, revision)
        groups: list[list[ListedFile]] = [[] for _ in range(len(self.added) + 1)]
        every = hub_files(self, revision)
        for file in every:  # the first table that names a file takes it
            groups[next((number for number, each in enumerate(self.added, 1) if _matches(file.name, each.files)), 0)].append(file)
        where, added = f"{self.dataset}: added:", [file.name for files in groups[1:] for file in files]
        if group and not groups[group]:
            patterns = self.added[group - 1].files
            where = f"{where} {', '.join(patterns)}"
            if taken := next((name for name in added if _matches(name, patterns)), None):
                raise NielsCacheError(f"{where}: an earlier table names these files already ({taken}); name each file in one table")
            nearest_match = difflib.get_close_matches(patterns[0], _patterns_of(every), n=1, cutoff=0.3)
            hint = f"; the nearest files are {nearest_match[0]!r}" if nearest_match else ""
            raise NielsCacheError(f"{where} matches no file of this configuration at {revision}{hint}")
        if every and not group and not groups[0]:
            raise NielsCacheError(
                f"{where} the patterns name all files of this configuration at {revision}, and leave none for the parts before; name only "
                "files that are new"
            )
        if added and not group and self.parts == 1:  # one process reads all files of the configuration
            raise NielsCacheError(
                f"{where} {added[0]} is there at {revision} already, which one process reads as a whole; name only files that came later, "
                "or set pinned_revision to the commit before them"
            )
        return groups[group]

    def located(self, files: Sequence[ListedFile], revision: str | None) -> list[SourceFile]:
        if not self.files:
            return [SourceFile(f"hf://datasets/{self.dataset}@{revision}/{file.name}", file.name) for file in files]
        found = {part.split: files for part, files in self.files_at(revision)}
        by_split = groupby(files, key=lambda file: file.split)
        return [file for split, of_split in by_split for file in locate_listed_files(found[split], [*of_split])]

    def file_reader(self, names: Sequence[str]) -> Parquet | Jsonl:
        """Return the reader of these files, which have one format."""
        keys = ("text_field", "id_field", "where", "keep", "encoding", "max_replaced_share", "max_document_mib")
        kind = _READERS[format_of(names, self.local_key or self.dataset)]
        reader = kind(source=kind.model_fields["source"].default, files=["*"], **{key: getattr(self, key) for key in keys})
        reader._reads_files = self.reads_files
        return reader

    def documents(self, context: StreamContext) -> Iterator[DocumentBatch]:
        with hub_errors(self.origin, context.revision):
            parts = self.files_at(context.revision)
            for _, files in parts:
                first, fields = self.fields_of(files)
                self.require_columns(fields, first.name)
            found = [(ListedFile(file.name, 0, "", part.split), file) for part, files in parts for file in files]
            reader = self.file_reader([file.name for _, file in found])
            text_field = text_field_of_pass(self, context, lambda: reader.text_field_of(parts[-1][1]), given=self.text_field)
            yield from PartStream(reader=reader, files=found, text_field=text_field).documents(context)


def _number(value: str | None) -> float | str | None:
    """Return a value of a CSV file as a number. Other text is returned unchanged; nothing is null."""
    try:
        return float(value) if value else None
    except ValueError:
        return value


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
