"""The source `text`, for pretrain data sets from the user's plain text files."""

from collections.abc import Iterator
from itertools import chain
from typing import IO, Literal

from niels_cache_assets.base.documents import Document
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.reading.compressed import endings_with_compressions
from niels_cache_assets.sources.reading.encodings import (
    DecodingCounts,
    TextOptions,
    TextStream,
    encoding_of,
    read_lines,
    read_text,
    refuse_length,
)
from niels_cache_assets.sources.reading.file_source import FileSource, HasKeepDamaged
from niels_cache_assets.sources.reading.files import SourceFile, open_bytes
from niels_cache_assets.sources.reading.positions import FilePass, FilePosition
from niels_cache_assets.sources.types import PretrainSource, StreamContext


class Text(HasKeepDamaged, FileSource, PretrainSource):
    """Plain text files: one document per file, paragraph (between blank lines) or line. `row` in the lineage counts them in a file."""

    endings = endings_with_compressions(".txt", ".md", ".rst")

    source: Literal["text"] = "text"
    sample_by: Literal["document", "paragraph", "line"] = "document"
    """The unit of text that becomes a document"""

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        files = FilePass(self.input_files(), context, notes_empty=self.sample_by != "document")
        yield from rows.batched(self._documents(files, context), files)

    def _documents(self, files: FilePass, context: StreamContext) -> Iterator[Document]:
        options, decoding = self.damage_options(context, files), DecodingCounts(self, context)
        for file in files.files():
            for row, text, marked in self._pieces(file, files.position, options):
                replaced = decoding.count_marked(file.name, marked)
                if not text or text.isspace():
                    context.report.drop_row("blank_line" if self.sample_by == "line" else "empty", file.name, row)
                elif decoding.admits(file.name, text, replaced=replaced, row=row):
                    yield Document(text, f"{file.name}#{row}", file.name, row)
            if not files.position.row:
                context.report.drop_row("empty", file.name)  # a file without any line or paragraph

    def _pieces(self, file: SourceFile, position: FilePosition, options: TextOptions) -> TextStream:
        """Yield (row, text, marked text or None), starting at `position`.

        The marked text has a mark (a lone surrogate) in place of replaced bytes (see `reading/encodings.py`). Reading lines or paragraphs
        takes constant memory.
        """
        if self.sample_by == "document":
            if not position.row:
                position.row = position.rows = 1
                yield 0, *read_text(file, options)
            return
        with open_bytes(file, options.on_damage) as stream:
            if self.sample_by == "paragraph":
                yield from _paragraphs(stream, position, file.name, options)
                return
            for index, line, marked in read_lines(stream, position, file.name, options):
                yield index, line.rstrip("\r\n"), marked


def _paragraphs(stream: IO[bytes], position: FilePosition, where: str, options: TextOptions) -> TextStream:
    """Yield paragraphs: runs of lines between blank lines, without the last line end."""
    options = options._replace(encoding=encoding_of(stream, options.encoding))
    row = position.seek(stream)
    begin = position.offset
    lines = FilePosition()  # counted from `begin`
    where = f"{where}: after byte {begin}" if begin else where
    paragraph: list[str] = []
    damaged: list[str] = []
    length = 0
    for index, line, marked in chain(read_lines(stream, lines, where, options, is_start=not begin), [(-1, "", None)]):
        if line and not line.isspace():
            paragraph.append(line.rstrip("\r\n"))
            length += len(paragraph[-1]) + 1
            if marked is not None:
                damaged.append(marked)
            if length > options.limit:
                refuse_length(f"{where}: the paragraph at line {index + 1}", options.limit)
        elif paragraph:
            row += 1
            if row > position.row:
                position.row = row
                if lines.offset:
                    position.offset_row, position.offset = row, begin + lines.offset
                yield row - 1, "\n".join(paragraph), "".join(damaged) or None
            paragraph, damaged, length = [], [], 0
