"""`parquet`, `jsonl` and `text`: pretrain data sets from files that the user has.

Files are globs, local or fsspec URLs, compressed or not, read in the order of their relative paths. Cost: reading and decoding; the
input order is kept, a shuffle is the builder's. Data sets of the Hugging Face hub are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import IO, Any, ClassVar, Literal

from pydantic import Field

from niels_cache_assets.documents import Document
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.reading.compressed import OnDamage, with_compressions
from niels_cache_assets.sources.reading.damage import KeepsDamaged
from niels_cache_assets.sources.reading.encodings import DecodesText, Decoding, encoding_of, read_lines, read_text
from niels_cache_assets.sources.reading.files import SourceFile, files_digest, find_files, open_bytes, reading, writable
from niels_cache_assets.sources.reading.limits import refuse_length
from niels_cache_assets.sources.reading.parquet_files import is_string_type, is_text_type, open_parquet
from niels_cache_assets.sources.reading.places import FilePass, FilePosition
from niels_cache_assets.sources.types import FILES_HELP, ConfigPath, PretrainSource, StreamContext


class FileSource(DecodesText, PretrainSource):
    """Keys shared by the kinds that read globs of files."""

    files: list[ConfigPath] = Field(min_length=1, description=FILES_HELP)

    def input_files(self) -> list[SourceFile]:
        return find_files(self.files, self.endings)

    def revision(self, siblings: Mapping[str, PretrainSource]) -> str | None:
        return files_digest(self.input_files())


class RowFileSource(FileSource):
    text_field: str | None = Field(None, description="Field of the text; None takes `text`, else the first string field")
    id_field: str | None = Field(None, description="Field of the source id; None takes `id` where there is one, else file#row")


class Jsonl(KeepsDamaged, RowFileSource):
    """JSON Lines: one object a line; a string `title` is the document's. `row` is the line's index, so blank lines count."""

    code_version: ClassVar[str] = "2"
    endings: ClassVar[tuple[str, ...]] = with_compressions(".jsonl", ".ndjson", ".json")

    source: Literal["jsonl"] = "jsonl"

    def check_input(self, siblings: Mapping[str, PretrainSource]) -> None:
        context = StreamContext(seed=0)
        stream = self._rows(FilePass(self.readable_files(), context), context)
        head = [*rows.first_rows(stream)]
        if not head:
            return
        fields = _fields(head)
        held = rows.HeldText(rows.choose_text_field(self.text_field, fields, head[0][0]))
        for name, row, values in chain(head, rows.rows_of_proof(stream)):
            if held.problem(values.get(held.field), name, row) in (None, "empty"):
                return
        rows.require_text(held, fields)

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        files = FilePass(self.input_files(), context)
        yield from rows.batched(self._documents(files, context), files)

    def _documents(self, files: FilePass, context: StreamContext) -> Iterator[Document]:
        report = context.report
        stream = self._rows(files, context)
        head: list[tuple[str, int, dict[str, Any]]] = []
        fields: dict[str, bool] = {}
        if "text_field" not in files.state:  # it was chosen by the first rows of the first pass
            head = [*rows.first_rows(stream)]
            if not head:
                return
            fields = _fields(head)
            files.state["text_field"] = rows.choose_text_field(self.text_field, fields, head[0][0])
        text_field, id_field = files.state["text_field"], self.id_field or "id"
        held = rows.HeldText(text_field)
        decoding, text_of = Decoding(self, context), lambda row: [row.get(text_field)]
        for name, row, values in files.replayed(head, stream):
            text = values.get(text_field)
            replaced = 0 if type(values) is dict else decoding.count_row(name, values, text_of)
            if problem := held.problem(text, name, row):
                report.dropped[problem if text_field in values else "missing_text_field"] += 1
                continue
            if not decoding.admits(name, text, replaced=replaced):  # type: ignore[arg-type]
                continue
            title = values.get("title")
            title = writable(title) if isinstance(title, str) else None
            yield Document(text, rows.row_id(values.get(id_field), name, row), name, row, title)  # type: ignore[arg-type]
        held.tell(context, fields, key="text_field")

    def _rows(self, files: FilePass, context: StreamContext) -> Iterator[tuple[str, int, dict[str, Any]]]:
        on_damage = self.on_damage(context, files)
        how: dict[str, Any] = {"encoding": self.encoding, "limit": self.max_document_bytes, "on_damage": on_damage}
        for file in files.files():
            for row, values in rows.json_rows(file, files.position, **how):
                yield file.name, row, values


def _fields(head: Sequence[tuple[str, int, dict[str, Any]]]) -> dict[str, bool]:
    """Whether each field of these rows holds a string in any of them."""
    fields: dict[str, bool] = {}
    for _, _, values in head:
        for name, value in values.items():
            fields[name] = fields.get(name, False) or isinstance(value, str)
    return fields


class Parquet(RowFileSource):
    """Parquet files; only the text and id columns, and a column `title` of strings, are read."""

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
        for file in found if "://" not in found[0].url else found[:1]:  # a file's columns stand at its end: a small read
            with open_parquet(file) as parquet:
                column = parquet.columns.get(text_field)
            if column is not None:
                held.problem("" if is_text_type(column) else column, file.name, 0)
        rows.require_text(held, fields, kind=kind)

    def _columns(self, file: SourceFile) -> tuple[dict[str, bool], str, str]:
        """Whether each column of a file holds strings; the one that is read, and its type."""
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


class Text(KeepsDamaged, FileSource):
    """Plain text files: one document per file, per paragraph (between blank lines) or per line. `row` counts those in the file."""

    code_version: ClassVar[str] = "2"
    endings: ClassVar[tuple[str, ...]] = with_compressions(".txt", ".md", ".rst")

    source: Literal["text"] = "text"
    sample_by: Literal["document", "paragraph", "line"] = Field("document", description="What one document is")

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        files = FilePass(self.input_files(), context)
        yield from rows.batched(self._documents(files, context), files)

    def _documents(self, files: FilePass, context: StreamContext) -> Iterator[Document]:
        on_damage, decoding = self.on_damage(context, files), Decoding(self, context)
        for file in files.files():
            for row, text, marked in self._pieces(file, files.position, on_damage):
                replaced = decoding.count_marked(file.name, marked)
                if not text or text.isspace():
                    context.report.dropped["empty"] += 1
                elif decoding.admits(file.name, text, replaced=replaced):
                    yield Document(text, f"{file.name}#{row}", file.name, row)
            if not files.position.row:
                context.report.dropped["empty"] += 1  # a file without a line or paragraph

    def _pieces(self, file: SourceFile, position: FilePosition, on_damage: OnDamage | None) -> Iterator[tuple[int, str, str | None]]:
        """(row, text, the same with marks or None) from `position` on; of unlimited files in constant memory."""
        limit = self.max_document_bytes
        if self.sample_by == "document":
            if not position.row:
                position.row = position.rows = 1
                yield 0, *read_text(file, on_damage, encoding=self.encoding, limit=limit)
            return
        pieces = _lines if self.sample_by == "line" else _paragraphs
        with reading(file), open_bytes(file, on_damage) as stream:
            yield from pieces(stream, position, file.name, limit, self.encoding)


def _lines(stream: IO[bytes], position: FilePosition, where: str, limit: int, encoding: str) -> Iterator[tuple[int, str, str | None]]:
    for index, line, marked in read_lines(stream, position, where, limit, encoding):
        yield index, line.rstrip("\r\n"), marked


def _paragraphs(stream: IO[bytes], position: FilePosition, where: str, limit: int, encoding: str) -> Iterator[tuple[int, str, str | None]]:
    """Runs of lines between blank lines, without the last line end."""
    encoding = encoding_of(stream, encoding)
    row = position.seek(stream)
    begin = position.offset
    lines = FilePosition()  # behind `begin`
    where = f"{where}: after byte {begin}" if begin else where
    paragraph: list[str] = []
    damaged: list[str] = []
    length = 0
    for index, line, marked in chain(read_lines(stream, lines, where, limit, encoding, is_start=not begin), [(-1, "", None)]):
        if line and not line.isspace():
            paragraph.append(line.rstrip("\r\n"))
            length += len(paragraph[-1]) + 1
            if marked is not None:
                damaged.append(marked)
            if length > limit:
                refuse_length(f"{where}: the paragraph at line {index + 1}", limit)
        elif paragraph:
            row += 1
            if row > position.row:
                position.row = row
                if lines.offset:
                    position.offset_row, position.offset = row, begin + lines.offset
                yield row - 1, "\n".join(paragraph), "".join(damaged) or None
            paragraph, damaged, length = [], [], 0
