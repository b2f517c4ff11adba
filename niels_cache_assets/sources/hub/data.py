"""Data sets of the Hugging Face hub, or local files in their place.

`HubData` has the configuration keys of such a data set and resolves the upstream commit. The hub's library says which files a configuration
and its splits have. The files are read like the user's own files (`reading/`), in the library's order, so each row has its file and its
number there. The subclasses define what the columns of a row mean.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Self

from pydantic import model_validator

from niels_cache_assets.sources.errors import without_credentials
from niels_cache_assets.sources.hub.errors import hub_errors, unknown_choice_message
from niels_cache_assets.sources.reading.encodings import DecodesText, RowStream, Values
from niels_cache_assets.sources.reading.files import SourceFile, files_digest, find_splits
from niels_cache_assets.sources.reading.parquet_files import open_parquet
from niels_cache_assets.sources.reading.positions import FilePass, FilePosition, UpstreamSplit
from niels_cache_assets.sources.reading.rows import csv_rows, first_rows, json_rows, line_rows, parquet_rows, rows_of_files, string_fields
from niels_cache_assets.sources.text_column import ROWS, choose_text_field, find_text_column, text_field_of_pass
from niels_cache_assets.sources.types import ConfigPath, ListedFile, Siblings, StreamContext
from niels_cache_runtime.errors import NielsCacheError

_ONLY_OF_THE_HUB = ("config", "split", "val_split", "pinned_revision")
_NAMES_PER_REQUEST = 500
_NOT_OPTIONS = {"name", "version", "data_dir", "data_files", "description", "features"}  # attributes of a configuration of the library
_READERS: dict[str, Callable[..., RowStream]] = {
    "parquet": parquet_rows,
    "json": json_rows,
    "text": line_rows,
    "csv": csv_rows,
}
_FORMATS = {".parquet": "parquet"} | dict.fromkeys((".jsonl", ".json", ".ndjson"), "json") | dict.fromkeys((".csv", ".tsv"), "csv")
_FORMATS |= dict.fromkeys((".txt", ".raw", ".tokens", ".md", ""), "text")


class HubData(DecodesText):
    """The configuration keys of a data set from the hub.

    If `files` is set, the same loading code reads local files, and no request goes to the hub.
    """

    dataset: str
    """Hub data set: owner/name"""
    config: str | None = None
    """Configuration of the data set"""
    split: str = "train"
    """Upstream split to read"""
    val_split: str | None = None
    """Upstream split to use as val"""
    pinned_revision: str | None = None
    """Commit, tag or branch to read; by default the newest commit on main"""
    files: list[ConfigPath] | None = None
    """Globs of local .parquet, .jsonl, .csv or text files to read instead of the hub data set"""
    val_files: list[ConfigPath] | None = None
    """Globs of local files to use as val; requires `files`"""

    def missing_setting(self) -> str | None:
        return "files (val_files alone has no train split)" if self.val_files and not self.files else None

    @model_validator(mode="after")
    def _no_hub_settings_for_files(self) -> Self:
        unused = [key for key in _ONLY_OF_THE_HUB if key in self.model_fields_set and getattr(self, key) is not None]
        if self.local_key and unused:
            raise ValueError(f"{self.local_key} is read instead of the hub, so {', '.join(unused)} would do nothing; remove it")
        return self

    @property
    def local_key(self) -> str | None:
        """The configuration key that names files to read instead of the hub, or None.

        With such a key, nothing from the hub is read or recorded.
        """
        return "files" if self.files else None

    @property
    def origin(self) -> str:
        """The data set, or the first pattern of files, for messages."""
        return without_credentials(self.files[0]) if self.files else self.dataset

    @property
    def hub_config(self) -> str | None:
        return None if self.local_key else self.config

    def input_files(self) -> list[SourceFile]:
        return [file for _, files in self.files_at(None) for file in files] if self.files else []

    def revision(self, siblings: Siblings) -> str | None:
        if self.files:
            parts = self.files_at(None)
            return files_digest(file._replace(name=f"{part.split or 'all'}\0{file.name}") for part, files in parts for file in files)
        if self.local_key:
            return super().revision(siblings)
        from huggingface_hub import HfApi

        from niels_cache_assets.sources.net.transport import install

        install()
        with hub_errors(self.dataset, self.pinned_revision):
            return str(HfApi().dataset_info(self.dataset, revision=self.pinned_revision).sha)

    @property
    def reads_files(self) -> bool:
        """Whether the user's files are read, which may hold anything."""
        return self.local_key is not None

    @property
    def follows_the_hub(self) -> bool:
        """Whether the revision is the newest commit on the hub, because there is neither a pinned revision nor a local copy."""
        return self.pinned_revision is None and not self.local_key

    def describe(self) -> dict[str, Any]:
        location = {"local_files": True} if self.local_key else {"dataset": self.dataset, "split": self.split, "val_split": self.val_split}
        return {**super().describe(), **location}

    def shown_settings(self) -> dict[str, Any]:
        hidden = ("dataset", *_ONLY_OF_THE_HUB) if self.local_key else ()
        return {key: value for key, value in super().shown_settings().items() if key not in hidden}

    @property
    def has_own_splits(self) -> bool:
        return self.val_files is not None if self.files else self.val_split is not None

    def upstream_splits(self) -> list[UpstreamSplit]:
        """Return the parts to read.

        Val comes first, because it is small, and a token budget of train may end the stream.
        """
        has_val = bool(self.val_files) if self.files else self.val_split is not None
        if not has_val:
            return [UpstreamSplit(self.split, None, self.files)]
        return [UpstreamSplit(self.val_split or "", "val", self.val_files), UpstreamSplit(self.split, "train", self.files)]

    def file_pass(self, context: StreamContext, *, notes_empty: bool = True) -> FilePass:
        """Return the pass over the files of all parts.

        Raises:
            SourceUnavailableError: If the hub cannot be reached now.
            NielsCacheError: For the reasons of `files_at`.
        """
        found = [(file, part.split) for part, files in self.files_at(context.revision) for file in files]
        splits = [split for _, split in found]
        return FilePass([file for file, _ in found], context, splits=splits, notes_empty=notes_empty)

    def files_at(self, revision: str | None) -> list[tuple[UpstreamSplit, list[SourceFile]]]:
        """Return the parts with their files, in the order in which they are read: those of the hub at a commit, or local ones.

        Raises:
            SourceUnavailableError: If the hub cannot be reached now.
            NielsCacheError: If there is no such data set, configuration or split, or for the reasons of `find_splits`.
        """
        parts = self.upstream_splits()
        if self.files:
            return [*zip(parts, find_splits([part.files or [] for part in parts]), strict=True)]
        with hub_errors(self.dataset, revision):
            return [*zip(parts, _files_of_hub(self, parts, revision), strict=True)]

    def text_field_at(self, files: FilePass, context: StreamContext) -> str:
        """Return the text field for this pass, which is chosen from the train data.

        Raises:
            NielsCacheError: If the field is unclear.
        """

        def decide() -> str:
            with hub_errors(self.origin, context.revision):
                file, fields = self.fields_of(files.of_split(-1))
                if (field := find_text_column(fields)) is not None:
                    return field
                return choose_text_field([values for _, values in self._first_rows(file)], file.name, key=None)

        return text_field_of_pass(self, context, decide, given=None)  # type: ignore[arg-type,return-value]

    def fields_of(self, files: Sequence[SourceFile]) -> tuple[SourceFile, Collection[str]]:
        """Return the first of these files with rows, and the fields of its first rows.

        Raises:
            NielsCacheError: If no file has a row.
        """
        for file in files:
            if format_of([file.name]) == "parquet":
                with open_parquet(file) as parquet:
                    fields: Collection[str] = parquet.columns if parquet.rows else ()
            else:
                fields = string_fields(self._first_rows(file))
            if fields:
                return file, fields
        raise NielsCacheError(f"{files[0].name}: holds no row; it is empty or damaged")

    def _first_rows(self, file: SourceFile) -> RowStream:
        return first_rows(self._file_rows(file, FilePosition()), ROWS)

    def _file_rows(self, file: SourceFile, position: FilePosition, columns: Sequence[str] | None = None) -> RowStream:
        kind = format_of([file.name])
        chosen = {"columns": columns} if kind == "parquet" else {}
        return _READERS[kind](file, position, self.text_options, **chosen)

    def rows(
        self, files: FilePass, context: StreamContext, needed: Sequence[str], optional: Sequence[str] = ()
    ) -> Iterator[tuple[str, int, Values]]:
        """Yield (name of the file, row, values) for the unfinished files of the current split.

        Files without the first field are counted in the report.

        Args:
            files: The pass.
            context: The pass over the source.
            needed: The fields that the rows must have.
            optional: The other fields to read.

        Raises:
            SourceUnavailableError: If the hub cannot be reached now.
            NielsCacheError: If the data set cannot be read, or has no needed field.
        """
        with hub_errors(self.origin, context.revision):
            of_split = files.of_split(files.number)
            format_of([file.name for file in of_split], self.local_key or self.dataset)
            _, fields = self.fields_of(of_split)
            if missing := [name for name in needed if name not in fields]:
                raise NielsCacheError(f"{self.origin}: rows have no {' and no '.join(missing)} (they have: {', '.join(fields)})")
            yield from rows_of_files(files, partial(self._file_rows, columns=[*needed, *optional]), context, needed[0])


def hub_files(data: HubData, revision: str | None) -> list[ListedFile]:
    """Return the files of the configuration and the splits that are read, at a commit, in the order in which they are read.

    This sends one request to the hub for every 500 files.

    Raises:
        SourceUnavailableError: If the hub cannot be reached now.
        NielsCacheError: If the hub refuses access, or has no such data set, configuration, split or file.
    """
    found: list[ListedFile] = []
    with hub_errors(data.dataset, revision):
        from huggingface_hub import HfApi, RepoFile

        for part, files in data.files_at(revision):
            names = [file.name for file in files]
            for first in range(0, len(names), _NAMES_PER_REQUEST):
                requested = names[first : first + _NAMES_PER_REQUEST]
                entries = HfApi().get_paths_info(data.dataset, requested, revision=revision, repo_type="dataset")
                by_name = {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}
                if lost := [name for name in requested if name not in by_name]:
                    raise NielsCacheError(f"{data.dataset}: the hub lists {lost[0]}, but has no such file at {revision}; try again later")
                for entry in (by_name[name] for name in requested):
                    found.append(ListedFile(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else entry.blob_id, part.split))
    return found


def _files_of_hub(data: HubData, parts: Sequence[UpstreamSplit], revision: str | None) -> list[list[SourceFile]]:
    """Return the files of each part at a commit, as the hub's library resolves them.

    The library's log lines and progress bars are disabled, and so is its counting of downloads, which needs the network once more.
    """
    import datasets

    from niels_cache_assets.sources.net.transport import install

    install()
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # the library logs whole addresses with secrets; errors have the same facts
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    datasets.disable_progress_bars()
    try:
        config = datasets.load_dataset_builder(data.dataset, name=data.config, revision=revision).config
    except ValueError as error:
        if not re.search("Config name is missing|BuilderConfig .* not found", str(error)):
            raise
        configs = datasets.get_dataset_config_names(data.dataset, revision=revision)
        raise NielsCacheError(f"{data.dataset}: " + unknown_choice_message("config", data.config, configs)) from error
    default = type(config)()
    options = [name for name in vars(default) if name not in _NOT_OPTIONS and getattr(config, name) != getattr(default, name)]
    if options:
        told = ", ".join(f"{name} = {getattr(config, name)!r}" for name in options)
        raise NielsCacheError(
            f"{data.dataset}: its card tells the loader {told}, which is not read here; "
            "download the files, write them as JSON Lines or Parquet, and name them in files"
        )
    splits = config.data_files or {}
    found = []
    for part in parts:
        if part.upstream not in splits:
            raise NielsCacheError(f"{data.dataset}: " + unknown_choice_message("split", part.upstream, list(map(str, splits))))
        urls = dict.fromkeys(splits[part.upstream])
        found.append([SourceFile(url, re.sub(r"^hf://datasets/[^@]+@[^/]+/", "", url)) for url in urls])
    return found


def format_of(names: Sequence[str], where: str = "files") -> str:
    """Return the format of these files by their suffixes: "parquet", "json", "text" or "csv".

    Args:
        names: The names of the files.
        where: The data set, for the error.

    Raises:
        NielsCacheError: If the files have several formats, or a suffix is unknown.
    """
    formats = set()
    for name in names:
        name = re.sub(r"\.(gz|bz2|xz|zst)$", "", name)
        suffix = PurePosixPath(name).suffix.lower()
        if suffix not in _FORMATS:
            raise NielsCacheError(f"{name}: files of this kind are not read; name files that end in {', '.join(filter(None, _FORMATS))}")
        formats.add(_FORMATS[suffix])
    if len(formats) > 1:
        raise NielsCacheError(
            f"{where}: {' and '.join(sorted(formats))} files cannot be mixed in one data set; read one kind, or one split, in each table"
        )
    return formats.pop()
