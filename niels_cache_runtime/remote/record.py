"""The record of a published cache: the object `meta.json` at its address, which names the one build that readers use.

    ADDRESS/meta.json                                  the record; only this object ever changes
    ADDRESS/CONTENT_SHA256/train/shard_00000.bin       files that the build's content_sha256 covers
    ADDRESS/CONTENT_SHA256/beside/SHA256/meta.json     each other file, below its own sha256: meta.json, lineage, tokenizer/...

The key of every other object thus depends on its content, and two builds share a key only if they share its bytes. A record lists the
meta.json of the cache and the tokenizer's files. The cache's meta.json lists the other files, so a record stays small for any cache.
Together, the two describe the published build.

A build that machines without a common disk have written into the store in parts has other keys. Its record names the keys of the files that
it lists, among them `objects.json`, which has the keys of the files in meta.json:

    {"kind": "objects", "schema_version": 1, "objects": {"train/shard_00000.bin": {"bytes": ..., "key": ..., "sha256": ...}, ...},
     "objects_sha256": the sha256 of this object with an empty string here}

Each machine writes under keys of its own, so a file stays under the key where it was first written, and meta.json lists its logical name.
Reading objects.json costs one request, and about 250 bytes for each file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from niels_cache_runtime.cache.opening import listed_files
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    FAMILIES,
    META_NAME,
    SPLITS,
    Family,
    is_cache_file,
    is_tokenizer_file,
    name_in_train,
    shard_name,
)
from niels_cache_runtime.format.meta import (
    MAX_META_BYTES,
    Meta,
    canonical_json,
    content_sha256,
    is_foreign,
    is_hashed_content,
    location_problem,
    parse_meta,
    sha256_text,
    signed,
)
from niels_cache_runtime.format.meta_keys import check_form, is_count
from niels_cache_runtime.format.safe_open import name_problem
from niels_cache_runtime.remote.store import MissingError, Store

KIND = "published"
RECORD_VERSION = 1
OBJECTS_NAME = "objects.json"
OBJECTS_VERSION = 1
MAX_OBJECTS_BYTES = 1 << 27  # enough for the files of the largest meta.json
TOKENIZER = "tokenizer/"  # the folder of the tokenizer's files in `Record.beside`

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
_BESIDE = "beside"


class RemoteFile(NamedTuple):
    """A file of a published cache.

    Attributes:
        path: The path relative to the data set, or `tokenizer/...`.
        key: The key relative to the address.
        size: The size in bytes.
        sha256: The sha256 of the content.
    """

    path: str
    key: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """The record of a published build.

    Attributes:
        family: The family of the data set.
        name: The name of the data set.
        content_sha256: The content_sha256 in the build's meta.json.
        meta_sha256: The meta_sha256 in the build's meta.json.
        beside: The cache's `meta.json` and the files of its tokenizer (`tokenizer/...`), each with its "bytes" and "sha256". In a build
            with other keys, they also have a "key", and `objects.json` is among them.
        previous: The content_sha256 of builds that this address named before. Some may have been pruned.
        replaced: The key of the objects.json of the build that this address named before, if it has one. It stays until a prune after the
            next publication, because a loader may still read it.
    """

    family: Family
    name: str
    content_sha256: str
    meta_sha256: str
    beside: Mapping[str, Mapping[str, Any]]
    previous: tuple[str, ...] = ()
    replaced: str | None = None

    def is_same_build(self, other: Record | None) -> bool:
        """Return whether two records name the same files. Their `previous` may differ."""
        return other is not None and self.beside == other.beside and self.content_sha256 == other.content_sha256

    def after(self, found: Record | None) -> Record:
        """Return this record with the builds that the record before it has named."""
        older = () if found is None else (found.content_sha256, *found.previous)
        return replace(self, previous=tuple(each for each in dict.fromkeys(older) if each != self.content_sha256))

    def content(self) -> bytes:
        """Return the bytes of the record. Equal records give equal bytes."""
        record = {"kind": KIND, "schema_version": RECORD_VERSION, **asdict(self), "previous": list(self.previous)}
        return signed(record, "record_sha256")

    def files_beside(self) -> list[RemoteFile]:
        """Return the files that the record itself lists: the tokenizer's files, then the cache's meta.json."""
        paths = sorted(self.beside, key=lambda path: (path == META_NAME, path))
        return [_file(self, path, self.beside[path], is_covered=False) for path in paths]

    def files(self, meta: Meta) -> list[RemoteFile]:
        """Return all files of the build, in order: the files that the cache's meta.json lists, then `files_beside`."""
        listed = [_file(self, path, entry, is_covered=is_hashed_content(path)) for path, entry in sorted(meta["files"].items())]
        return [*listed, *self.files_beside()]


def read_record(store: Store) -> tuple[Record, str | None]:
    """Return the record at the address of a store, and its state for `Store.write_if`.

    Raises:
        MissingError: If there is no record.
        NielsCacheError: If the object is not a record of this version.
    """
    name = store.name_of(META_NAME)
    try:
        found = store.get(META_NAME, most_bytes=MAX_META_BYTES)
    except MissingError:
        raise MissingError(f"{store.address}: no published cache here; check the address, or push one") from None
    return parse_record(found.content, name), found.state


def record_at(store: Store) -> tuple[Record | None, str | None]:
    """Return the record at the address of a store, and its state. Both are None if there is no record."""
    try:
        return read_record(store)
    except MissingError:
        return None, None


def parse_record(content: bytes, name: str) -> Record:
    """Parse the bytes of a record.

    Args:
        content: The bytes.
        name: The address or path of the record, for messages.

    Raises:
        NielsCacheError: If the bytes are not a record of this version.
    """
    try:
        return _parsed(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        problem = str(error) if isinstance(error, NielsCacheError) else "is not the record of a published cache"
        raise NielsCacheError(f"{name}: {problem}; give another address") from error


def _verified(content: bytes | str, kind: str, version: int, key: str) -> Meta:
    """Return a record that `signed` has made.

    Raises:
        ValueError: If it is not a record of this kind and version, or was changed. An error with a message is a NielsCacheError.
    """
    record = json.loads(content)
    if record["kind"] != kind or type(record["schema_version"]) is not int:
        raise ValueError
    if record["schema_version"] > version:
        raise NielsCacheError(f"schema_version {record['schema_version']} is newer than {version}; upgrade niels-cache")
    if sha256_text(canonical_json({**record, key: ""})) != record[key]:
        raise NielsCacheError(f"does not match its {key} (edited by hand?)")
    return record


def _file(record: Record, path: str, entry: Mapping[str, Any], *, is_covered: bool) -> RemoteFile:
    below = "" if is_covered else f"{_BESIDE}/{entry['sha256']}/"
    return RemoteFile(path, entry.get("key") or f"{record.content_sha256}/{below}{path}", entry["bytes"], entry["sha256"])


def _parsed(content: bytes) -> Record:
    record = _verified(content, KIND, RECORD_VERSION, "record_sha256")
    beside = record["beside"]
    hashes = [record["content_sha256"], record["meta_sha256"], *record["previous"], *(entry["sha256"] for entry in beside.values())]
    if (
        record["family"] not in FAMILIES
        or not all(map(_SHA256.fullmatch, hashes))
        or any(map(name_problem, beside))
        or not _NAME.fullmatch(record["name"])
        or ".." in record["name"]
        or META_NAME not in beside
        or not all(
            path.startswith(TOKENIZER) and is_tokenizer_file(path[len(TOKENIZER) :]) for path in beside.keys() - {META_NAME, OBJECTS_NAME}
        )
        or (record["replaced"] is not None and name_problem(record["replaced"]))
        or any(name_problem(entry["key"]) for entry in beside.values() if "key" in entry)
        or not all(is_count(entry["bytes"]) for entry in beside.values())
    ):
        raise NielsCacheError("has a value that no record has")
    return Record(**{field.name: record[field.name] for field in fields(Record)} | {"previous": tuple(record["previous"])})


_SPLIT_FOLDERS = tuple(f"{split}/" for split in SPLITS)


@dataclass(frozen=True, kw_only=True)
class PublishedBuild:
    """A published build.

    Attributes:
        record: The record that names the build.
        meta: The meta.json of the cache.
        meta_content: The bytes of that meta.json.
        files: All files in order, with meta.json at the end.
    """

    record: Record
    meta: Meta
    meta_content: bytes
    files: Sequence[RemoteFile]

    @property
    def family(self) -> Family:
        """The family of the data set."""
        return self.record.family

    @property
    def name(self) -> str:
        """The name of the data set."""
        return self.record.name

    @property
    def tokenizer(self) -> list[RemoteFile]:
        """The files of the tokenizer. Empty for imported tokens, whose tokenizer is unknown."""
        return [file for file in self.files if file.path.startswith(TOKENIZER)]

    @property
    def data(self) -> list[RemoteFile]:
        """The files of the data set, without meta.json and objects.json."""
        return [file for file in self.files if not file.path.startswith(TOKENIZER) and file.path not in (META_NAME, OBJECTS_NAME)]


def read_published(store: Store) -> PublishedBuild:
    """Read the record, the meta.json and, if there is one, the objects.json at the address of a store. Each takes one request.

    Raises:
        MissingError: If nothing is published there.
        NielsCacheError: If the record and the meta.json do not describe the same cache.
    """
    record, _ = read_record(store)
    return published_of(record, {name: read_beside(store, record, name) for name in described_by(record)}, store.name_of(META_NAME))


def described_by(record: Record) -> list[str]:
    """Return the names of the files that describe a build, besides its record: meta.json, and objects.json if the build has one."""
    return [name for name in (META_NAME, OBJECTS_NAME) if name in record.beside]


def read_beside(store: Store, record: Record, name: str) -> bytes:
    """Return the bytes of a file that a record lists, which is one of `described_by`.

    Raises:
        MissingError: If the file is missing.
    """
    key = next(file.key for file in record.files_beside() if file.path == name)
    try:
        return store.get(key, most_bytes=MAX_OBJECTS_BYTES if name == OBJECTS_NAME else MAX_META_BYTES).content
    except MissingError:
        raise MissingError(f"{store.name_of(key)}: the record names this object, but it is gone; push the cache again") from None


def _files_problem(files: Collection[str]) -> str | None:
    """Return a clause about a file that no cache has, such as a build's journal or a shard whose predecessor is missing, or None."""
    counts = Counter(path.partition("/")[0] for path in files)
    shards = {f"{folder}/{shard_name(number)}" for folder, count in counts.items() for number in range(count)}
    for path in files:
        if not is_cache_file(path) or (name_in_train(path).startswith(_SPLIT_FOLDERS) and path not in shards):
            return f"`files` lists {path!r:.80}, which no cache has"
    return None


def published_of(record: Record, contents: Mapping[str, bytes], where: str, *, in_place: bool = False) -> PublishedBuild:
    """Return the build that a record and a meta.json describe.

    Args:
        record: The record.
        contents: The bytes of the files that are `described_by` the record, by name.
        where: Where the meta.json was read, for messages.
        in_place: Whether the keys of the files are their own paths.

    Raises:
        NielsCacheError: If the record and the meta.json do not describe the same cache.
    """
    for name, content in contents.items():
        entry = record.beside[name]
        if len(content) != entry["bytes"] or hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise NielsCacheError(f"{where}: the content of {name} is not the one in the record; push the cache again")
    content = contents[META_NAME]
    meta = check_form(parse_meta(content, where), where)
    if is_foreign(meta):
        raise NielsCacheError(f"{where}: is not the meta.json of a cache that niels-cache pushes; push the cache again")
    files = listed_files(meta, where)
    problem = _files_problem(files) or location_problem(meta, family=record.family, name=record.name)
    if content_sha256(files) != record.content_sha256 or meta.get("content_sha256") != record.content_sha256:
        problem = "its content_sha256 is not the one in the record"
    if meta.get("tokenizer_sha256") is not None and f"{TOKENIZER}{META_NAME}" not in record.beside:
        problem = "its tokenizer is not in the record"
    found = record.files(meta)
    if OBJECTS_NAME in contents:
        keys = parse_objects(contents[OBJECTS_NAME], where)
        keys.pop(META_NAME, None)  # the record has its key, too
        found = [keys.get(file.path, file) for file in found]
        if keys.keys() != files.keys() or any(
            (file.size, file.sha256) != (files[path]["bytes"], files[path]["sha256"]) for path, file in keys.items()
        ):
            problem = f"{OBJECTS_NAME} lists other files than {META_NAME}"
    if problem:
        raise NielsCacheError(f"{where}: {problem}; push the cache again")
    return PublishedBuild(
        record=record, meta=meta, meta_content=content, files=[file._replace(key=file.path) if in_place else file for file in found]
    )


def encode_objects(files: Iterable[RemoteFile]) -> bytes:
    """Return the bytes of the objects.json of these files. Equal files give equal bytes."""
    objects = {file.path: {"bytes": file.size, "key": file.key, "sha256": file.sha256} for file in files}
    return signed({"kind": "objects", "schema_version": OBJECTS_VERSION, "objects": objects}, "objects_sha256")


def parse_objects(content: bytes | str, where: str) -> dict[str, RemoteFile]:
    """Return the files in an objects.json, by path.

    Args:
        content: The bytes of the objects.json.
        where: Where it was read, for messages.

    Raises:
        NielsCacheError: If the bytes are not an objects.json of this version.
    """
    try:
        record = _verified(content, "objects", OBJECTS_VERSION, "objects_sha256")
        found = {path: RemoteFile(path, each["key"], each["bytes"], each["sha256"]) for path, each in record["objects"].items()}
        for file in found.values():
            if name_problem(file.path) or name_problem(file.key) or not is_count(file.size) or not _SHA256.fullmatch(file.sha256):
                raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        problem = str(error) if isinstance(error, NielsCacheError) else "does not say where the files of a build are"
        raise NielsCacheError(f"{where}: {problem}; build it again: niels-cache build-all --only NAME --force") from error
    return found
