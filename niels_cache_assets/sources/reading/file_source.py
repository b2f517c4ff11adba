"""Keys of the kinds that read the user's files, such as `jsonl`, `parquet` and `text`.

Globs name the files, which may be local or at fsspec URLs, and compressed or not. Files are read in the order of their relative paths. The
source keeps the order of the input, and a builder may shuffle.

Hub data sets are read in `hub/`.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Self

from pydantic import Field

from niels_cache_assets.sources.reading.compressed import DamagedFileError
from niels_cache_assets.sources.reading.encodings import DecodesText, TextOptions
from niels_cache_assets.sources.reading.files import SourceFile, files_digest, find_files, find_groups
from niels_cache_assets.sources.reading.keep import HasColumns
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.text_column import text_field_of_pass
from niels_cache_assets.sources.types import (
    AddedFiles,
    ConfigPath,
    ListedFile,
    Source,
    SourceWithParts,
    StreamContext,
)
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Split


class HasKeepDamaged(DecodesText):
    """The key `keep_damaged`, for kinds that read files line by line or page by page."""

    keep_damaged: bool = False
    """True keeps the intact start of a damaged file; by default, the build fails"""

    def damage_options(self, context: StreamContext, files: FilePass) -> TextOptions:
        """Return how to read files. With `keep_damaged`, a damaged file is logged and counted as dropped (`damaged_file`).

        A resumed pass may begin shortly before the damage, and then reaches the damage again. The file is still counted only once.
        """
        if not self.keep_damaged:
            return self.text_options

        def count(error: DamagedFileError) -> None:
            if files.state.get("damaged") != files.number:
                files.state["damaged"] = files.number
                context.report.drop_row("damaged_file", files.name)
                context.log(f"{error}; kept the data before")

        return self.text_options._replace(on_damage=count)


class NamesFiles(Source):
    """The key `files`."""

    files: list[ConfigPath] = Field(min_length=1)
    """Globs or folders, as local paths or fsspec URLs; .gz, .bz2, .xz and .zst files are decompressed"""

    def input_files(self) -> list[SourceFile]:
        return find_files(self.files, self.endings)


class FileSource(NamesFiles, DecodesText):
    """The keys of kinds that decode globs of files."""


class GroupedFiles(NamesFiles, SourceWithParts):
    """Files that can be in parts."""

    added: tuple[AddedFiles, ...] = Field((), strict=False)

    def files_of(self, context: StreamContext) -> list[SourceFile]:
        """Return the files that this pass reads."""
        return self.input_files() if context.files is None else list(context.files)

    def input_files(self) -> list[SourceFile]:
        """Return the first files: those that no table `added` names."""
        return self.groups()[0]

    def groups(self) -> list[list[SourceFile]]:
        """Return the first files, and then the files of each table `added`.

        Raises:
            NielsCacheError: For the reasons of `find_groups`.
        """
        return find_groups(self.files, [each.files for each in self.added], self.endings)

    def every_file(self) -> list[SourceFile]:
        return list(chain.from_iterable(self.groups()))

    def revision_of_files(self, number: int, revision: str | None) -> str | None:
        return files_digest(self.groups()[number])

    def list_files(self, revision: str | None, *, group: int = 0, hashed: bool = True) -> list[ListedFile]:
        return list_files_for_plan(self.groups()[group], None, hashed=hashed)

    def located(self, files: Sequence[ListedFile], revision: str | None) -> list[SourceFile]:
        return locate_listed_files(self.every_file(), files)

    def file_reader(self, names: Sequence[str]) -> Self:
        return self

    def text_field_of(self, files: Sequence[SourceFile]) -> str | None:
        """Return the text field, determined from the first rows of these files, or None if they hold no rows, or none with fields."""
        return None


class RowFileSource(HasColumns, FileSource, GroupedFiles):
    """The keys of the kinds that read rows from the user's files, which can be in parts."""

    @abstractmethod
    def text_field_of(self, files: Sequence[SourceFile]) -> str | None: ...

    def text_field_at(self, files: Sequence[SourceFile], context: StreamContext) -> str | None:
        """Return the text field for this pass over `files`, or None if they hold no rows."""
        return text_field_of_pass(self, context, lambda: self.text_field_of(files), given=self.text_field)


def list_files_for_plan(files: Iterable[SourceFile], split: Split | None, *, hashed: bool) -> list[ListedFile]:
    """Return files as a plan lists them.

    Args:
        files: The files.
        split: The split that upstream assigns to their documents, or None.
        hashed: Whether to hash local files. If False, all digests are empty.
    """
    return [ListedFile(file.name, file.size(), file.digest() if hashed else "", split) for file in files]


def locate_listed_files(found: Iterable[SourceFile], files: Sequence[ListedFile]) -> list[SourceFile]:
    """Return the file of each listed name among the files that exist now.

    Raises:
        NielsCacheError: If a listed file is missing.
    """
    by_name = {file.name: file for file in found}
    for file in files:
        if file.name not in by_name:
            raise NielsCacheError(f"{file.name}: is in the plan of this data set, but is missing now; put it back, or make the plan again")
    return [by_name[file.name] for file in files]
