"""The caches to search: all caches of a root, with the parts of data sets, and published caches.

A published cache, in an object store or on the hub, is not copied as a whole. What describes it, its document ends and its tokenizer are
downloaded into a temporary folder, which is removed with the object. Its token files are downloaded one after the other while they are
searched; each is compared with its sha256, and at most two are kept. Its lineage is downloaded if something was found.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock

import numpy as np

from niels_cache_assets.disk.table_file import lineage_files
from niels_cache_assets.facts.lineage import Lineage, read_lineage
from niels_cache_assets.facts.split_tokens import SplitTokens
from niels_cache_assets.publish.hub import SCHEME, address_at, open_repository
from niels_cache_assets.tokenizer.decoding import open_tokenizer
from niels_cache_assets.tokenizer.kinds import TextTokenizer, built_model
from niels_cache_inspection.find.index import TokenIndex, open_index
from niels_cache_runtime.cache.mmap import MappedTokens
from niels_cache_runtime.cache.opening import short_sha256
from niels_cache_runtime.errors import NielsCacheError, did_you_mean
from niels_cache_runtime.format.layout import (
    FAMILIES,
    META_NAME,
    SPLITS,
    Family,
    Split,
    Tokens,
    built_names,
    dataset_dir,
    doc_ends_name,
    documents_folder,
    documents_name,
    examples_name,
    idx_name,
    is_shard_name,
    parts_root,
    token_dtype_of,
    tokenizer_dir,
    tokens_name,
)
from niels_cache_runtime.format.meta import Meta, is_foreign, load_meta, read_meta
from niels_cache_runtime.remote.download import ObjectSource, append_file
from niels_cache_runtime.remote.record import TOKENIZER, PublishedBuild, RemoteFile, read_published
from niels_cache_runtime.remote.store import open_store

_KEPT_FILES = 2  # token files of a published cache that are here at a time


@dataclass(frozen=True, kw_only=True)
class SearchableCache:
    """A cache to search.

    Attributes:
        dataset: The name of the data set. For a part of a data set, `NAME/PART`.
        family: The family.
        directory: The folder of the cache. For a published cache, a temporary folder without its tokens.
        meta: Its meta.json.
        root: The cache root, which has the tokenizer.
        published: The published cache, or None.
    """

    dataset: str
    family: Family
    directory: Path
    meta: Meta
    root: Path
    published: "PublishedCache | None" = None

    @property
    def address(self) -> str | None:
        """The address of a published cache, otherwise None."""
        return None if self.published is None else self.published.address

    def open(self, split: Split) -> SplitTokens | None:
        """Return the tokens of a split, or None if it has none.

        Raises:
            NielsCacheError: If a file is missing or damaged.
        """
        shards = None
        if self.published is not None:
            self.published.fetch((doc_ends_name(split), idx_name(split)))
            shards = self.published.shards(split)
        expected = self.meta.get(f"{split}_tokens")
        if self.family == "sft" and shards is None and not expected and not (self.directory / tokens_name(split)).exists():
            return None
        tokens = SplitTokens(self.directory, self.family, split, self.meta, shards=shards)
        if expected not in (None, len(tokens)):
            raise NielsCacheError(
                f"{self.directory}: {split} has {len(tokens):,} tokens, but meta.json says {expected:,}; rebuild this data set"
            )
        return tokens if len(tokens) else None

    def token_hashes(self) -> set[str]:
        """Return the sha256 of each file of tokens."""
        return {entry["sha256"] for path, entry in (self.meta.get("files") or {}).items() if path.endswith(".bin") and entry["bytes"]}

    @cached_property
    def tokenizer(self) -> TextTokenizer | str:
        """The tokenizer that made the tokens, or the reason why there is none."""
        used = self.meta.get("tokenizer_sha256")
        if self.published is not None:
            self.published.fetch((TOKENIZER,))
        if used is None:
            return "no meta.json names its tokenizer"
        path = tokenizer_dir(self.root) / META_NAME
        current = read_meta(path).get("sha256") if path.exists() else None
        if current != used or not built_model(path.parent).exists():
            return f"its tokenizer {short_sha256(used)} is not in {path.parent}"
        return open_tokenizer(self.root)

    @cached_property
    def index(self) -> TokenIndex | None:
        """Its index, or None if it has none of these tokens that can be read."""
        with suppress(NielsCacheError):
            return None if self.published is not None else open_index(self.directory)
        return None

    def lineage(self, split: Split, documents: Iterable[int]) -> Mapping[int, Lineage]:
        """Return the lineage of documents or examples, which is empty if the cache has no lineage."""
        name = documents_name(split) if self.family == "pretrain" else examples_name(split)
        if self.published is not None:
            self.published.fetch((name, f"{documents_folder(split)}/"))
        path = self.directory / name
        if not all(table.path.exists() for table in lineage_files(path, self.meta)):
            return {}
        return read_lineage(path, documents, self.meta)


class PublishedCache:
    """A published cache, whose files come into a temporary folder when they are needed.

    Args:
        address: Its address.

    Raises:
        NielsCacheError: If nothing is published there.
        RemoteError: If the store refuses or does not answer.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._source: ObjectSource
        self.build: PublishedBuild
        if address.startswith(SCHEME):
            self.build, self._source = open_repository(address_at(address))
        else:
            self.build = read_published(store := open_store(address))
            self._source = store
        self._folder = TemporaryDirectory(prefix="niels-cache-", ignore_cleanup_errors=True)
        self._stopped = Event()
        self._kept, self._lock = OrderedDict[str, Tokens](), Lock()
        self._root = Path(self._folder.name)
        self._directory = dataset_dir(self._root, self.build.family, self.build.name)
        self._directory.mkdir(parents=True)
        (self._directory / META_NAME).write_bytes(self.build.meta_content)

    def describe(self) -> SearchableCache:
        """Return the cache to search."""
        return SearchableCache(
            dataset=self.build.name,
            family=self.build.family,
            directory=self._directory,
            meta=self.build.meta,
            root=self._root,
            published=self,
        )

    def fetch(self, paths: tuple[str, ...]) -> None:
        """Download the files with these paths, or below these folders, that are not here yet."""
        for file in self.build.files:
            target = self._path(file)
            if file.path.startswith(paths) and not target.exists():
                append_file(self, file, target)

    def name_of(self, key: str) -> str:
        """Return the address of a file, for messages."""
        return self._source.name_of(key)

    def stream(self, key: str, *, start: int = 0) -> Iterator[memoryview]:
        """Yield the content of a file, until `stop`."""
        for piece in self._source.stream(key, start=start):
            if self._stopped.is_set():
                raise NielsCacheError(f"{self.address}: the search was stopped")
            yield piece

    def stop(self) -> None:
        """End downloads in other threads, for which the process would wait at its end."""
        self._stopped.set()

    def _path(self, file: RemoteFile) -> Path:
        return (self._root if file.path.startswith(TOKENIZER) else self._directory) / file.path

    def shards(self, split: Split) -> list["FetchedTokens"]:
        """Return the token files of a split in order. Each is downloaded when it is read."""
        if self.build.family == "sft":
            files = [file for file in self.build.data if file.path == tokens_name(split)]
        else:
            shards = [file for file in self.build.data if file.path.startswith(f"{split}/") and is_shard_name(Path(file.path).name)]
            files = sorted(shards, key=lambda file: (len(file.path), file.path))
        return [FetchedTokens(self, file, token_dtype_of(self.build.meta)) for file in files]

    def tokens(self, file: RemoteFile, dtype: np.dtype) -> Tokens:
        """Return the tokens of a file, which is downloaded if it is not here."""
        with self._lock:
            found = self._kept.get(file.path)
            if found is None:
                path = self._path(file)
                append_file(self, file, path)
                [found] = MappedTokens([path], dtype=dtype).shards
                path.unlink()  # it stays mapped
                self._kept[file.path] = found
                if len(self._kept) > _KEPT_FILES:
                    self._kept.popitem(last=False)
            return found


@dataclass(frozen=True)
class FetchedTokens:
    """A file of tokens of a published cache. A slice is an array of tokens."""

    cache: PublishedCache
    file: RemoteFile
    dtype: np.dtype

    def __len__(self) -> int:
        return self.file.size // self.dtype.itemsize

    def __getitem__(self, part: slice) -> Tokens:
        return self.cache.tokens(self.file, self.dtype)[part] if len(self) else np.empty(0, self.dtype)


def caches_of(root: str | Path, published: Collection[str] = (), *, only: Collection[str] = ()) -> list[SearchableCache]:
    """Return all caches of a root: data sets, then parts of data sets, then the published caches at these addresses.

    Args:
        root: The cache root. A data set that is switched off has no cache.
        published: Addresses of published data sets, in an object store or on the hub.
        only: Names of data sets; none means all.

    Raises:
        NielsCacheError: If a meta.json is damaged, if nothing is published at an address, or if there is no data set of a name.
    """
    root, found = Path(root), list[SearchableCache]()
    folders = [(family, name, dataset_dir(root, family, name)) for family in FAMILIES for name in built_names(root / family)]
    for dataset in sorted(parts_root(root).glob("[!.]*")):
        folders += [("pretrain", f"{dataset.name}/{part}", dataset / part) for part in built_names(dataset)]
    for family, name, directory in folders:
        meta = load_meta(directory / META_NAME)
        if meta.get("built") is not False and _has_tokens(directory, family, meta):
            found.append(SearchableCache(dataset=name, family=family, directory=directory, meta=meta, root=root))
    found += [PublishedCache(address).describe() for address in published]
    if not found:
        raise NielsCacheError(f"{root}: has no caches; build some first, or choose another --cache-dir")
    names = {cache.dataset.partition("/")[0] for cache in found}
    if unknown := [name for name in only if name not in names]:
        known = f"it has {', '.join(sorted(names))}"
        raise NielsCacheError(f"{root}: no cache of {unknown[0]}; {did_you_mean(unknown[0], names, known)}")
    return [cache for cache in found if not only or cache.dataset.partition("/")[0] in only]


def _has_tokens(directory: Path, family: Family, meta: Meta) -> bool:
    """Return whether a folder with this meta.json is a cache of tokens. The plan of a data set in parts is none."""
    if is_foreign(meta):
        return any((directory / split).is_dir() or (directory / tokens_name(split)).exists() for split in SPLITS)
    return meta.get("kind") == family
