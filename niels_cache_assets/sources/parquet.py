"""The source `parquet`, for pretrain data sets from the user's Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from niels_cache_assets.documents import DocumentBatch, Objects
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.reading.columns import Collector, Texts, batch_of, ids_of_column, texts_of_column
from niels_cache_assets.sources.reading.encodings import Decoding
from niels_cache_assets.sources.reading.file_source import RowFileSource
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.reading.limits import refuse_length
from niels_cache_assets.sources.reading.parquet_files import decoded_ahead, is_string_type, is_text_type, open_parquet
from niels_cache_assets.sources.reading.places import FilePass, FilePosition
from niels_cache_assets.sources.types import PretrainSource, StreamContext

if TYPE_CHECKING:
    import pyarrow as pa


class Parquet(RowFileSource):
    """Parquet files. Only the text and id columns, and a string column `title`, are read."""

    code_version: ClassVar[str] = "2"
    endings: ClassVar[tuple[str, ...]] = (".parquet",)

    source: Literal["parquet"] = "parquet"

    def documents(self, context: StreamContext) -> Iterator[DocumentBatch]:
        found = self.files_of(context)
        files = FilePass(found, context)
        fields, text_field, kind = self._columns(found[0]) if context.text_field is None else ({}, context.text_field, None)
        held = rows.HeldText(text_field)
        collector = Collector(files)
        for file in files.files():
            yield from self._file_documents(file, files.position, text_field, held, collector, context)
        yield from collector.rest()
        held.tell(context, fields, key="text_field", kind=kind)

    def check_input(self, siblings: Mapping[str, PretrainSource]) -> None:
        found = self.readable_files()
        fields, text_field, kind = self._columns(found[0])
        held = rows.HeldText(text_field)
        for file in found if "://" not in found[0].url else found[:1]:  # the columns are at the end of a file: this reads little
            with open_parquet(file) as parquet:
                column = parquet.columns.get(text_field)
            if column is not None:
                held.problem("" if is_text_type(column) else column, file.name, 0)
        rows.require_text(held, fields, kind=kind)

    def text_field_of(self, files: Sequence[SourceFile]) -> str | None:
        return self._columns(files[0])[1]

    def _columns(self, file: SourceFile) -> tuple[dict[str, bool], str, str]:
        """Return whether each column of a file holds strings, the column to read, and its type."""
        with open_parquet(file) as parquet:
            kinds = parquet.columns
        fields = {name: is_string_type(kind) for name, kind in kinds.items()}
        text_field = rows.choose_text_field(self.text_field, fields, file.name)
        return fields, text_field, str(kinds[text_field])

    def _file_documents(
        self,
        file: SourceFile,
        position: FilePosition,
        text_field: str,
        held: rows.HeldText,
        collector: Collector,
        context: StreamContext,
    ) -> Iterator[DocumentBatch]:
        id_field = self.id_field or "id"
        name, limit, decoding, dropped = (
            file.name,
            self.max_document_bytes,
            Decoding(self, context, of_files=self.reads_files),
            context.report.dropped,
        )
        with open_parquet(file) as parquet:
            position.rows, fields = parquet.rows, parquet.columns
            if text_field not in fields:
                dropped["missing_text_field"] += parquet.rows
                return
            has_id = id_field in fields and id_field != text_field
            has_title = text_field != "title" and "title" in fields and is_string_type(fields["title"])
            columns = sorted({text_field, *([id_field] if has_id else []), *(["title"] if has_title else [])})
            decoded = (
                (first, self._columns_of(table, text_field, id_field if has_id else None, has_title=has_title))
                for first, table in parquet.batches(columns, most_rows=rows.PARQUET_ROWS, start=position.row)
            )
            for first, read in decoded_ahead(decoded):
                values, texts, damaged = read.values, read.texts, read.damaged

                def is_document(index: int, values=values, damaged=damaged, first=first) -> bool:  # type: ignore[no-untyped-def]
                    text, row = values[index], first + index
                    replaced = decoding.count_marked(name, damaged.get(index))
                    if problem := held.problem(text, name, row):
                        dropped[problem] += 1
                        return False
                    if len(text) > limit:
                        refuse_length(f"{name}: row {row}", limit)
                    return decoding.admits(name, text, replaced=replaced)

                count = len(values)
                if len(texts.odd) < count:
                    held.saw_text()
                batch = batch_of(
                    texts,
                    files=name,
                    numbers=np.arange(first, first + count),
                    ids=read.ids,
                    titles=read.titles,
                )
                yield from collector.add(batch, first=first, odd=texts.odd, is_document=is_document)

    def _columns_of(self, table: pa.RecordBatch, text_field: str, id_field: str | None, *, has_title: bool) -> _Columns:
        values, texts, damaged = texts_of_column(
            table[text_field], encoding=self.encoding, limit=self.max_document_bytes, judged=self.reads_files
        )
        return _Columns(
            nbytes=table.nbytes,
            values=values,
            texts=texts,
            damaged=damaged,
            ids=None if id_field is None else ids_of_column(table[id_field], self.encoding),
            titles=rows.column_values(table["title"], self.encoding) if has_title else None,
        )


class _Columns(NamedTuple):
    """The columns of a batch as Python values. They are made by the thread that decodes the batch.

    nbytes: the size of the batch in Arrow's form. values, texts, damaged: see texts_of_column. ids, titles: None without such a column.
    """

    nbytes: int
    values: Sequence[Any] | Objects
    texts: Texts
    damaged: dict[int, str]
    ids: Sequence[Any] | Objects | None
    titles: Sequence[str | None] | None
