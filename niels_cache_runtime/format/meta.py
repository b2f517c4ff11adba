"""meta.json, the commit record of a cache: canonical bytes with their own hash, written last.

A meta.json holds no clock, host or absolute path, so identical inputs give identical bytes. Reading it costs one small file. `sha256_file`
reads all bytes of the file that it hashes.
"""

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.foreign_meta import check_foreign, is_foreign, warn_unverifiable
from niels_cache_runtime.format.layout import CACHE_FORMS, FAMILIES, SCHEMA_VERSION, forms_of, tokenizer_dir
from niels_cache_runtime.format.safe_open import read_regular

Meta = dict[str, Any]
_SHOWN_KEY = 80  # the most characters of a key in a message
_NEVER_WRITTEN = re.compile(rb"\\u[dD]|NaN|Infinity")  # never in our files, except inside a text
MOST_META_BYTES = 1 << 25  # enough for two hundred thousand files: thirty terabytes of full shards


def canonical_json(value: Any) -> str:
    """Return `value` as canonical JSON: equal values give equal bytes.

    Keys are sorted, the indentation is two spaces, UTF-8 is not escaped, and there is one newline at the end.
    """
    return json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: str) -> str:
    """Return the hex sha256 of a file's bytes. The file is read in blocks, and the GIL is released while hashing.

    Raises NielsCacheError if the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be hashed: {error.strerror or error}") from error


def content_sha256(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the sha256 over one line `path bytes sha256` for each token, doc_ends and idx file in `files`. The lines are sorted.

    `files` maps relative paths to {"bytes", "sha256"}, as in meta.json. Parquet files, which hold the origin of documents, are excluded,
    because their bytes depend on the version of the Parquet writer.
    """
    lines = [f"{path} {entry['bytes']} {entry['sha256']}\n" for path, entry in sorted(files.items()) if is_content(path)]
    return sha256_text("".join(lines))


def is_content(path: str) -> bool:
    """Return whether content_sha256 covers a file."""
    return path.endswith((".bin", ".npy"))


def write_meta(path: str, meta: Meta) -> None:
    """Write `meta` as canonical JSON with its own hash, and wait until it is on the disk (fsync).

    `path` is replaced in one step: a reader sees either the old file or the new one. Raises the errors of `meta_content`, and OSError if
    the disk refuses.
    """
    content, temporary = meta_content(path, meta), f"{path}.tmp"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def meta_content(path: str, meta: Meta) -> bytes:
    """Return the bytes of a meta.json: canonical JSON with its own hash. path: for messages.

    The key `meta_sha256` holds the hash over the same bytes with this key's value empty. `schema_version` and the `forms` of a cache are
    added if the caller gave none. Raises NielsCacheError for more than 32 MiB, because no reader accepts such a file.
    """
    forms = {"forms": forms_of(meta)} if meta.get("kind") in FAMILIES else {}
    record = {"schema_version": SCHEMA_VERSION, **forms, **meta, "meta_sha256": ""}
    record["meta_sha256"] = sha256_text(canonical_json(record))
    content = canonical_json(record).encode()
    if len(content) > MOST_META_BYTES:
        raise NielsCacheError(
            f"{path}: would have {len(content)} bytes, more than {MOST_META_BYTES}; make fewer files, with larger shard_bytes"
        )
    return content


def read_meta(path: str) -> Meta:
    """Read a meta.json and check its own hash. Raises NielsCacheError if it is missing, cut short, edited, or of a newer schema.

    A meta.json that another program wrote has no such hash. It is accepted if it has the keys that a reader of tokens needs
    (`foreign_meta`). Each process warns once about each such cache.
    """
    meta = load_meta(path)
    if is_foreign(meta):
        warn_unverifiable(path)
    return meta


def _how_to_build(folder: Path) -> str:
    is_named = folder == tokenizer_dir(folder.parent) or folder.parent.name in FAMILIES
    return f"build it first: niels-cache build-all --only {folder.name}" if is_named else "build this data set first"


def load_meta(path: str) -> Meta:
    """Read a meta.json in the same way as `read_meta`, but without a warning. Callers report unverifiable caches themselves."""
    try:
        content = read_regular(path, most_bytes=MOST_META_BYTES)
    except FileNotFoundError as error:
        raise NielsCacheError(f"{path}: no such file; {_how_to_build(Path(path).absolute().parent)}") from error
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_meta(content, path)


def parse_meta(content: bytes, path: str) -> Meta:
    """Return the bytes of a meta.json as a mapping, after the checks of `load_meta`. `path` is for messages."""
    try:
        meta = json.loads(content, object_pairs_hook=unique_keys, parse_float=_finite)
    except NielsCacheError:
        raise
    except ValueError as error:
        raise NielsCacheError(f"{path}: not valid JSON (cut short?): {error}; rebuild this data set") from error
    except RecursionError as error:
        raise NielsCacheError(f"{path}: nested too deeply for a meta.json; rebuild this data set") from error
    if isinstance(meta, dict) and is_foreign(meta):
        _own_sha256(meta, path)  # raises if `meta` cannot be serialized: code that compares builds may need its hash
        return check_foreign(meta, path)
    if not isinstance(meta, dict) or type(meta.get("schema_version")) is not int:
        raise NielsCacheError(f"{path}: not a niels-cache meta.json (no schema_version); rebuild this data set")
    if meta["schema_version"] != SCHEMA_VERSION:
        raise NielsCacheError(
            f"{path}: schema_version is {meta['schema_version']}, and this version of niels-cache reads {SCHEMA_VERSION}; "
            "upgrade niels-cache or rebuild this data set"
        )
    _check_forms(meta, path)
    if _is_own_sha256(content, meta.get("meta_sha256")):
        return meta
    if meta.get("meta_sha256") != _own_sha256(meta, path):
        raise NielsCacheError(f"{path}: its content does not match its meta_sha256 (edited by hand?); rebuild this data set")
    return meta


def _check_forms(meta: Meta, path: str) -> None:
    """Raise NielsCacheError unless `forms` of a meta.json names the forms that its other keys have, and no form that is unknown here."""
    forms, needed = meta.get("forms", []), forms_of(meta)
    if not isinstance(forms, list) or not all(isinstance(form, str) for form in forms):
        raise NielsCacheError(f"{path}: forms is {forms!r:.80}, expected a list of texts; rebuild this data set")
    if unknown := [form for form in forms if form not in CACHE_FORMS]:
        raise NielsCacheError(
            f"{path}: the cache has the form {unknown[0]!r:.80}, and this version of niels-cache knows only {', '.join(CACHE_FORMS)}; "
            "upgrade niels-cache or rebuild this data set"
        )
    if forms != needed:
        raise NielsCacheError(
            f"{path}: forms is {forms!r:.80}, but its other keys are those of {needed!r}, so a reader may misread it; rebuild this data set"
        )


def cut_ordinals(meta: Meta, split: str) -> list[int]:
    """Return the ordinals of the documents of a split that token budgets have cut. At most one, unless the cache was joined from parts."""
    found = (meta.get("cut_document") or {}).get(split)
    if isinstance(found, list):
        return found
    return [] if found is None else [found]


def build_id(meta: Meta | None) -> str | None:
    """Return a value that differs between builds of a cache. It is `meta_sha256`, or a hash over a meta.json of another program. Return
    None if `meta` is None.
    """
    if meta is None or not is_foreign(meta):
        return (meta or {}).get("meta_sha256")
    return sha256_text(canonical_json(meta))


def _own_sha256(meta: Meta, path: str) -> str:
    try:
        return sha256_text(canonical_json({**meta, "meta_sha256": ""}))
    except (ValueError, RecursionError) as error:  # NaN, half a surrogate pair, too deep nesting: JSON that parses, but that we never write
        raise NielsCacheError(f"{path}: holds a value that is not allowed in a meta.json: {error}; rebuild this data set") from error


def _is_own_sha256(content: bytes, meta_sha256: object) -> bool:
    """Return whether `content`, with its hash field empty, has the sha256 `meta_sha256`.

    `content` is the bytes of a meta.json. This check is a fast path: if it succeeds, the parsed meta.json, which may list thousands of
    files, need not be serialized again to compute its hash.
    """
    if _NEVER_WRITTEN.search(content):
        return False
    field = f'"meta_sha256": "{meta_sha256}"'.encode()
    return content.count(field) == 1 and hashlib.sha256(content.replace(field, b'"meta_sha256": ""')).hexdigest() == meta_sha256


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict. This function is an `object_pairs_hook` for json.loads.

    Raises ValueError for a repeated key, because programs differ in which of its values they keep.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"an object has the key {ascii(twice)[:_SHOWN_KEY]} twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a float")
    return number
