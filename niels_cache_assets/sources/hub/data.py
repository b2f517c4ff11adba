"""Streaming from the Hugging Face hub, or from local files through the same loading code.

`HubData` has the configuration keys of such a data set, resolves the upstream commit and streams rows in Arrow batches. Each row comes with
its file and row number, even after Hugging Face's shuffle. The subclasses define what the columns of a row mean.

A row of 2 KB costs about 8 µs with a shuffle. In memory are the columns of a compressed row group, and about 64 MB of rows or one longer
row. A shuffle also needs memory for its buffer and for a thousand rows of any length.
"""

import glob
import logging
import re
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import IO, Any, NamedTuple, Self

from pydantic import model_validator

from niels_cache_assets.base.documents import SourceReport
from niels_cache_assets.base.first_bytes import describe_content, detect_content
from niels_cache_assets.sources.errors import without_credentials
from niels_cache_assets.sources.hub import tables as hub_tables
from niels_cache_assets.sources.hub.errors import hub_errors, unknown_choice_message
from niels_cache_assets.sources.reading.compressed import decompressed
from niels_cache_assets.sources.reading.encodings import NO_DAMAGE, UTF8, Damage, DecodesText, Values, damage_of, encoding_of, refuse_length
from niels_cache_assets.sources.reading.files import (
    SourceFile,
    file_errors,
    files_digest,
    find_splits,
    first_bytes,
    open_bytes,
    open_seekable,
)
from niels_cache_assets.sources.reading.parquet_files import may_hold_text
from niels_cache_assets.sources.reading.positions import UpstreamSplit
from niels_cache_assets.sources.reading.rows import refuse_long_lines
from niels_cache_assets.sources.text_column import ROWS, choose_text_field, find_text_column, require_field, text_field_of_pass
from niels_cache_assets.sources.types import ConfigPath, ListedFile, Siblings, StreamContext
from niels_cache_runtime.errors import NielsCacheError

_ONLY_OF_THE_HUB = ("config", "split", "val_split", "pinned_revision")
_NAMES_PER_REQUEST = 500

ChooseColumns = Callable[[dict[str, bool]], list[str]]  # takes {field: whether it holds strings}, and returns the fields to read


class HubBatch(NamedTuple):
    """A batch of rows as columns.

    Attributes:
        columns: The values of each column.
        files: The file of each row, relative to the repository or to the folder of the local files.
        rows: The number of each row in its file.
        damaged: The replaced bytes in the texts of a row, by the index of the row in the batch. Rows without damage have no entry.
    """

    columns: dict[str, list[Any]]
    files: list[str]
    rows: list[int]
    damaged: dict[int, Damage]


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
    """Globs of local .parquet, .jsonl or text files to read instead of the hub data set"""
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
        return [file for _, files in self.files_by_part() for file in files]

    def files_by_part(self) -> list[tuple[UpstreamSplit, list[SourceFile]]]:
        """Return the parts to read with their files, or an empty list without the key `files`.

        Raises:
            NielsCacheError: For the reasons of `find_splits`.
        """
        if not self.files:
            return []
        parts = self.upstream_splits()
        return [*zip(parts, find_splits([part.files or [] for part in parts]), strict=True)]

    def revision(self, siblings: Siblings) -> str | None:
        if self.files:
            parts = self.files_by_part()
            return files_digest(file._replace(name=f"{part.split or 'all'}\0{file.name}") for part, files in parts for file in files)
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
        if self.files and self.val_files:
            return [UpstreamSplit("validation", "val", self.val_files), UpstreamSplit("train", "train", self.files)]
        if self.files:
            return [UpstreamSplit("train", None, self.files)]
        if self.val_split is not None:
            return [UpstreamSplit(self.val_split, "val", None), UpstreamSplit(self.split, "train", None)]
        return [UpstreamSplit(self.split, None, None)]

    def text_field_at(
        self, fields: Mapping[str, bool], part: UpstreamSplit, context: StreamContext, *, key: str | None = "text_field"
    ) -> str:
        """Return the text field for this pass, which is chosen from the train data.

        Args:
            fields: For each field of `part`, whether it holds strings.
            part: The part that is read.
            context: The pass.
            key: The configuration key that names the field, or None if the source has no such key.

        Raises:
            NielsCacheError: If the field is unclear, or missing in `part`.
        """
        given = getattr(self, key) if key else None
        train = self.upstream_splits()[-1]

        def decide() -> str:
            if given is None and part == train and (field := find_text_column(fields)) is not None:
                return field
            return given or choose_text_field(*self._first_rows(train, context), key=key)

        field = text_field_of_pass(self, context, decide, given=given)  # type: ignore[arg-type]
        assert field is not None
        require_field(field, fields, self.origin, key=key)
        return field

    def require_fields(self, needed: Sequence[str], fields: Mapping[str, bool]) -> None:
        """Check that the rows have all needed fields.

        Raises:
            NielsCacheError: If a field is missing.
        """
        if missing := [name for name in needed if name not in fields]:
            raise NielsCacheError(f"{self.origin}: rows have no {' and no '.join(missing)} (they have: {', '.join(fields)})")

    def _first_rows(self, part: UpstreamSplit, context: StreamContext) -> tuple[list[Values], str]:
        """Return the first rows of the first file of a part, and the name of this file."""
        found: list[Values] = []
        name = self.origin
        with closing(self.stream(part, replace(context, report=SourceReport()), list)) as batches:
            for columns, files, _, _ in batches:
                name = name if found else files[0]
                count = next((index for index, file in enumerate(files) if file != name), len(files))
                found += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)][:count]
                if count < len(files) or len(found) >= ROWS:
                    break
        return found[:ROWS], name

    def stream(
        self,
        part: UpstreamSplit,
        context: StreamContext,
        choose_columns: ChooseColumns,
        *,
        shuffle_buffer: int = 0,
        keep_linebreaks: bool = False,
        start: tuple[str, int] | None = None,
        texts: Collection[str] = (),
        without: set[str] | None = None,
    ) -> Generator[HubBatch]:
        """Yield rows of a part in batches, lazily. Closing the iterator early is quick.

        Args:
            part: The part to read.
            context: The pass.
            choose_columns: Chooses the fields to read.
            shuffle_buffer: The size of the shuffle buffer in rows. 0 does not shuffle.
            keep_linebreaks: Whether rows keep their line ends, for plain text files, where each row is a line.
            start: The file and row to begin at; only used without a shuffle. Files before this file are not opened.
            texts: The fields whose damage is reported. If empty, the first field is used.
            without: Receives the names of the files in which no row so far has the first field. Files that end without it are in the
                report.

        Raises:
            SourceUnavailableError: If the hub cannot be reached now.
            NielsCacheError: If the data set cannot be read.
        """
        with hub_errors(self.origin, context.revision):
            shuffled = shuffle_buffer > 0
            lacking = hub_tables.FilesWithoutText(context.report if without is not None else SourceReport())
            if without is not None:
                lacking.names = without
            dataset, names, recoded = _open(self, part, context, choose_columns, keep_linebreaks, start, lacking, by_bytes=not shuffled)
            if shuffled:
                dataset = dataset.shuffle(seed=context.seed, buffer_size=shuffle_buffer)
            batches = hub_tables.row_batches(dataset, shuffled=shuffled)
            counts_files = len(names) > 1 and len(self.upstream_splits()) == 1 and not shuffled
            try:
                for batch in batches:
                    marked: dict[str, dict[int, str]] = {}
                    columns = batch
                    if not isinstance(batch, dict):
                        columns = {}
                        for name in batch.column_names:
                            marked[name] = {}
                            columns[name] = hub_tables.values_of(batch[name], self.encoding, marked[name], recoded=recoded)
                    indices, rows = columns.pop(hub_tables.FILE), columns.pop(hub_tables.ROW)
                    damaged = hub_tables.damage_of_rows(columns.pop(hub_tables.DAMAGE, ()))
                    files = [names[index] for index in indices]
                    if counts_files:
                        context.report.share = indices[0] / len(names)
                    for values in columns.values():
                        for index in _longer(values, self.max_document_bytes):
                            refuse_length(f"{files[index]}: row {rows[index]}", self.max_document_bytes)
                    for name in texts or [*columns][:1]:
                        for index, text in marked.get(name, {}).items():
                            before, here = damaged.get(index, NO_DAMAGE), damage_of(text)
                            damaged[index] = Damage(before.size + here.size, before.characters + here.characters)
                    yield HubBatch(columns, files, rows, damaged)
            except Exception:
                raise
            except BaseException as interrupt:
                # An interrupt may come after the library has started a thread and before its pool has registered the thread. The thread
                # waits for work until the pool is deleted, and the process waits for the thread. The frames of the traceback would keep
                # the pool alive.
                interrupt.__context__ = None
                raise interrupt.with_traceback(None) from None
            finally:
                batches.close()

    def rows(
        self, part: UpstreamSplit, context: StreamContext, choose_columns: ChooseColumns, **settings: Any
    ) -> Iterator[tuple[Values, str, int, Damage]]:
        """Yield the rows of a part one by one; for the arguments, see `stream`.

        Yields:
            The values by column, the file, the number of the row in it, and the replaced bytes in the texts.
        """
        for columns, files, rows, damaged in self.stream(part, context, choose_columns, **settings):
            for index, (file, row, *values) in enumerate(zip(files, rows, *columns.values(), strict=True)):
                yield dict(zip(columns, values, strict=True)), file, row, damaged.get(index, NO_DAMAGE)


def hub_files(data: HubData, revision: str | None) -> list[ListedFile]:
    """Return the files of the configuration and the splits that are read, at a commit, in the order in which `stream` reads them.

    This sends one request to the hub for every 500 files.

    Raises:
        SourceUnavailableError: If the hub cannot be reached now.
        NielsCacheError: If the hub refuses access, or has no such data set, configuration, split or file.
    """
    found: list[ListedFile] = []
    with hub_errors(data.dataset, revision):
        datasets = _datasets()
        from huggingface_hub import HfApi, RepoFile

        splits = _builder(datasets, data, data.dataset, {"name": data.config, "revision": revision}).config.data_files or {}
        for part in data.upstream_splits():
            names = list(dict.fromkeys(hub_tables.file_name(url, {}) for url in _split(splits, part, data)))
            for first in range(0, len(names), _NAMES_PER_REQUEST):
                requested = names[first : first + _NAMES_PER_REQUEST]
                entries = HfApi().get_paths_info(data.dataset, requested, revision=revision, repo_type="dataset")
                by_name = {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}
                if lost := [name for name in requested if name not in by_name]:
                    raise NielsCacheError(f"{data.dataset}: the hub lists {lost[0]}, but has no such file at {revision}; try again later")
                for entry in (by_name[name] for name in requested):
                    found.append(ListedFile(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else entry.blob_id, part.split))
    return found


def _longer(values: Sequence[Any], limit: int) -> list[int]:
    """Return the positions of strings with more than `limit` characters. A column of short strings is checked by functions in C."""
    with suppress(TypeError):
        if max(map(len, values), default=0) <= limit:
            return []
    return [index for index, value in enumerate(values) if type(value) is str and len(value) > limit]


def _datasets() -> Any:
    """Return the datasets library, configured for this project.

    Its log lines and progress bars are disabled. So is a sleep of five seconds at the end of each shuffled Parquet stream, which works
    around a crash of Arrow versions before 24 (apache/arrow#45214). The library's counting of downloads is also disabled, because it needs
    the network even for local files.
    """
    import datasets
    import fsspec

    from niels_cache_assets.sources.net.transport import install

    install()
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # the library logs whole addresses with secrets; errors have the same facts
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
    datasets.disable_progress_bars()
    hub_tables.patch_null_rows()
    fsspec.compression.register_compression("zstd", _open_zstd, "zst", force=True)  # fsspec's own reader refuses windows above 128 MiB
    return datasets


def _open_zstd(stream: Any, mode: str = "rb", **settings: Any) -> IO[bytes]:
    """Open a zstd file for fsspec, which opens files of this library only for reading."""
    name = without_credentials(str(getattr(stream, "path", "") or getattr(stream, "name", "")))
    return decompressed(stream, f"{name.removesuffix('.zst')}.zst")


def _open(
    data: HubData,
    part: UpstreamSplit,
    context: StreamContext,
    choose_columns: ChooseColumns,
    keep_linebreaks: bool,
    start: tuple[str, int] | None,
    without: hub_tables.FilesWithoutText,
    *,
    by_bytes: bool,
) -> tuple[Any, list[str], bool]:
    """Return the part as an IterableDataset with the chosen columns, the file index and the row number.

    Returns:
        The data set, the file names by index, and whether the strings are `recoded` (see `hub_tables.values_of`).
    """
    datasets = _datasets()
    local_names = {}
    read_tables = None
    if part.files is None:
        path = data.dataset
        settings: dict[str, Any] = {"name": data.config, "revision": context.revision}
    else:
        found = next(files for each, files in data.files_by_part() if each == part)
        local_names = {file.url: file.name for file in found}
        path = format_of([file.name for file in found])
        settings = {"data_files": {part.upstream: [url if "://" in url else glob.escape(url) for url in local_names]}}
        for file in found:
            if not file.is_remote:
                require_content(file, path)
            if path != "parquet":
                refuse_long_lines(file, data.max_document_bytes)  # the loaders hold a whole line in memory
        if path == "text":
            read_tables = hub_tables.text_tables(local_names, data.encoding, keep_linebreaks=keep_linebreaks)
    builder = _builder(datasets, data, path, settings)
    recoded = part.files is not None and path == "json" and need_decoding(local_names, data.encoding)
    if recoded:
        hub_tables.patch_json_encoding(builder, local_names, data.encoding)
    dataset = _split(builder.as_streaming_dataset(), part, data)
    columns = choose_columns({"text": True} if read_tables else _fields(dataset))
    if hasattr(builder.config, "on_mixed_types"):
        hub_tables.patch_mixed_types(builder, without)
    if hasattr(builder.config, "columns"):  # for Parquet, only these columns are downloaded
        builder = _builder(datasets, data, path, {**settings, "columns": columns})
        dataset = _split(builder.as_streaming_dataset(), part, data)
        read_tables = hub_tables.parquet_tables(builder, local_names, by_bytes=by_bytes, without=without)
    return *hub_tables.with_origin(dataset, columns, local_names, start, read_tables, without=without), recoded


def _builder(datasets: Any, data: HubData, path: str, settings: dict[str, Any]) -> Any:
    try:
        return datasets.load_dataset_builder(path, **settings)
    except ValueError as error:
        if data.files or not re.search("Config name is missing|BuilderConfig .* not found", str(error)):
            raise
        configs = datasets.get_dataset_config_names(data.dataset, revision=settings["revision"])
        raise NielsCacheError(f"{data.dataset}: " + unknown_choice_message("config", data.config, configs)) from error


def _split(splits: Any, part: UpstreamSplit, data: HubData) -> Any:
    if part.upstream not in splits:
        raise NielsCacheError(f"{data.dataset}: " + unknown_choice_message("split", part.upstream, list(splits)))
    return splits[part.upstream]


def _fields(dataset: Any) -> dict[str, bool]:
    """Return for each field whether it holds strings. If the loader has no schema, this is determined from the first row."""
    if dataset.features is not None:
        return {name: may_hold_text(kind.type) for name, kind in zip(dataset.features, dataset.features.arrow_schema, strict=True)}
    first: Values = next(iter(dataset), {})
    return {name: isinstance(value, str) for name, value in first.items()}


_LOADERS = {".parquet": "parquet"} | dict.fromkeys((".jsonl", ".json", ".ndjson"), "json")
_LOADERS |= dict.fromkeys((".txt", ".raw", ".tokens", ".md", ""), "text")


def format_of(names: list[str]) -> str:
    """Return the name of the loader for these files, by their suffixes.

    Raises:
        NielsCacheError: If the files need different loaders, or a suffix is unknown.
    """
    formats = {_loader(re.sub(r"\.(gz|bz2|xz|zst)$", "", name)) for name in names}
    if len(formats) > 1:
        raise NielsCacheError(f"files: {' and '.join(sorted(formats))} files cannot be mixed in one data set; narrow the globs")
    return formats.pop()


def _loader(name: str) -> str:
    suffix = PurePosixPath(name).suffix.lower()
    if suffix not in _LOADERS:
        raise NielsCacheError(f"{name}: files of this kind are not read; name files that end in {', '.join(filter(None, _LOADERS))}")
    return _LOADERS[suffix]


def require_content(file: SourceFile, path: str) -> None:
    """Check the first bytes of a local file, because the loaders do not report what they found.

    Args:
        file: The file.
        path: The name of the loader.

    Raises:
        NielsCacheError: If the bytes are not of the kind that the loader reads.
    """
    with file_errors(file), open_seekable(file) if path == "parquet" else open_bytes(file, lambda damage: None) as stream:
        head = first_bytes(stream)
    found = detect_content(head)
    if not head or found is None or path == "text":
        return
    if found.what.startswith("an HTML page") or (found.what != "Parquet" if path == "parquet" else not found.is_text):
        raise NielsCacheError(f"{file.name}: not {'Parquet' if path == 'parquet' else 'JSON lines'}{describe_content(head)}")


def need_decoding(local_names: Mapping[str, str], encoding: str) -> bool:
    """Return whether at least one file is not UTF-8, which is all that the loader reads itself."""
    if encoding != UTF8:
        return True
    for file in map(SourceFile, local_names, local_names.values()):
        if not file.is_remote:
            with file_errors(file), open_bytes(file, lambda damage: None) as stream:  # damage is reported later, when the file is read
                if encoding_of(stream, UTF8) != UTF8:
                    return True
    return False
