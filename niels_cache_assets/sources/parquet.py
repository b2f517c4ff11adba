"""The source `parquet`, for pretrain data sets from the user's Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from threading import Event
from typing import Any, Literal, NamedTuple

import numpy as np

from niels_cache_assets.base.documents import NO_SPLIT, DocumentBatch, SourceReport, object_array
from niels_cache_assets.base.parallel import map_in_order
from niels_cache_assets.base.strings import Objects, Strings, repeat_string
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.reading.columns import Collector, ids_of, texts_of_column
from niels_cache_assets.sources.reading.encodings import DecodingCounts, Values, refuse_length
from niels_cache_assets.sources.reading.file_source import RowFileSource
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.reading.parquet_files import (
    NumberedRows,
    is_text_type,
    join_batches,
    map_ahead,
    may_hold_text,
    open_parquet,
)
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.reading.where import DROPPED
from niels_cache_assets.sources.text_column import (
    MISSING_FIELD_REASON,
    ROWS,
    choose_text_field,
    count_file_without,
    find_text_column,
    require_field,
)
from niels_cache_assets.sources.types import Siblings, StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.reading import available_threads

MAX_ROWS = 2048  # rows of a joined batch: the number of short documents in one task of the encoder


class Parquet(RowFileSource):
    """Parquet files. Only the text and id columns, a string column `title`, and the columns in `where` and `keep` are read."""

    endings = (".parquet",)

    source: Literal["parquet"] = "parquet"

    def documents(self, context: StreamContext) -> Iterator[DocumentBatch]:
        found = self.files_of(context)
        text_field = self.text_field_at(found, context)
        if text_field is None:
            return
        files, check = FilePass(found, context), rows.TextFieldCheck(text_field)

        def left_out(rows: int, first: int) -> None:
            context.report.drop_row(DROPPED, found[files.number].name, first, count=rows)

        collector = Collector(files, left_out=None if self.condition is None else left_out)
        for file in files.files():
            yield from self._file_documents(file, files, check, collector, context)
        yield from collector.flush()
        if check.is_wrong:
            check.report_hint(context, *self._columns(found, text_field))

    def count_unsplit(self, context: StreamContext) -> int:
        unreported, found = replace(context, report=SourceReport(), start=None), self.files_of(context)
        text_field = self.text_field_at(found, unreported)
        reader, stopped = self.model_copy(update={"keep": (), "id_field": text_field}), Event()

        def count(file: SourceFile) -> int:
            of_file = replace(unreported, report=SourceReport(), files=[file], text_field=text_field)
            return sum(map(len, takewhile(lambda _: not stopped.is_set(), reader.documents(of_file))))

        try:
            return sum(map_in_order(count, found, threads=available_threads(), size_of=lambda file: 0))
        finally:
            stopped.set()

    def check_input(self, siblings: Siblings) -> None:
        found = self.readable_files()
        text_field = self.text_field_of(found)
        if text_field is None:
            return
        check = rows.TextFieldCheck(text_field)
        for file in found if "://" not in found[0].url else found[:1]:  # the columns stand in the footer, so this reads little
            with open_parquet(file, self.text_field) as parquet:
                column = parquet.columns.get(text_field)
                if self.condition is not None:
                    self.condition.require_types(parquet.columns, file.name)
                self.require_columns(parquet.columns, file.name)
            if column is not None:
                check.problem("" if is_text_type(column) else column, file.name, 0)
        if check.is_wrong:
            raise NielsCacheError(check.hint(*self._columns(found, text_field)))

    def text_field_of(self, files: Sequence[SourceFile]) -> str | None:
        for file in files:
            with open_parquet(file, self.text_field) as parquet:
                if not parquet.rows:
                    continue
                columns = parquet.columns
            if self.text_field is not None:
                if self.text_field not in columns and self._columns(files, self.text_field)[1] is None:
                    require_field(self.text_field, columns, file.name)
                return self.text_field
            return find_text_column(columns) or choose_text_field(self._first_rows(file), file.name)
        return None

    def _first_rows(self, file: SourceFile) -> list[Values]:
        found = rows.parquet_rows(file, options=self.text_options)
        return [values for _, values in rows.first_rows(found, ROWS)]

    def _columns(self, files: Sequence[SourceFile], text_field: str) -> tuple[dict[str, bool], str | None]:
        """Return whether each column holds strings, in the first file that has the column `text_field`, and the type of this column."""
        for file in files:
            with open_parquet(file, self.text_field) as parquet:
                if text_field in parquet.columns:
                    return {name: may_hold_text(kind) for name, kind in parquet.columns.items()}, str(parquet.columns[text_field])
        return {}, None

    def _file_documents(
        self, file: SourceFile, files: FilePass, check: rows.TextFieldCheck, collector: Collector, context: StreamContext
    ) -> Iterator[DocumentBatch]:
        text_field, id_field, where, position = check.field, self.id_field or "id", self.condition, files.position
        name, limit, drop = file.name, self.max_document_bytes, context.report.drop_row
        decoding = DecodingCounts(self, context)
        with open_parquet(file, self.text_field) as parquet:
            position.rows, fields = parquet.rows, parquet.columns
            if text_field not in fields:
                if parquet.rows:
                    drop(MISSING_FIELD_REASON, name, 0, count=parquet.rows)
                    count_file_without(context.report, name, fields)
                return
            has_id = id_field in fields and id_field != text_field
            title = {"title"} if text_field != "title" and "title" in fields and may_hold_text(fields["title"]) else set[str]()
            if where is not None:
                where.require_types(fields, name)
            self.require_columns(fields, name)
            columns = {text_field, id_field, *(where.columns if where else ()), *self.keep} & fields.keys()
            tables = parquet.batches(
                sorted(columns | title), most_rows=rows.PARQUET_ROWS, start=position.row, group_filter=where.may_match if where else None
            )
            names = repeat_string(name, max(MAX_ROWS, rows.PARQUET_ROWS))
            checked = partial(self._checked, name, names, text_field, id_field if has_id else None, bool(title))
            for _, batch, values, odd, damaged in map_ahead(join_batches(tables, most_rows=MAX_ROWS, of=rows.BATCH_DOCUMENTS), checked):

                def is_document(index: int, batch=batch, values=values, damaged=damaged) -> bool:  # type: ignore[no-untyped-def]
                    text, row = values[index], int(batch.row[index])
                    replaced = decoding.count_marked(name, damaged.get(index))
                    if problem := check.problem(text, name, row):
                        drop(problem, name, row)
                        return False
                    if len(text) > limit:
                        refuse_length(f"{name}: row {row}", limit)
                    return decoding.admits(name, text, replaced=replaced, row=row)

                check.has_text |= len(odd) < len(batch)
                yield from collector.add(batch, odd=odd, is_document=is_document)
            if where is not None:
                collector.advance_to(parquet.rows)

    def _checked(
        self, name: str, names: Strings | Objects, text_field: str, id_field: str | None, has_title: bool, decoded: NumberedRows
    ) -> _Checked:
        """Return the rows of a decoded batch that pass `where`, as documents.

        Args:
            name: The name of the file.
            names: A column of at least as many rows as the batch, with the name of the file in each.
            text_field: The text column.
            id_field: The id column, or None if there is none.
            has_title: Whether there is a column `title` with strings.
            decoded: The rows, with their numbers in the file.
        """
        numbers, table = decoded
        if self.condition is not None:
            stays = self.condition.mask(table, name)
            if not stays.all():
                table, numbers = table.filter(stays), numbers[stays]
        values, texts, damaged = texts_of_column(
            table[text_field], encoding=self.encoding, limit=self.max_document_bytes, judged=self.reads_files
        )
        count, file, kept = len(numbers), names[: len(numbers)], None
        if self.keep:
            values_of_rows = zip(rows.rows_in(table.select(list(self.keep)), self.encoding), numbers.tolist(), strict=True)
            kept = object_array((self.kept_of(each, name, number) for each, number in values_of_rows), count)
        batch = DocumentBatch(
            text=texts.text,
            source_id=ids_of(None if id_field is None else table[id_field], file, numbers, self.encoding),
            file=file,
            row=numbers,
            split=np.full(count, NO_SPLIT, np.int8),
            characters=texts.characters,
            title=object_array(rows.column_values(table["title"], self.encoding), count) if has_title else None,
            kept=kept,
        )
        return _Checked(decoded.nbytes, batch, values, texts.odd, damaged)


class _Checked(NamedTuple):
    """A batch that the decoding thread has made and checked.

    Attributes:
        nbytes: The size in Arrow's memory format.
        batch: The documents.
        values: The values of the text column.
        odd: The indices of the rows that need a check (see `Texts`).
        damaged: Texts with marked damage, by index (see `texts_of_column`).
    """

    nbytes: int
    batch: DocumentBatch
    values: Sequence[Any] | Strings | Objects
    odd: Sequence[int]
    damaged: dict[int, str]
