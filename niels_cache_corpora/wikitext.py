"""The source `wikitext`, which joins rows of WikiText back into articles.

The hub's rows and the lines of the raw files are paragraphs. An article starts at a level-1 heading (` = Title = `; ` = = Section = = ` is
a section inside an article). No row is lost: the joined texts of all articles equal the joined texts of all rows.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple

from niels_cache_assets.base.documents import Document, SourceReport
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.reading.encodings import DecodingCounts, Values, refuse_length
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.reading.rows import TextFieldCheck, batched
from niels_cache_assets.sources.text_column import TEXT
from niels_cache_assets.sources.types import PretrainSource, StreamContext

_HEADING = re.compile(r" ?= (?!=)(.*\S) =\s*")


class WikitextRow(NamedTuple):
    """A row of the data, which is one line of WikiText.

    Attributes:
        text: The line, or another value of the column.
        file: The name of the file.
        row: The number of the row in the file.
        number: The index of the file in its pass.
        values: The values by column.
    """

    text: Any
    file: str
    row: int
    number: int
    values: Values


class Wikitext(HubData, PretrainSource):
    """WikiText with the upstream train and validation splits. With `files` but no `val_files`, val_frac determines val."""

    source: Literal["wikitext"] = "wikitext"
    dataset: str = "Salesforce/wikitext"
    config: str | None = "wikitext-103-raw-v1"
    val_split: str | None = "validation"

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        files = self.file_pass(context, notes_empty=False)
        decoding, check = DecodingCounts(self, context), TextFieldCheck(self.text_field_at(files, context))
        for split in files.splits():
            rows = self._rows(files, context, check)
            found = articles(rows, context.report, files, limit=self.max_document_bytes, decoding=decoding, field=check.field)
            for batch in batched(found, files):
                yield [document._replace(split=split) for document in batch]
        check.report_hint(context)

    def _rows(self, files: FilePass, context: StreamContext, check: TextFieldCheck) -> Iterator[WikitextRow]:
        for file, row, values in self.rows(files, context, [check.field]):
            text = values.get(check.field)
            check.problem(text, file, row)
            yield WikitextRow(text, file, row, files.number, values)


def heading_title(text: str) -> str | None:
    """Return the title of a level-1 heading (` = Title = `), or None for any other line."""
    match = _HEADING.fullmatch(text)
    return match[1] if match and not match[1].endswith("=") else None


def articles(
    rows: Iterable[WikitextRow], report: SourceReport, files: FilePass, *, limit: int, decoding: DecodingCounts, field: str = TEXT
) -> Iterator[Document]:
    """Join rows into articles at level-1 headings between blank rows.

    A formula such as ` = 2 = ` inside a text is not a heading. The text before the first heading is a separate document; if it is blank, it
    belongs to the first article. `row` of a document is the row of its heading. With these rules, WikiText-2 has 60 validation articles and
    60 test articles, as its paper says.

    Args:
        rows: The rows of one split.
        report: Counts rows that are not text.
        files: The pass that reports positions; a pass can resume at the heading after an article.
        limit: The maximum number of characters of an article; a longer one is an error.
        decoding: Counts replaced bytes, and rejects articles that are not text.
        field: The column of the text.
    """
    parts: list[str] = []
    characters = replaced = 0
    start = previous = WikitextRow("", "", 0, 0, {})
    title: str | None = None

    def article(number: int, row: int) -> Iterator[Document]:
        """Yield the article of the collected parts, if it is text. The next article begins at this row of this file."""
        files.next_row = number, row
        text = "".join(parts)
        if decoding.admits(start.file, text, replaced=replaced, row=start.row):
            yield Document(text, f"{start.file}#{start.row}", start.file, start.row, title)

    for row, following in pairwise(chain(rows, [None])):
        assert row is not None  # only the last `following` is None
        if type(row.text) is not str:
            report.drop_row("null_text" if row.text is None else "non_string_text", row.file, row.row)
            row = row._replace(text="")
        stands_alone = _ends_block(previous, row) and (following is None or _ends_block(following, row))
        new_title = heading_title(row.text) if stands_alone else None
        if new_title is not None or not parts:
            if "".join(parts).strip():
                yield from article(row.number, row.row)
                parts, characters, replaced = [], 0, 0
            start, title = row, new_title
        parts.append(row.text)
        characters += len(row.text)
        replaced += decoding.count_row(row.file, row.values, lambda values: [values.get(field)])
        if characters > limit:
            refuse_length(f"{start.file}: the article at row {start.row}", limit)
        previous = row
    if "".join(parts).strip():
        yield from article(previous.number, previous.row + 1)


def _ends_block(neighbour: WikitextRow, row: WikitextRow) -> bool:
    return neighbour.file != row.file or type(neighbour.text) is not str or not neighbour.text or neighbour.text.isspace()
