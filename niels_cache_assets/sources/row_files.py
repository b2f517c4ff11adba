"""`parquet`, `jsonl` and `text`: pretrain data sets from files that the user has.

Files are globs, local or fsspec URLs, compressed or not, read in the order of their relative paths. Cost: reading and decoding; the
input order is kept, a shuffle is the builder's. Data sets of the Hugging Face hub are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Literal

from pydantic import Field

from niels_cache_assets.documents import Document
from niels_cache_assets.sources import rows
from niels_cache_assets.sources.base import ConfigPath, PretrainSource, StreamContext
from niels_cache_assets.sources.compressed import OnDamage
from niels_cache_assets.sources.damage import KeepsDamaged
from niels_cache_assets.sources.files import SourceFile, files_digest, find_files, open_bytes, read_text, reading


class FileSource(PretrainSource):
    """Keys shared by the kinds that read globs of files."""

    files: list[ConfigPath] = Field(min_length=1, description="Globs of files, local or fsspec URLs; .gz, .bz2, .xz, .zst are decompressed")

    def revision(self, siblings: Mapping[str, PretrainSource]) -> str | None:
        return files_digest(find_files(self.files))


class RowFileSource(FileSource):
    text_field: str | None = Field(None, description="Field of the text; None takes `text`, else the first string field")
    id_field: str | None = Field(None, description="Field of the source id; None takes `id` where there is one, else file#row")


class Jsonl(KeepsDamaged, RowFileSource):
    """JSON Lines: one object a line; a string `title` is the document's. `row` is the line's index, so blank lines count."""

    source: Literal["jsonl"] = "jsonl"

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        return rows.batched(self._documents(context))

    def _documents(self, context: StreamContext) -> Iterator[Document]:
        report = context.report
        on_damage = self.on_damage(context)
        stream = ((file.name, row, value) for file in find_files(self.files) for row, value in rows.json_rows(file, on_damage))
        head = list(islice(stream, rows.PEEK_ROWS))
        if not head:
            return
        fields: dict[str, bool] = {}
        for _, _, values in head:
            for name, value in values.items():
                fields[name] = fields.get(name, False) or isinstance(value, str)
        text_field = rows.choose_text_field(self.text_field, fields, head[0][0])
        id_field = self.id_field or "id"
        for name, row, values in chain(head, stream):
            text = values.get(text_field)
            if problem := rows.text_problem(text):
                report.dropped[problem if text_field in values else "missing_text_field"] += 1
                continue
            source_id, title = values.get(id_field), values.get("title")
            yield Document(text, rows.row_id(source_id, name, row), name, row, title if isinstance(title, str) else None)  # type: ignore[arg-type]


class Parquet(RowFileSource):
    """Parquet files; only the text and id columns, and a column `title` of strings, are read."""

    source: Literal["parquet"] = "parquet"

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        files = find_files(self.files)
        text_field = self._text_field(files[0])
        for file in files:
            yield from self._file_documents(file, text_field, context)

    def _text_field(self, file: SourceFile) -> str:
        fields = {name: rows.is_string_type(kind) for name, kind in rows.parquet_columns(file).items()}
        return rows.choose_text_field(self.text_field, fields, file.name)

    def _file_documents(self, file: SourceFile, text_field: str, context: StreamContext) -> Iterator[list[Document]]:
        id_field = self.id_field or "id"
        name = file.name
        with rows.open_parquet(file) as parquet:
            fields = {field.name: field.type for field in parquet.schema_arrow}
            if text_field not in fields:
                context.report.dropped["missing_text_field"] += parquet.metadata.num_rows
                return
            has_id = id_field in fields and id_field != text_field
            has_title = text_field != "title" and "title" in fields and rows.is_string_type(fields["title"])
            columns = {text_field, *([id_field] if has_id else []), *(["title"] if has_title else [])}
            row = 0
            for table in parquet.iter_batches(batch_size=rows.BATCH_DOCUMENTS, columns=sorted(columns)):
                texts = rows.column_values(table[text_field])
                nothing = [None] * len(texts)
                ids = rows.column_values(table[id_field]) if has_id else nothing
                titles = rows.column_values(table["title"]) if has_title else nothing
                batch = []
                for text, source_id, title in zip(texts, ids, titles, strict=True):
                    if problem := rows.text_problem(text):
                        context.report.dropped[problem] += 1
                    else:
                        batch.append(Document(text, rows.row_id(source_id, name, row), name, row, title))
                    row += 1
                if batch:
                    yield batch


class Text(KeepsDamaged, FileSource):
    """Plain text files: one document per file, per paragraph (between blank lines) or per line. `row` counts those in the file."""

    source: Literal["text"] = "text"
    sample_by: Literal["document", "paragraph", "line"] = Field("document", description="What one document is")

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        return rows.batched(self._documents(context))

    def _documents(self, context: StreamContext) -> Iterator[Document]:
        on_damage = self.on_damage(context)
        for file in find_files(self.files):
            whole = self.sample_by == "document"
            pieces = iter([read_text(file, on_damage)]) if whole else _pieces(file, on_damage, by_line=self.sample_by == "line")
            row = -1
            for row, text in enumerate(pieces):
                if not text.strip():
                    context.report.dropped["empty"] += 1
                else:
                    yield Document(text, f"{file.name}#{row}", file.name, row)
            if row < 0:
                context.report.dropped["empty"] += 1  # a file without a line or paragraph


def _pieces(file: SourceFile, on_damage: OnDamage | None, *, by_line: bool) -> Iterator[str]:
    """Lines, or runs of lines between blank lines, without the line end; of unlimited files in constant memory."""
    paragraph: list[str] = []
    with reading(file), open_bytes(file, on_damage) as stream:
        for index, raw in enumerate(stream):
            line = raw.decode("utf-8-sig" if index == 0 else "utf-8", errors="replace").rstrip("\r\n")
            if by_line:
                yield line
            elif line.strip():
                paragraph.append(line)
            elif paragraph:
                yield "\n".join(paragraph)
                paragraph = []
    if paragraph:
        yield "\n".join(paragraph)
