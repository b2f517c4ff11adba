"""The source `markdown_folder`, for notes in a folder, one document per *.md file, and the base class of `roam`.

Files are read in the order of their relative paths. Hidden files and folders (.git, .obsidian) are left out. One file is in memory at a
time.
"""

from collections.abc import Iterator
from typing import Literal

from niels_cache_assets.base.documents import Document
from niels_cache_assets.sources.reading.encodings import DecodesText, DecodingCounts, read_text
from niels_cache_assets.sources.reading.files import SourceFile, files_of_folder
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.reading.rows import batched
from niels_cache_assets.sources.types import ConfigPath, PretrainSource, StreamContext


class NotesSource(DecodesText, PretrainSource):
    """Notes in files: one document per file, unless a kind overrides `file_documents`."""

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        files = FilePass(self.input_files(), context, notes_empty=False)
        return batched(self._documents(files, context), files)

    def _documents(self, files: FilePass, context: StreamContext) -> Iterator[Document]:
        decoding = DecodingCounts(self, context)
        for file in files.files():
            yield from self.file_documents(file, files, context, decoding)

    def file_documents(self, file: SourceFile, files: FilePass, context: StreamContext, decoding: DecodingCounts) -> Iterator[Document]:
        """Yield the documents of a file, from the position of the pass in this file."""
        if files.position.row:
            return
        text, marked = read_text(file, self.text_options)
        if not text.strip():
            context.report.drop_row("empty", file.name)
            return
        files.position.row = files.position.rows = 1
        if decoding.admits(file.name, text, replaced=decoding.count_marked(file.name, marked)):
            yield Document(text, file.name, file.name, 0, file.name.rsplit("/", 1)[-1].removesuffix(".md"))


class MarkdownFolder(NotesSource):
    """All *.md files under `path`."""

    endings = (".md",)

    source: Literal["markdown_folder"] = "markdown_folder"
    path: ConfigPath
    """Folder of notes"""

    def input_files(self) -> list[SourceFile]:
        return files_of_folder(self.path, self.endings)
