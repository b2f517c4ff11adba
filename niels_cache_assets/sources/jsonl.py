"""The source `jsonl`, for pretrain data sets from the user's files with JSON objects."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import ClassVar, Literal

from niels_cache_assets.base.documents import Document
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.reading.columns import is_plain
from niels_cache_assets.sources.reading.compressed import endings_with_compressions
from niels_cache_assets.sources.reading.encodings import DecodingCounts, RowStream, Values
from niels_cache_assets.sources.reading.file_source import HasKeepDamaged, RowFileSource
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.reading.where import RowCondition
from niels_cache_assets.sources.text_column import MISSING_FIELD_REASON, ROWS, TEXT, choose_text_field, require_field
from niels_cache_assets.sources.types import Siblings, StreamContext
from niels_cache_runtime.errors import NielsCacheError


class Jsonl(HasKeepDamaged, RowFileSource):
    """JSON Lines, arrays or objects over several lines; a string `title` is the title. In the lineage, `row` counts lines, or objects."""

    endings = endings_with_compressions(".jsonl", ".ndjson", ".json")

    source: Literal["jsonl"] = "jsonl"
    rows_of: ClassVar[Callable[..., RowStream]] = staticmethod(rows.json_rows)

    def check_input(self, siblings: Siblings) -> None:
        context = StreamContext(seed=0)
        files = self.readable_files()
        text_field = self.text_field_of(files)
        if text_field is None:
            return
        check = rows.TextFieldCheck(text_field)
        for name, row, values in rows.first_rows(self._rows(FilePass(files, context), context), *rows.SEARCH_LIMITS):
            if check.problem(values.get(text_field), name, row) in (None, "empty"):
                return
        if check.is_wrong:
            raise NielsCacheError(check.hint(rows.string_fields(self._first_rows(files))))

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        found = self.files_of(context)
        text_field = self.text_field_at(found, context) or TEXT  # without rows there is no field, but files may be damaged
        files, check = FilePass(found, context), rows.TextFieldCheck(text_field)
        yield from rows.batched(self._documents(files, check, context), files)
        if check.is_wrong:
            check.report_hint(context, rows.string_fields(self._first_rows(found)))

    def _documents(self, files: FilePass, check: rows.TextFieldCheck, context: StreamContext) -> Iterator[Document]:
        text_field, id_field, where, report = check.field, self.id_field or "id", self.condition, context.report
        decoding, text_of = DecodingCounts(self, context), lambda row: [row.get(text_field)]
        for name, row, values in self._rows(files, context, text_field):
            if where is not None and (problem := self.where_problem(where, values)):
                report.drop_row(problem, name, row)
                continue
            text = values.get(text_field)
            if type(values) is not dict or not is_plain(text):
                replaced = 0 if type(values) is dict else decoding.count_row(name, values, text_of)
                if problem := check.problem(text, name, row):
                    report.drop_row(problem if text_field in values else MISSING_FIELD_REASON, name, row)
                    continue
                if not decoding.admits(name, text, replaced=replaced, row=row):  # type: ignore[arg-type]
                    continue
            check.has_text = True
            source_id, kept = rows.row_id(values.get(id_field), name, row), self.kept_of(values, name, row)
            yield Document(text, source_id, name, row, rows.row_title(values.get("title")), kept=kept)  # type: ignore[arg-type]

    def where_problem(self, where: RowCondition, values: Values) -> str | None:
        """Return the drop reason of a row that does not meet the condition, or None."""
        return where.problem(values)

    def text_field_of(self, files: Sequence[SourceFile]) -> str | None:
        pipe = next((file for file in files if os.path.exists(file.url) and not os.path.isfile(file.url)), None)
        if pipe is not None and self.text_field is None:
            raise NielsCacheError(f"{pipe.name}: is a pipe, which can be read only once, so its first rows cannot decide; set text_field")
        head = self._first_rows(files) if pipe is None else []
        if not head:
            return self.text_field if pipe is not None else None
        name, fields = head[0][0], rows.string_fields(head)
        self.require_columns(fields, name)
        if self.text_field is None:
            return choose_text_field([values for _, _, values in head], name)
        if not any(self.text_field in rows.string_fields(self._first_rows([file])) for file in files):
            require_field(self.text_field, fields, name)
        return self.text_field

    def _first_rows(self, files: Sequence[SourceFile]) -> list[tuple[str, int, Values]]:
        """Return the first rows of the first of these files that has rows."""
        context = StreamContext(seed=0)
        for _, of_file in groupby(self._rows(FilePass(files, context), context), key=itemgetter(0)):
            return [*rows.first_rows(of_file, ROWS)]
        return []

    def _rows(self, files: FilePass, context: StreamContext, text_field: str | None = None) -> Iterator[tuple[str, int, Values]]:
        read = partial(self.rows_of, options=self.damage_options(context, files))
        return rows.rows_of_files(files, read, context, text_field or self.text_field)
