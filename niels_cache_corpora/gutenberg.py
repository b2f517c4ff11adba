"""The source `gutenberg`, for books of Project Gutenberg without the project's header and licence footer.

The books are read from the hub, or from a folder of *.txt. One book of a folder, or one row group of the hub, is in memory.
"""

import re
from collections.abc import Iterator
from typing import Any, Literal

from niels_cache_assets.base.documents import Document
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.reading.encodings import DecodingCounts, read_text
from niels_cache_assets.sources.reading.files import SourceFile, files_of_folder
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.reading.rows import TextFieldCheck, batched
from niels_cache_assets.sources.types import ConfigPath, PretrainSource, StreamContext

_FLAGS = re.MULTILINE | re.IGNORECASE
_NAME = r"(?:THE|THIS) PROJECT GUTENBERG E(?:BOOK|TEXT)"
_START = re.compile(
    rf"^[ \t]*\*{{3}}\s*START OF {_NAME}(?:[^*\n]*(?:\n(?![ \t\r]*\n)[^*\n]*){{0,5}}\*{{3}})?[^\n]*\n?", _FLAGS
)  # a long title takes several lines
_SMALL_PRINT = re.compile(r"^\*END[ *]*THE SMALL PRINT[^\n]*\n?", _FLAGS)  # before about 2003
_END = re.compile(rf"^[ \t]*\*{{3}}\s*END OF {_NAME}", _FLAGS)
_END_PHRASE = re.compile(r"^[ \t]*End of (?:the |this )?Project Gutenberg(?:['’]s)? [^\n]*$", _FLAGS)
_TITLE = re.compile(r"^Title:[ \t]*(\S[^\r\n]*)\r?$", _FLAGS)
_HEADER_CHARACTERS = 20_000  # the small print of the 1990s has 10,000 characters
_FOOTER_CHARACTERS = 20_000  # without an end marker, the phrase is only searched for near the end, because books may quote it
_PHRASE_DISTANCE = 500  # the phrase may come this many characters before the end marker


class Gutenberg(HubData, PretrainSource):
    """Books from Project Gutenberg."""

    endings = (".txt",)

    source: Literal["gutenberg"] = "gutenberg"
    dataset: str = "nikolina-p/gutenberg_clean_en_splits"
    path: ConfigPath | None = None
    """Folder of *.txt books to read instead of the hub data set"""

    def input_files(self) -> list[SourceFile]:
        return files_of_folder(self.path, self.endings) if self.path else super().input_files()

    @property
    def local_key(self) -> str | None:
        return "path" if self.path else super().local_key

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        files = FilePass(self.input_files(), context, notes_empty=False) if self.path else self.file_pass(context)
        books = self._folder_books if self.path else self._row_books
        yield from batched(books(files, context), files)

    def _folder_books(self, files: FilePass, context: StreamContext) -> Iterator[Document]:
        decoding = DecodingCounts(self, context)
        for file in files.files():
            if not files.position.row:
                files.position.row = files.position.rows = 1
                text, marked = read_text(file, self.text_options)
                if decoding.admits(file.name, text, replaced=decoding.count_marked(file.name, marked)):
                    yield from _book(Document(text, file.name, file.name), context)

    def _row_books(self, files: FilePass, context: StreamContext) -> Iterator[Document]:
        decoding, check = DecodingCounts(self, context), TextFieldCheck(self.text_field_at(files, context))
        text_of = lambda values: [values.get(check.field)]  # noqa: E731
        for split in files.splits():
            for file, row, values in self.rows(files, context, [check.field]):
                text: Any = values.get(check.field)
                replaced = decoding.count_row(file, values, text_of)
                problem = check.problem(text, file, row)
                if problem and problem != "empty":  # `admits` may reject an empty text
                    context.report.drop_row(problem, file, row)
                elif decoding.admits(file, text, replaced=replaced, row=row):
                    yield from _book(Document(text, f"{file}#{row}", file, row, split=split), context)
        check.report_hint(context)


def _book(whole: Document, context: StreamContext) -> Iterator[Document]:
    title, body = strip_project_gutenberg(whole.text)
    if body:
        yield whole._replace(text=body, title=title)
    else:
        context.report.drop_row("empty", whole.file, whole.row)


def strip_project_gutenberg(text: str) -> tuple[str | None, str]:
    """Return (title, body) of a book.

    The text before the start marker and after the end marker is removed. Without markers, nothing is removed. If more e-texts follow, their
    bodies are joined by a blank line, and their titles by a semicolon.
    """
    text = text.removeprefix("\ufeff")
    start = _START.search(text)
    if start is None or start.start() > _HEADER_CHARACTERS:  # a later one may belong to another e-text
        start = _SMALL_PRINT.search(text, 0, _HEADER_CHARACTERS) or start
    titles, bodies = list[str](), list[str]()
    position = 0  # where the header of an e-text begins
    while True:
        begin = start.end() if start else 0
        if title := _TITLE.search(text, position, begin or _HEADER_CHARACTERS):
            titles.append(title[1].rstrip(" \t"))
        end = _END.search(text, begin)
        bodies.append(text[begin : _end_of_body(text, begin, end)].strip("\r\n"))
        start = _START.search(text, end.end()) if end else None
        if end is None or start is None:
            return "; ".join(titles) or None, "\n\n".join(filter(None, bodies))
        position = end.end()


def _end_of_body(text: str, begin: int, end: re.Match[str] | None) -> int:
    """Return where the body that starts at `begin` ends: at its end marker, or at a phrase near the marker or near the end of the text."""
    stop = end.start() if end else len(text)
    distance = _PHRASE_DISTANCE if end else _FOOTER_CHARACTERS
    for phrase in reversed([*_END_PHRASE.finditer(text, max(begin, stop - _FOOTER_CHARACTERS), stop)]):
        if stop - phrase.end() >= distance:
            break
        stop, distance = phrase.start(), _PHRASE_DISTANCE  # old books have the phrase twice
    return stop
