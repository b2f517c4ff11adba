"""The record of a published cache: the object `meta.json` at its address. It names the one build that readers use.

    ADDRESS/meta.json                                  the record; only this object ever changes
    ADDRESS/CONTENT_SHA256/train/shard_00000.bin       files that the build's content_sha256 covers
    ADDRESS/CONTENT_SHA256/beside/SHA256/meta.json     each other file, below its own sha256: meta.json, lineage, tokenizer/...

So the key of every other object depends on its content, and two builds never share a key unless they share its bytes. A record lists the
meta.json of the cache and the tokenizer's files. The cache's meta.json lists the other files, so a record stays small for any cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, Family, is_tokenizer_file
from niels_cache_runtime.format.meta import MOST_META_BYTES, Meta, canonical_json, is_content, sha256_text
from niels_cache_runtime.format.meta_keys import is_count
from niels_cache_runtime.format.safe_open import name_problem
from niels_cache_runtime.remote.store import MissingError, Store

KIND = "published"
RECORD_VERSION = 1
TOKENIZER = "tokenizer/"  # the folder of the tokenizer's files in `Record.beside`

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
_BESIDE = "beside"


class RemoteFile(NamedTuple):
    """A file of a published cache. `path`: relative to the data set, or `tokenizer/...`. `key`: relative to the address."""

    path: str
    key: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """A published build.

    content_sha256, meta_sha256: of the build. beside: `meta.json` of the cache and the files of its tokenizer (`tokenizer/...`), each with
        its "bytes" and "sha256". previous: content_sha256 of builds that this address named before. Some may be pruned.
    """

    family: Family
    name: str
    content_sha256: str
    meta_sha256: str
    beside: Mapping[str, Mapping[str, Any]]
    previous: tuple[str, ...] = ()

    def is_same_build(self, other: Record | None) -> bool:
        """Return whether two records name the same files. Their `previous` may differ."""
        return other is not None and self.beside == other.beside and self.content_sha256 == other.content_sha256

    def content(self) -> bytes:
        """Return the bytes of the record. Equal records give equal bytes."""
        record = {"kind": KIND, "schema_version": RECORD_VERSION, **asdict(self), "previous": list(self.previous), "record_sha256": ""}
        record["record_sha256"] = sha256_text(canonical_json(record))
        return canonical_json(record).encode()

    def files_beside(self) -> list[RemoteFile]:
        """Return the files that the record itself lists: first the tokenizer's, and meta.json of the cache at the end."""
        paths = sorted(self.beside, key=lambda path: (path == META_NAME, path))
        return [_file(self, path, self.beside[path], is_covered=False) for path in paths]

    def files(self, meta: Meta) -> list[RemoteFile]:
        """Return all files of the build, in order: first those that `meta`, the meta.json of the cache, lists."""
        listed = [_file(self, path, entry, is_covered=is_content(path)) for path, entry in sorted(meta["files"].items())]
        return [*listed, *self.files_beside()]


def read_record(store: Store) -> tuple[Record, str | None]:
    """Return the record at the address of a store, and its state for `exchange`.

    Raises MissingError if there is none, and NielsCacheError for an object that is not a record of this version.
    """
    name = store.name_of(META_NAME)
    try:
        content, state = store.read(META_NAME, most_bytes=MOST_META_BYTES)
    except MissingError:
        raise MissingError(f"{store.address}: no published cache here; check the address, or push one") from None
    return parse_record(content, name), state


def parse_record(content: bytes, name: str) -> Record:
    """Return the bytes of a record as a Record. `name` is for messages. Raises NielsCacheError if they are no record of this version."""
    try:
        return _parsed(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        said = str(error) if isinstance(error, NielsCacheError) else "is not the record of a published cache"
        raise NielsCacheError(f"{name}: {said}; give another address") from error


def _file(record: Record, path: str, entry: Mapping[str, Any], *, is_covered: bool) -> RemoteFile:
    below = "" if is_covered else f"{_BESIDE}/{entry['sha256']}/"
    return RemoteFile(path, f"{record.content_sha256}/{below}{path}", entry["bytes"], entry["sha256"])


def _parsed(content: bytes) -> Record:
    said = json.loads(content)
    if said["kind"] != KIND or type(said["schema_version"]) is not int:
        raise NielsCacheError("is not the record of a published cache")
    if said["schema_version"] > RECORD_VERSION:
        raise NielsCacheError(f"schema_version {said['schema_version']} is newer than {RECORD_VERSION}; upgrade niels-cache")
    own = said["record_sha256"]
    if sha256_text(canonical_json({**said, "record_sha256": ""})) != own:
        raise NielsCacheError("does not match its record_sha256 (edited by hand?)")
    hashes = [said["content_sha256"], said["meta_sha256"], *said["previous"], *(entry["sha256"] for entry in said["beside"].values())]
    if (
        said["family"] not in FAMILIES
        or not all(map(_SHA256.fullmatch, hashes))
        or any(map(name_problem, said["beside"]))
        or not _NAME.fullmatch(said["name"])
        or ".." in said["name"]
        or META_NAME not in said["beside"]
        or not all(path.startswith(TOKENIZER) and is_tokenizer_file(path[len(TOKENIZER) :]) for path in said["beside"].keys() - {META_NAME})
        or not all(is_count(entry["bytes"]) for entry in said["beside"].values())
    ):
        raise NielsCacheError("has a value that no record has")
    return Record(
        family=said["family"],
        name=said["name"],
        content_sha256=said["content_sha256"],
        meta_sha256=said["meta_sha256"],
        beside=said["beside"],
        previous=tuple(said["previous"]),
    )
