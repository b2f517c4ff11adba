"""Everything about streaming from the Hugging Face hub, or from a local mirror through the same loading code.

`HubData` holds the keys of such a table, resolves the upstream commit and streams rows in Arrow batches, with the file and row that each
came from, also through Hugging Face's shuffle. What rows mean belongs to the sources. Cost: about 8 µs a row of 2 KB, shuffled; memory is
the shuffle buffer, plus a compressed row group's columns and a thousand rows of each of up to ten files.
"""

from __future__ import annotations

import glob
import gzip
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from pydantic import Field

from niels_cache_assets.sources.base import ConfigPath, PretrainSource, StreamContext
from niels_cache_assets.sources.files import files_digest, find_files
from niels_cache_assets.sources.hub_errors import hub_errors, nearest
from niels_cache_assets.sources.limits import LimitsDocuments, refuse_length
from niels_cache_assets.sources.network import install, shown
from niels_cache_assets.sources.rows import column_values, is_string_type, refuse_long_lines
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import Split

ITER_ROWS = 1024  # rows turned into Python values at once; smaller batches cost more per row
_LOADERS = {".parquet": "parquet"} | dict.fromkeys((".jsonl", ".json", ".ndjson"), "json")
_LOADERS |= dict.fromkeys((".txt", ".raw", ".tokens", ".md", ""), "text")
_FILE, _ROW = "__niels_cache_file", "__niels_cache_row"


class HubRows(NamedTuple):
    """A batch of rows as columns, with the file (relative to the repository or the files' folder) and row of each."""

    columns: dict[str, list[Any]]
    files: list[str]
    rows: list[int]


class Part(NamedTuple):
    """One upstream split to read, and the split that its rows keep (None: split by the builder)."""

    upstream: str
    split: Split | None
    files: list[str] | None


class HubData(LimitsDocuments):
    """Keys of tables that read a hub data set. With `files` the same loading code reads local files instead, and the hub is not asked."""

    dataset: str = Field(description="Hub data set, owner/name")
    config: str | None = Field(None, description="Configuration (subset) of the data set")
    split: str = Field("train", description="Upstream split to read")
    val_split: str | None = Field(None, description="Upstream split that becomes val; None splits by val_frac or budgets")
    pinned_revision: str | None = Field(None, description="Git commit, tag or branch; None takes the newest commit of main")
    files: list[ConfigPath] | None = Field(None, description="Globs of local .parquet, .jsonl or text files to read instead of the hub")
    val_files: list[ConfigPath] | None = Field(None, description="Globs of local files that become val; needs files")

    def missing_setting(self) -> str | None:
        return "files (val_files alone has no train split)" if self.val_files and not self.files else None

    def revision(self, siblings: Mapping[str, PretrainSource]) -> str | None:
        if self.files:
            parts = [(part.split or "all", find_files(part.files or [])) for part in self.parts()]
            return files_digest(file._replace(name=f"{split}\0{file.name}") for split, files in parts for file in files)
        from huggingface_hub import HfApi

        install()
        with hub_errors(self.dataset, self.pinned_revision):
            return str(HfApi().dataset_info(self.dataset, revision=self.pinned_revision).sha)

    def describe(self) -> dict[str, Any]:
        location = {"local_files": True} if self.files else {"dataset": self.dataset, "split": self.split, "val_split": self.val_split}
        return {**super().describe(), **location}

    @property
    def has_own_splits(self) -> bool:
        return self.val_files is not None if self.files else self.val_split is not None

    def parts(self) -> list[Part]:
        """What to read, val first: it is small, and a train budget may end the stream."""
        if self.files and self.val_files:
            return [Part("validation", "val", self.val_files), Part("train", "train", self.files)]
        if self.files:
            return [Part("train", None, self.files)]
        if self.val_split is not None:
            return [Part(self.val_split, "val", None), Part(self.split, "train", None)]
        return [Part(self.split, None, None)]

    def stream(
        self,
        part: Part,
        context: StreamContext,
        choose_columns: Callable[[dict[str, bool]], list[str]],
        *,
        shuffle_buffer: int = 0,
        keep_linebreaks: bool = False,
        start: tuple[str, int] | None = None,
    ) -> Iterator[HubRows]:
        """Rows of a part in batches, lazily. `choose_columns` gets {field: holds strings} and returns the fields to read.

        `keep_linebreaks` is for plain text files, whose rows are lines. `start`: the file and row to begin at, without a shuffle; files
        before it are not opened. Closing the iterator early is quick.
        """
        with hub_errors(shown(self.files[0]) if self.files else self.dataset, context.revision):
            dataset, names = _open(self, part, context, choose_columns, keep_linebreaks, start)
            if shuffle_buffer:
                dataset = dataset.shuffle(seed=context.seed, buffer_size=shuffle_buffer)
            # Arrow where the schema is known: plain iteration does the same inside, so the order is the same at a quarter of the cost.
            batches = (dataset.with_format("arrow") if dataset.features is not None else dataset).iter(ITER_ROWS)
            try:
                for batch in batches:
                    columns = batch if isinstance(batch, dict) else {name: _values(batch[name]) for name in batch.column_names}
                    files, rows = [names[index] for index in columns.pop(_FILE)], columns.pop(_ROW)
                    for values in columns.values():
                        for index, value in enumerate(values):
                            if type(value) is str and len(value) > self.max_document_bytes:
                                refuse_length(f"{files[index]}: row {rows[index]}", self.max_document_bytes)
                    yield HubRows(columns, files, rows)
            finally:
                batches.close()


def _datasets() -> Any:
    """The datasets library, quiet, and without its five seconds of sleep whenever a shuffled Parquet stream ends or is closed.

    The sleep works around a crash of Arrow versions before 24 (apache/arrow#45214). Counting loads of local files would ask the network.
    """
    import datasets

    install()
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # it logs addresses whole, with what is secret in them; errors say the same
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
    datasets.disable_progress_bars()
    return datasets


def _open(
    data: HubData,
    part: Part,
    context: StreamContext,
    choose_columns: Callable[[dict[str, bool]], list[str]],
    keep_linebreaks: bool,
    start: tuple[str, int] | None,
) -> tuple[Any, list[str]]:
    """The part as an IterableDataset of the chosen columns, file index and row; and the names behind the file indices."""
    datasets = _datasets()
    local_names = {}
    settings: dict[str, Any] = {}
    if part.files is None:
        path = data.dataset
        settings = {"name": data.config, "revision": context.revision}
    else:
        found = find_files(part.files)
        local_names = {file.url: file.name for file in found}
        path = _format_of([file.name for file in found])
        settings = {"data_files": {part.upstream: [url if "://" in url else glob.escape(url) for url in local_names]}}
        if path != "parquet":
            for file in found:
                refuse_long_lines(file, data.max_document_bytes)  # the loaders hold any line whole
        if path == "text":
            settings |= {"keep_linebreaks": keep_linebreaks, "encoding_errors": "replace"}
    builder = _builder(datasets, data, path, settings)
    dataset = _split(builder.as_streaming_dataset(), part, data)
    columns = choose_columns(_fields(dataset))
    if hasattr(builder.config, "on_mixed_types"):
        _decode_late_json(builder)
    if not hasattr(builder.config, "columns"):
        return _with_origin(dataset, columns, local_names, start)
    builder = _builder(datasets, data, path, {**settings, "columns": columns})  # Parquet: other columns are not even downloaded
    dataset = _split(builder.as_streaming_dataset(), part, data)
    return _with_origin(dataset, columns, local_names, start, _parquet_tables(builder))


def _values(column: Any) -> list[Any]:
    """The Python values of a column; of one that the JSON loader encoded because its types are mixed, what the file holds.

    The loader does not encode strings that are JSON already, so the string "6" cannot be told from the number.
    """
    import pyarrow as pa

    if isinstance(column.type, pa.JsonType):
        return [_decoded(value) for value in column.to_pylist()]
    return column_values(column)


def _decoded(value: str | None) -> Any:
    try:
        return None if value is None else json.loads(value)
    except (ValueError, RecursionError):
        return value


def _decode_late_json(builder: Any) -> None:
    """Decode columns whose types turn out to be mixed after the first 10 MB, when the schema says string already.

    The loader hands them on JSON-encoded and unmarked. Strings are kept; the schema has no place for the rest, which become null.
    """
    import pyarrow as pa
    from datasets import Json

    cast = builder._cast_table

    def decoding(table: Any, json_field_paths: Any = ()) -> Any:
        for name in {path[0] for path in json_field_paths if len(path) == 1} & set(table.column_names):
            if not isinstance((builder.info.features or {}).get(name), Json):
                values = [_decoded(value) for value in table[name].to_pylist()]
                strings = pa.array([value if isinstance(value, str) else None for value in values], pa.string())
                table = table.set_column(table.column_names.index(name), name, strings)
        if builder.info.features is None:
            json_field_paths = [path for path in json_field_paths if len(path) > 1]
        return cast(table, json_field_paths=json_field_paths)

    builder._cast_table = decoding


def _parquet_tables(builder: Any) -> Callable[..., Iterator[tuple[Any, Any]]]:
    """What the Parquet loader yields, a thousand rows at a time: row groups may be large.

    The loader's own scanner runs ahead of a slow reader by up to 1 GiB of decoded text, whatever it is told; and to tokenize is slow.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import DownloadConfig
    from datasets.utils.file_utils import xopen

    download = DownloadConfig(token=builder.token, storage_options=builder.storage_options)

    def tables(files: list[str], **_: Any) -> Iterator[tuple[Any, pa.Table]]:
        for index, file in enumerate(files):
            with xopen(file, "rb", download_config=download) as stream:
                parquet = pq.ParquetFile(stream, pre_buffer=False)  # pre-buffered, memory grows with the file
                number = 0
                for group in range(parquet.num_row_groups):
                    for batch in parquet.iter_batches(ITER_ROWS, row_groups=[group], columns=builder.config.columns):
                        yield (index, number), builder._cast_table(pa.Table.from_batches([batch]))
                        number += 1

    return tables


def _builder(datasets: Any, data: HubData, path: str, settings: dict[str, Any]) -> Any:
    try:
        return datasets.load_dataset_builder(path, **settings)
    except ValueError as error:
        if data.files or not re.search("Config name is missing|BuilderConfig .* not found", str(error)):
            raise
        configs = datasets.get_dataset_config_names(data.dataset, revision=settings["revision"])
        raise NielsCacheError(f"{data.dataset}: " + nearest("config", data.config, configs)) from error


def _split(splits: Any, part: Part, data: HubData) -> Any:
    if part.upstream not in splits:
        raise NielsCacheError(f"{data.dataset}: " + nearest("split", part.upstream, list(splits)))
    return splits[part.upstream]


def _format_of(names: list[str]) -> str:
    """Name of the loader of these files, by their suffixes."""
    formats = {_loader(re.sub(r"\.(gz|bz2|xz|zst)$", "", name)) for name in names}
    if len(formats) > 1:
        raise NielsCacheError(f"files: {' and '.join(sorted(formats))} files cannot be mixed in one data set; narrow the globs")
    return formats.pop()


def _loader(name: str) -> str:
    suffix = PurePosixPath(name).suffix.lower()
    if suffix not in _LOADERS:
        raise NielsCacheError(f"{name}: files of this kind are not read; name files that end in {', '.join(filter(None, _LOADERS))}")
    return _LOADERS[suffix]


def _fields(dataset: Any) -> dict[str, bool]:
    """{field: holds strings}; read from the first row where the loader does not know (text files)."""
    if dataset.features is not None:
        return {name: is_string_type(kind.type) for name, kind in zip(dataset.features, dataset.features.arrow_schema, strict=True)}
    first: dict[str, Any] = next(iter(dataset), {})
    return {name: isinstance(value, str) for name, value in first.items()}


def _with_origin(
    dataset: Any,
    columns: list[str],
    local_names: dict[str, str],
    start: tuple[str, int] | None,
    read_tables: Callable[..., Iterator[tuple[Any, Any]]] | None = None,
) -> tuple[Any, list[str]]:
    """The data set with two more columns: index of the file, and row in that file.

    Hugging Face's streams do not say where a row came from, and nothing public sits between the file reader and the shuffle. So the
    function that yields a file's Arrow tables (the loader's, or `read_tables`) is wrapped; the order after a shuffle stays the same. What
    comes before `start` is left out.
    """
    import pyarrow as pa
    from datasets import Features, IterableDataset, Value
    from datasets.iterable_dataset import ArrowExamplesIterable

    inner = dataset._ex_iterable
    if not isinstance(inner, ArrowExamplesIterable):
        raise NielsCacheError("this data set is not made of rows of text; choose one in Parquet, JSON, CSV or text files")
    urls = _shard_urls(inner.kwargs)
    in_repository = re.compile(r"^hf://datasets/[^@]+@[^/]+/")
    names = [local_names.get(url) or in_repository.sub("", url) for url in urls]
    index_of = {url: index for index, url in enumerate(urls)}
    first, first_row = (names.index(start[0]), start[1]) if start else (0, 0)

    # Of a hub's files an OSError may be the network, which hub_errors tells apart.
    damaged = (pa.ArrowException, ValueError, EOFError, zlib.error, OSError if local_names else gzip.BadGzipFile)

    def tables_with_origin(**kwargs: Any) -> Iterator[tuple[Any, pa.Table]]:
        shards = _shard_urls(kwargs)
        left = [shard for shard, url in enumerate(shards) if index_of[url] >= first]
        if not left:
            return
        kwargs = {name: [value[shard] for shard in left] if isinstance(value, list) else value for name, value in kwargs.items()}
        shards = [shards[shard] for shard in left]
        current, row = 0, 0
        try:
            for key, table in (read_tables or inner.generate_tables_fn)(**kwargs):
                shard = key[0] if isinstance(key, tuple) else key.original_shard_id
                if shard != current:
                    current, row = shard, 0
                index, end = index_of[shards[shard]], row + len(table)
                before = min(first_row - row, len(table)) if index == first and row < first_row else 0
                row += before
                table = table.select(columns).slice(before)
                if len(table) or not before:
                    table = table.append_column(_FILE, pa.repeat(pa.scalar(index, pa.int32()), len(table)))
                    yield key, table.append_column(_ROW, pa.array(range(row, end), pa.int64()))
                row = end
        except NielsCacheError:
            raise
        except damaged as error:
            raise NielsCacheError(f"{names[index_of[shards[current]]]}: damaged, or not in the format its name says ({error})") from error

    info = dataset.info.copy()
    if info.features is not None:
        kept = {name: info.features[name] for name in columns}
        info.features = Features({**kept, _FILE: Value("int32"), _ROW: Value("int64")})
    traced = ArrowExamplesIterable(tables_with_origin, inner.kwargs, sleep_on_threads_shutdown=inner.sleep_on_threads_shutdown)
    return IterableDataset(traced, info=info, split=dataset.split, token_per_repo_id=dataset._token_per_repo_id), names


def _shard_urls(kwargs: dict[str, Any]) -> list[str]:
    """The files of a loader's arguments: Parquet calls them files, JSON, CSV and text base_files."""
    return list(kwargs.get("base_files") or kwargs["files"])
