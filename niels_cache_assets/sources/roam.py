"""`roam`: a graph exported from Roam, as Markdown files or JSON. How it is read: `reading.notes`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from niels_cache_assets.documents import Document
from niels_cache_assets.sources.reading.files import SourceFile, files_digest, files_of_folder, writable
from niels_cache_assets.sources.reading.notes import Notes
from niels_cache_assets.sources.types import ConfigPath, PretrainSource, StreamContext
from niels_cache_runtime.errors import NielsCacheError


class Roam(Notes):
    """A Roam graph: *.md and JSON exports below `path`, or one JSON export."""

    code_version: ClassVar[str] = "3"

    source: Literal["roam"] = "roam"
    path: ConfigPath | None = Field(None, description="Folder of the graph's *.md files or JSON exports, or one JSON export")

    def missing_setting(self) -> str | None:
        return "path (the folder of the exported notes, or a Roam JSON export)" if self.path is None else None

    def revision(self, siblings: Mapping[str, PretrainSource]) -> str | None:
        return files_digest(self.input_files())

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        files = self.input_files()
        return self._documents(files, context, named=len(files) == 1 and files[0].url == self.path)

    def input_files(self) -> list[SourceFile]:
        if self.path is None:
            raise NielsCacheError("roam: path is not set; set it to the folder of the exported notes, or to a Roam JSON export")
        if self.path.endswith(".json") and not os.path.isdir(self.path):
            return [SourceFile(self.path, writable(os.path.basename(self.path)))]
        return files_of_folder(self.path, (".md", ".json"))
