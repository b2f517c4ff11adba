"""The source `jsonl`, for pretrain data sets from the user's files with one JSON object per line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Literal

from niels_cache_assets.documents import DocumentBatch
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.reading.columns import RowCollector, is_plain, require_columns
from niels_cache_assets.sources.reading.compressed import with_compressions
from niels_cache_assets.sources.reading.encodings import Decoding
from niels_cache_assets.sources.reading.file_source import KeepsDamaged, RowFileSource
from niels_cache_assets.sources.reading.files import SourceFile, writable
from niels_cache_assets.sources.reading.places import FilePass
from niels_cache_assets.sources.types import PretrainSource, StreamContext


class Jsonl(KeepsDamaged, RowFileSource):
    """JSON Lines: one object per line. A string `title` becomes the document's title. The cache records a `row` for each document: the
    index of its line in the file. Blank lines are counted too.
    """

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
        self._require_columns(fields, head[0][0])
        held = rows.HeldText(rows.choose_text_field(self.text_field, fields, head[0][0]))
        for name, row, values in chain(head, rows.rows_of_proof(stream)):
            if held.problem(values.get(held.field), name, row) in (None, "empty"):
                return
        rows.require_text(held, fields)

    def documents(self, context: StreamContext) -> Iterator[DocumentBatch]:
        report, files = context.report, FilePass(self.files_of(context), context)
        stream = self._rows(files, context)
        head: list[tuple[str, int, dict[str, Any]]] = []
        fields: dict[str, bool] = {}
        if context.text_field is not None:
            files.state["text_field"] = context.text_field
        if "text_field" not in files.state:  # otherwise an earlier pass chose the field by the first rows
            head = [*files.ahead(rows.first_rows(stream))]
            if not head:
                return
            fields = _fields(head)
            self._require_columns(fields, head[0][0])
            files.state["text_field"] = rows.choose_text_field(self.text_field, fields, head[0][0])
        text_field, id_field = files.state["text_field"], self.id_field or "id"
        held = rows.HeldText(text_field)
        decoding, text_of = Decoding(self, context, of_files=self.reads_files), lambda row: [row.get(text_field)]
        waiting, where = RowCollector(files), self.condition
        for name, row, values in files.replayed(head, stream):
            if where is not None and (problem := where.problem(values)):
                report.drop_row(problem, name, row)
                continue
            text = values.get(text_field)
            if type(values) is not dict or not is_plain(text):
                replaced = 0 if type(values) is dict else decoding.count_row(name, values, text_of)
                if problem := held.problem(text, name, row):
                    report.drop_row(problem if text_field in values else "missing_text_field", name, row)
                    continue
                if not decoding.admits(name, text, replaced=replaced, row=row):  # type: ignore[arg-type]
                    continue
            held.saw_text()
            title = values.get("title")
            title = writable(title) if isinstance(title, str) else None
            kept = self.kept_of(values, name, row)
            if waiting.add(text, values.get(id_field), name, row, title, kept):  # type: ignore[arg-type]
                yield waiting.batch()
        if waiting:
            yield waiting.batch()
        held.tell(context, fields, key="text_field")

    def text_field_of(self, files: Sequence[SourceFile]) -> str | None:
        context = StreamContext(seed=0)
        head = [*rows.first_rows(self._rows(FilePass(files, context), context))]
        return rows.choose_text_field(self.text_field, _fields(head), head[0][0]) if head else None

    def _require_columns(self, fields: Mapping[str, bool], place: str) -> None:
        """Raise NielsCacheError if no row has a column of `where` or `keep`. `fields`: those of the first rows."""
        if self.condition is not None:
            self.condition.require(fields, place)
        require_columns("keep", self.keep, fields, place)

    def _rows(self, files: FilePass, context: StreamContext) -> Iterator[tuple[str, int, dict[str, Any]]]:
        on_damage = self.on_damage(context, files)
        how: dict[str, Any] = {"encoding": self.encoding, "limit": self.max_document_bytes, "on_damage": on_damage}
        for file in files.files():
            for row, values in rows.json_rows(file, files.position, **how):
                yield file.name, row, values


def _fields(head: Sequence[tuple[str, int, dict[str, Any]]]) -> dict[str, bool]:
    """Return {field: whether it holds a string in any of these rows}."""
    fields: dict[str, bool] = {}
    for _, _, values in head:
        for name, value in values.items():
            fields[name] = fields.get(name, False) or isinstance(value, str)
    return fields
