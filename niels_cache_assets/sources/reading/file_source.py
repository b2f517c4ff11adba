"""Keys of the kinds that read the user's files: `jsonl`, `parquet`, `text`.

Globs name the files, which may be local or at fsspec URLs, and compressed or not. Files are read in the order of their relative paths. The
source keeps the order of the input, and a builder may shuffle. Hub data sets are read in `hub/`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from niels_cache_assets.sources.reading.compressed import DamagedFile, OnDamage
from niels_cache_assets.sources.reading.encodings import DecodesText
from niels_cache_assets.sources.reading.files import SourceFile, files_digest, find_files
from niels_cache_assets.sources.reading.places import FilePass
from niels_cache_assets.sources.types import FILES_HELP, ConfigPath, PretrainSource, Source, StreamContext


class KeepsDamaged(Source):
    """The key of the kinds that read files line by line or page by page."""

    keep_damaged: bool = Field(False, description="Keep the data before the damage in a damaged file; otherwise the build fails")

    def on_damage(self, context: StreamContext, files: FilePass) -> OnDamage | None:
        """Return None if damage is an error. Otherwise return a function that logs a damaged file and counts it as dropped
        (`damaged_file`).

        A resumed pass may begin shortly before the damage, and then reaches the damage again. The file is still counted only once.
        """
        if not self.keep_damaged:
            return None

        def count(error: DamagedFile) -> None:
            if files.state.get("damaged") != files.number:
                files.state["damaged"] = files.number
                context.report.dropped["damaged_file"] += 1
                context.log(f"{error}; kept the data before")

        return count


class FileSource(DecodesText, PretrainSource):
    """Keys of the kinds that read globs of files."""

    files: list[ConfigPath] = Field(min_length=1, description=FILES_HELP)

    def input_files(self) -> list[SourceFile]:
        return find_files(self.files, self.endings)

    def revision(self, siblings: Mapping[str, PretrainSource]) -> str | None:
        return files_digest(self.input_files())


class RowFileSource(FileSource):
    text_field: str | None = Field(None, description="Field of the text; None takes `text`, else the first string field")
    id_field: str | None = Field(None, description="Field of the source id; None takes `id` if the rows have it, else file#row")
