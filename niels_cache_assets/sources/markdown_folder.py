"""`markdown_folder`: notes below a folder, one document for each *.md. How they are read: `reading.notes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from niels_cache_assets.documents import Document
from niels_cache_assets.sources.reading.files import SourceFile, files_digest, files_of_folder
from niels_cache_assets.sources.reading.notes import Notes
from niels_cache_assets.sources.types import ConfigPath, PretrainSource, StreamContext


class MarkdownFolder(Notes):
    """Every *.md below `path`."""

    code_version: ClassVar[str] = "2"

    source: Literal["markdown_folder"] = "markdown_folder"
    path: ConfigPath = Field(description="Folder of notes")

    def input_files(self) -> list[SourceFile]:
        return files_of_folder(self.path, (".md",))

    def revision(self, siblings: Mapping[str, PretrainSource]) -> str | None:
        return files_digest(self.input_files())

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        return self._documents(self.input_files(), context)
