"""meta.json, the commit record of a cache: canonical bytes with their own hash, written last.

A meta.json holds no clock, host or absolute path, so identical inputs give identical bytes. Reading it costs one small file. `sha256_file`
reads all bytes of the file that it hashes.

Another program may have written a meta.json (`is_foreign`). Such a file is enough to open a cache, but too little to verify its files. It
has none of `schema_version`, `meta_sha256` and `files`, but it has every key that a reader of tokens needs. A meta.json with only some of
these three keys is our own and damaged, not foreign. `opening` compares its counts with the files.

`location_problem` compares the place of a folder with its meta.json: `ROOT/FAMILY/NAME`, and for an index its hash. A folder that was
renamed, copied or exchanged with another folder keeps its files and its hashes, so only its meta.json shows that the name is wrong. Only
code that opens a folder by its name makes this check. A folder that is opened by its path may have any name.
"""

import hashlib
import json
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    CACHE_FORMS,
    FAMILIES,
    META_NAME,
    SCHEMA_VERSION,
    Family,
    forms_of,
    max_vocab_size,
    token_dtype_of,
    tokenizer_dir,
)
from niels_cache_runtime.format.meta_keys import FORM_OF, FORMS, is_count
from niels_cache_runtime.format.safe_open import read_regular

UNVERIFIABLE = "another program wrote this meta.json; it lists no files and has no hash of its own, so nothing can be verified"

_OWN_KEYS = ("schema_version", "meta_sha256", "files")
_COUNTS: dict[Family, tuple[str, str]] = {"pretrain": ("train_tokens", "val_tokens"), "sft": ("train_examples", "val_examples")}
_NEEDED = ("token_dtype", "vocab_size", "special_token_ids")
_warned: set[str] = set()


class ForeignMetaError(NielsCacheError):
    """A meta.json of another program without the keys that a reader of tokens needs."""


def is_foreign(meta: Mapping[str, Any] | None) -> bool:
    """Return whether another program wrote `meta`. Return False for None, which means a folder without a meta.json."""
    return meta is not None and "token_dtype" in meta and not any(key in meta for key in _OWN_KEYS)


def foreign_family(meta: Mapping[str, Any]) -> Family:
    """Return the family (pretrain or sft) of a foreign `meta`. The counts in `meta` decide the family, because no key names the family."""
    return "sft" if any(key in meta for key in _COUNTS["sft"]) else "pretrain"


def check_foreign(meta: dict[str, Any], path: object) -> dict[str, Any]:
    """Return the foreign `meta` without those keys that have one of our names but a value of a different form.

    Raises:
        ForeignMetaError: If a needed key is missing or its value has a wrong form, or if the tokens are neither little-endian uint16 nor
            little-endian uint32.
    """
    try:
        most = max_vocab_size(token_dtype_of(meta))
    except NielsCacheError as error:
        raise ForeignMetaError(f"{path}: {error}") from error
    ids = meta.get("special_token_ids")
    counts = _COUNTS[foreign_family(meta)]
    missing = [key for key in (*_NEEDED, *counts) if key not in meta]
    missing += ["special_token_ids.eot"] if isinstance(ids, dict) and "eot" not in ids else []
    if missing:
        raise ForeignMetaError(f"{path}: another program wrote it, and it has no {', '.join(missing)}; add that, or remove the file")
    numbers = {"vocab_size": meta["vocab_size"], **{key: meta[key] for key in counts}}
    numbers |= {"special_token_ids.eot": ids["eot"] if isinstance(ids, dict) else ids}
    for key, value in numbers.items():
        if not is_count(value):
            raise ForeignMetaError(f"{path}: {key} is {value!r:.80}, expected a whole number")
    if not numbers["special_token_ids.eot"] < numbers["vocab_size"] <= most:
        raise ForeignMetaError(
            f"{path}: vocab_size is {numbers['vocab_size']} and the eot id {numbers['special_token_ids.eot']}; "
            f"the id must be below the size, and the size at most {most:,} for {meta['token_dtype']}"
        )
    return {key: value for key, value in meta.items() if key not in FORM_OF or FORMS[FORM_OF[key]](value)}


Meta = dict[str, Any]
_SHOWN_KEY = 80  # the most characters of a key in a message
_NEVER_WRITTEN = re.compile(rb"\\u[dD]|NaN|Infinity")  # never in our files, except inside a text
MAX_META_BYTES = 1 << 25  # enough for two hundred thousand files: thirty terabytes of full shards


def canonical_json(value: Any) -> str:
    """Return `value` as canonical JSON: equal values give equal bytes.

    Keys are sorted, the indentation is two spaces, UTF-8 is not escaped, and there is one newline at the end.
    """
    return json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def signed(record: Mapping[str, Any], key: str) -> bytes:
    """Return the canonical bytes of a record, with its own sha256 under `key`: that of the record with an empty string there."""
    return canonical_json({**record, key: sha256_text(canonical_json({**record, key: ""}))}).encode()


def sha256_text(text: str) -> str:
    """Return the hex sha256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: str | Path) -> str:
    """Return the hex sha256 of a file's bytes. The file is read in blocks, and the GIL is released while hashing.

    Args:
        path: The file.

    Raises:
        NielsCacheError: If the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be hashed: {error.strerror or error}") from error


def content_sha256(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the sha256 over one line `path bytes sha256` for each token, doc_ends and idx file in `files`. The lines are sorted.

    Parquet files, which hold the origin of documents, are excluded, because their bytes depend on the version of the Parquet writer.

    Args:
        files: Relative path -> {"bytes", "sha256"}, as in meta.json.
    """
    lines = [f"{path} {entry['bytes']} {entry['sha256']}\n" for path, entry in sorted(files.items()) if is_hashed_content(path)]
    return sha256_text("".join(lines))


def is_hashed_content(path: str) -> bool:
    """Return whether `content_sha256` covers a file."""
    return path.endswith((".bin", ".npy"))


def write_meta(path: str | Path, meta: Meta) -> None:
    """Write a meta.json as canonical JSON with its own hash, and wait until it is on the disk (fsync).

    The file is replaced in one step: a reader sees either the old file or the new one. `schema_version` and the `forms` of a cache are
    added if `meta` has none.

    Args:
        path: The file to write.
        meta: The values, as JSON-able types.

    Raises:
        NielsCacheError: If the file would have more than 32 MiB, because no reader accepts such a file.
        ValueError: For a number that is NaN or infinite.
        OSError: If the file cannot be written.
    """
    content, temporary = encode_meta(path, meta), f"{path}.tmp"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def encode_meta(path: str | Path, meta: Meta) -> bytes:
    """Return the bytes of a meta.json: canonical JSON with its own hash.

    The key `meta_sha256` holds the hash over the same bytes with this key's value empty. `schema_version` and the `forms` of a cache are
    added if the caller gave none.

    Args:
        path: The file, for messages.
        meta: The values, as JSON-able types.

    Raises:
        NielsCacheError: For more than 32 MiB, because no reader accepts such a file.
    """
    forms = {"forms": forms_of(meta)} if meta.get("kind") in FAMILIES else {}
    content = signed({"schema_version": SCHEMA_VERSION, **forms, **meta}, "meta_sha256")
    if len(content) > MAX_META_BYTES:
        raise NielsCacheError(
            f"{path}: would have {len(content)} bytes, more than {MAX_META_BYTES}; make fewer files, with larger shard_bytes"
        )
    return content


def read_meta(path: str | Path) -> Meta:
    """Read a meta.json and check its own hash.

    A meta.json that another program wrote has no such hash. It is accepted if it has the keys that a reader of tokens needs, and each
    process warns once about each such cache.

    Args:
        path: The meta.json file.

    Returns:
        The content of the file.

    Raises:
        NielsCacheError: If the file is missing, cut short, edited, or of a newer schema.
    """
    meta = load_meta(path)
    if is_foreign(meta):
        absolute = os.path.abspath(path)
        if absolute not in _warned:  # once in a process for each cache
            _warned.add(absolute)
            warnings.warn(f"{path}: {UNVERIFIABLE}", stacklevel=2)
    return meta


def _how_to_build(folder: Path) -> str:
    is_named = folder == tokenizer_dir(folder.parent) or folder.parent.name in FAMILIES
    return f"build it first: niels-cache build-all --only {folder.name}" if is_named else "build this data set first"


def load_meta(path: str | Path) -> Meta:
    """Read a meta.json in the same way as `read_meta`, but without a warning. Callers report unverifiable caches themselves."""
    try:
        content = read_regular(path, most_bytes=MAX_META_BYTES)
    except FileNotFoundError as error:
        raise NielsCacheError(f"{path}: no such file; {_how_to_build(Path(path).absolute().parent)}") from error
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_meta(content, str(path))


def parse_meta(content: bytes, path: str) -> Meta:
    """Return the bytes of a meta.json as a mapping, after the checks of `load_meta`.

    Args:
        content: The bytes.
        path: The file, for messages.
    """
    try:
        meta = json.loads(content, object_pairs_hook=unique_keys, parse_float=_finite)
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
    """Return the ordinals of the documents of a split that token budgets have cut.

    There is at most one, unless the cache was joined from parts.
    """
    found = (meta.get("cut_document") or {}).get(split)
    if isinstance(found, list):
        return found
    return [] if found is None else [found]


def build_id(meta: Meta | None) -> str | None:
    """Return a value that differs between builds of a cache, or None if `meta` is None.

    It is `meta_sha256`, or a hash over a meta.json of another program.
    """
    if not is_foreign(meta):
        return (meta or {}).get("meta_sha256")
    return sha256_text(canonical_json(meta))


def _own_sha256(meta: Meta, path: str) -> str:
    try:
        return sha256_text(canonical_json({**meta, "meta_sha256": ""}))
    except (ValueError, RecursionError) as error:  # NaN, half a surrogate pair, too deep nesting: JSON that parses, but that we never write
        raise NielsCacheError(f"{path}: holds a value that is not allowed in a meta.json: {error}; rebuild this data set") from error


def _is_own_sha256(content: bytes, meta_sha256: object) -> bool:
    """Return whether the bytes of a meta.json, with the hash field empty, have the sha256 `meta_sha256`.

    This check is a fast path: if it succeeds, the parsed meta.json, which may list thousands of files, need not be serialized again to
    compute its hash.
    """
    if _NEVER_WRITTEN.search(content):
        return False
    field = f'"meta_sha256": "{meta_sha256}"'.encode()
    return content.count(field) == 1 and hashlib.sha256(content.replace(field, b'"meta_sha256": ""')).hexdigest() == meta_sha256


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict. It is an `object_pairs_hook` for json.loads.

    Raises:
        ValueError: For a repeated key, because programs differ in which of its values they keep.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"an object has the key {ascii(repeated)[:_SHOWN_KEY]} twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a float")
    return number


_INDEX = "index/"
_HASH_DIGITS = 32


def location_problem(meta: Meta, *, family: str, name: str) -> str | None:
    """Return a clause if meta.json says that the folder `name` in `family`/ holds a different data set, otherwise None.

    The clause is part of an error message, without the path. A `dataset_name` of null fits any name.
    """
    if is_foreign(meta):  # if it has a kind or dataset_name, they follow no rule of ours
        own_family = foreign_family(meta)
        return None if own_family == family else f"its counts are those of {own_family} data, but it lies in {family}/"
    kind = meta.get("kind")
    if str(kind).partition("/")[0] != family:
        return f"kind is {kind!r:.80}, but it lies in {family}/"
    recorded = meta.get("dataset_name")
    if recorded is not None and recorded != name:
        advice = "rename or remove the folder, or rebuild this data set with --force"
        return f"dataset_name is {recorded!r:.80}, but its folder is called {name!r}; {advice}"
    if str(kind).startswith(_INDEX) and {"index_version", "parameters"} <= meta.keys():
        index = index_name(str(kind).removeprefix(_INDEX), version=meta["index_version"], parameters=meta["parameters"])
        if index != name:
            return (
                f"is the index {index}, but its folder is called {name!r}; rename or remove the folder, because no program reads it there"
            )
    return None


def check_location(meta: Meta, folder: str | Path) -> Meta:
    """Return `meta`, which was read from the folder `ROOT/FAMILY/NAME`.

    Raises:
        NielsCacheError: If `location_problem` finds a problem.
    """
    path = Path(folder).absolute()
    if problem := location_problem(meta, family=path.parent.name, name=path.name):
        raise NielsCacheError(f"{Path(folder) / META_NAME}: {problem}")
    return meta


def index_name(kind: str, *, version: int, parameters: Mapping[str, Any]) -> str:
    """Return the name of an index. It is the same for equal parameters in any order."""
    return sha256_text(canonical_json({"kind": kind, "index_version": version, "parameters": parameters}))[:_HASH_DIGITS]
