"""`parquet`: pretrain data sets from the user's Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from niels_cache_assets.documents import Document
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.reading.encodings import Decoding
from niels_cache_assets.sources.reading.file_source import RowFileSource
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.reading.limits import refuse_length
from niels_cache_assets.sources.reading.parquet_files import is_string_type, is_text_type, open_parquet
from niels_cache_assets.sources.reading.places import FilePass, FilePosition
from niels_cache_assets.sources.types import PretrainSource, StreamContext


class Parquet(RowFileSource):
    """Parquet files. Only the text and id columns, and a string column `title`, are read."""

    code_version: ClassVar[str] = "2"
    endings: ClassVar[tuple[str, ...]] = (".parquet",)

    source: Literal["parquet"] = "parquet"

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        found = self.input_files()
        files = FilePass(found, context)
        yield from rows.batched(self._documents(files, found[0], context), files)

    def check_input(self, siblings: Mapping[str, PretrainSource]) -> None:
        found = self.readable_files()
        fields, text_field, kind = self._columns(found[0])
        held = rows.HeldText(text_field)
        for file in found if "://" not in found[0].url else found[:1]:  # the columns are listed at the end of a file: a small read
            with open_parquet(file) as parquet:
                column = parquet.columns.get(text_field)
            if column is not None:
                held.problem("" if is_text_type(column) else column, file.name, 0)
        rows.require_text(held, fields, kind=kind)

    def _columns(self, file: SourceFile) -> tuple[dict[str, bool], str, str]:
        """Return whether each column of a file holds strings, the column to read, and its type."""
        with open_parquet(file) as parquet:
            kinds = parquet.columns
        fields = {name: is_string_type(kind) for name, kind in kinds.items()}
        text_field = rows.choose_text_field(self.text_field, fields, file.name)
        return fields, text_field, str(kinds[text_field])

    def _documents(self, files: FilePass, first: SourceFile, context: StreamContext) -> Iterator[Document]:
        fields, text_field, kind = self._columns(first)
        held = rows.HeldText(text_field)
        for file in files.files():
            yield from self._file_documents(file, files.position, text_field, held, context)
        held.tell(context, fields, key="text_field", kind=kind)

    def _file_documents(
        self, file: SourceFile, position: FilePosition, text_field: str, held: rows.HeldText, context: StreamContext
    ) -> Iterator[Document]:
        id_field = self.id_field or "id"
        name, limit, decoding = file.name, self.max_document_bytes, Decoding(self, context)
        with open_parquet(file) as parquet:
            position.rows, fields = parquet.rows, parquet.columns
            if text_field not in fields:
                context.report.dropped["missing_text_field"] += parquet.rows
                return
            has_id = id_field in fields and id_field != text_field
            has_title = text_field != "title" and "title" in fields and is_string_type(fields["title"])
            columns = sorted({text_field, *([id_field] if has_id else []), *(["title"] if has_title else [])})
            for first, table in parquet.batches(columns, most_rows=rows.BATCH_DOCUMENTS, start=position.row):
                damaged: dict[int, str] = {}
                texts = rows.column_values(table[text_field], self.encoding, damaged)
                nothing = [None] * len(texts)
                ids = rows.column_values(table[id_field], self.encoding) if has_id else nothing
                titles = rows.column_values(table["title"], self.encoding) if has_title else nothing
                for row, (text, source_id, title) in enumerate(zip(texts, ids, titles, strict=True), first):
                    position.row = row + 1
                    replaced = decoding.count_marked(name, damaged.get(row - first)) if damaged else 0
                    if problem := held.problem(text, name, row):
                        context.report.dropped[problem] += 1
                    elif len(text) > limit:
                        refuse_length(f"{name}: row {row}", limit)
                    elif decoding.admits(name, text, replaced=replaced):
                        yield Document(text, rows.row_id(source_id, name, row), name, row, title)
