"""A published build as its address shows it: the record, the meta.json of the cache, and all files that they list."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from niels_cache_runtime.cache.opening import listed_files
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.foreign_meta import is_foreign
from niels_cache_runtime.format.layout import META_NAME, SPLITS, Family, is_cache_file, shard_name
from niels_cache_runtime.format.meta import MOST_META_BYTES, Meta, content_sha256, parse_meta
from niels_cache_runtime.format.meta_keys import check_form
from niels_cache_runtime.format.place import place_problem
from niels_cache_runtime.remote.record import TOKENIZER, Record, RemoteFile, read_record
from niels_cache_runtime.remote.store import MissingError, Store

_SPLIT_FOLDERS = tuple(f"{split}/" for split in SPLITS)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published build.

    meta: of the cache. meta_content: its bytes. files: all files in order, with meta.json at the end.
    """

    family: Family
    name: str
    meta: Meta
    meta_content: bytes
    files: Sequence[RemoteFile]

    @property
    def tokenizer(self) -> list[RemoteFile]:
        """The files of the tokenizer. Empty for imported tokens, whose tokenizer is unknown."""
        return [file for file in self.files if file.path.startswith(TOKENIZER)]

    @property
    def data(self) -> list[RemoteFile]:
        """The files of the data set, without meta.json."""
        return [file for file in self.files if not file.path.startswith(TOKENIZER) and file.path != META_NAME]


def read_published(store: Store) -> Published:
    """Read the record and the meta.json at the address of a store. This costs two requests.

    Raises MissingError if nothing is published there. Raises NielsCacheError if both do not describe one cache.
    """
    record, _ = read_record(store)
    return published_of(record, read_meta_of(store, record), store.name_of(_meta_of(record).key))


def read_meta_of(store: Store, record: Record) -> bytes:
    """Return the bytes of the meta.json that a record names. Raises MissingError if it is gone."""
    file = _meta_of(record)
    where = store.name_of(file.key)
    try:
        return store.read(file.key, most_bytes=MOST_META_BYTES)[0]
    except MissingError:
        raise MissingError(f"{where}: the record names this object, but it is gone; push the cache again") from None


def _files_problem(files: Collection[str]) -> str | None:
    """Return one clause for a file that no cache has, such as the journal of a build, or a shard without the one before it."""
    counts = Counter(path.partition("/")[0] for path in files)
    shards = {f"{split}/{shard_name(number)}" for split in SPLITS for number in range(counts[split])}
    path = next((path for path in files if not is_cache_file(path) or (path.startswith(_SPLIT_FOLDERS) and path not in shards)), None)
    return None if path is None else f"`files` lists {path!r:.80}, which no cache has"


def _meta_of(record: Record) -> RemoteFile:
    return next(file for file in record.files_beside() if file.path == META_NAME)


def published_of(record: Record, content: bytes, where: str, *, in_place: bool = False) -> Published:
    """Return the build of a record. `content`: the bytes of the cache's meta.json, which was read at `where`.

    in_place: whether the files have their own paths as keys. Raises NielsCacheError if both do not describe one cache.
    """
    entry = record.beside[META_NAME]
    if len(content) != entry["bytes"] or hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise NielsCacheError(f"{where}: its content is not the one in the record; push the cache again")
    meta = check_form(parse_meta(content, where), where)
    if is_foreign(meta):
        raise NielsCacheError(f"{where}: is not the meta.json of a cache that niels-cache pushes; push the cache again")
    files = listed_files(meta, where)
    problem = _files_problem(files) or place_problem(meta, family=record.family, name=record.name)
    if content_sha256(files) != record.content_sha256 or meta.get("content_sha256") != record.content_sha256:
        problem = "its content_sha256 is not the one in the record"
    if meta.get("tokenizer_sha256") is not None and f"{TOKENIZER}{META_NAME}" not in record.beside:
        problem = "its tokenizer is not in the record"
    if problem:
        raise NielsCacheError(f"{where}: {problem}; push the cache again")
    return Published(
        family=record.family,
        name=record.name,
        meta=meta,
        meta_content=content,
        files=[file._replace(key=file.path) if in_place else file for file in record.files(meta)],
    )
