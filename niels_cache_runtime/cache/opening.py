"""Opening a cache. Its meta.json, if there is one, must describe the files, and all files must be of one build.

This costs one small read, and the mapping of each shard (`mmap`). Only `verify="sha256"` hashes content: it reads every opened file once,
several files at the same time. The package `verify` checks whole caches and the rules inside them.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from niels_cache_runtime.cache.checks import check_choice
from niels_cache_runtime.cache.mmap import MappedTokens, map_doc_ends
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    FAMILIES,
    META_NAME,
    SPLITS,
    Uints,
    doc_ends_name,
    shard_name,
    shard_names,
    token_dtype_of,
    tokenizer_dir,
)
from niels_cache_runtime.format.meta import MAX_META_BYTES, UNVERIFIABLE, Meta, build_id, is_foreign, read_meta
from niels_cache_runtime.format.meta_keys import check_form, is_count
from niels_cache_runtime.format.reading import hash_files
from niels_cache_runtime.format.safe_open import link_problem, name_problem, read_regular

FileEntries = dict[str, dict[str, Any]]
Verify = Literal["size", "sha256"]  # how a cache is compared with meta.json when it is opened
_Opened = TypeVar("_Opened")
OPEN_TRIES = 5  # how often to try to read a data set that may be rebuilt meanwhile


@dataclass(frozen=True, kw_only=True)
class OpenedSplit:
    """An open pretrain split.

    Attributes:
        meta: The meta.json in the folder above the split, or None if there is none.
        shards: Paths of the split's token files, in stream order.
        tokens: Those files, mapped.
        doc_ends: (documents,) uint64, mapped. None if not requested or missing.
    """

    meta: Meta | None
    shards: list[str]
    tokens: MappedTokens
    doc_ends: Uints | None


def open_split(folder: str | Path, *, doc_ends: bool = False, verify: Verify = "size") -> OpenedSplit:
    """Open a split's folder, such as `cache/pretrain/NAME/train`, with all files from one build. An empty split can be opened.

    Args:
        folder: The folder of the split.
        doc_ends: Whether to open the document ends too.
        verify: "size" compares sizes with meta.json. "sha256" also reads the opened files and compares their content.

    Raises:
        NielsCacheError: If the folder or its shards are missing, or if the data set was never built.
        NielsCacheError: If a shard is not a whole number of tokens or is not the shard that meta.json lists, or if the document ends do not
            fit the tokens.
        NielsCacheError: If meta.json has an unknown token_dtype, or if the cache has another tokenizer now than at the build.
    """
    folder = Path(folder)
    return open_consistently(folder.parent, lambda: _open_split(folder, doc_ends, verify))


def _open_split(folder: Path, with_doc_ends: bool, verify: Verify) -> OpenedSplit:
    if not folder.is_dir():
        raise NielsCacheError(f"{folder}: no such folder; build this data set first, or check the path")
    meta = open_meta(folder.parent, verify=verify)
    names, prefix = shard_names(folder), folder.name
    shards, paths = [f"{folder}/{name}" for name in names], [f"{prefix}/{name}" for name in names]
    ends_path = folder.parent / doc_ends_name(prefix)
    has_ends = with_doc_ends and ends_path.exists()
    dtype, listed = token_dtype_of(meta), listed_of_split(meta, folder, doc_ends=with_doc_ends) if meta and not is_foreign(meta) else {}
    try:  # the files nearly always have the listed sizes; an empty file is not mapped, so only a look shows what it is
        sizes = [listed[path]["bytes"] for path in paths]
        tokens, unlinked = MappedTokens(shards, dtype=dtype, sizes=sizes if all(sizes) else None), prefix if all(sizes) else None
    except (KeyError, OverflowError, NielsCacheError):  # looking at each file finds out what is wrong
        tokens, unlinked = MappedTokens(shards, dtype=dtype), None
    if meta is not None and is_foreign(meta):
        check_meta_count(meta, folder.parent, f"{prefix}_tokens", int(tokens.shard_lengths.sum()))
    elif meta is not None:
        found = dict(zip(paths, (tokens.shard_lengths * dtype.itemsize).tolist(), strict=True))
        if has_ends:
            found[ends_path.name] = ends_path.stat().st_size
        check_sizes(folder.parent, listed, found, verify=verify, unlinked=unlinked)
    elif not shards:
        patterns = [f"{below}{split}/{shard_name(0)}" for below in ("", "[!.]*/", "pretrain/[!.]*/") for split in SPLITS]
        split = next((path.parent for pattern in patterns for path in sorted(folder.glob(pattern))), None)
        hint = f"give the folder of a split: {split}" if split else f"expected {shard_name(0)} and so on"
        raise NielsCacheError(f"{folder}: no shards here; {hint}")
    token_count = int(tokens.shard_lengths.sum())
    is_joined = meta is not None and "parts" in meta
    ends = map_doc_ends(ends_path, token_count=token_count, is_joined=is_joined) if has_ends else None
    return OpenedSplit(meta=meta, shards=shards, tokens=tokens, doc_ends=ends)


def require_doc_ends(folder: str | Path, doc_ends: Uints | None) -> Uints:
    """Return the `doc_ends` of an open split.

    Raises:
        NielsCacheError: If they are None. The message names the folder of the split.
    """
    if doc_ends is None:
        name = doc_ends_name(Path(folder).name)
        raise NielsCacheError(f"{folder}: its documents are unknown, because {name} is not beside it; rebuild this data set")
    return doc_ends


def cut_documents(folder: str | Path, doc_ends: Uints, max_tokens: int, *, token_bytes: int) -> list[tuple[int, int, int, int]]:
    """Cut the split into ranges of whole documents with at most `max_tokens` tokens each.

    Args:
        folder: The folder of the split, for messages.
        doc_ends: (documents,) uint64, the exclusive end of each document, in tokens.
        max_tokens: The largest number of tokens of a range.
        token_bytes: The bytes of a token.

    Returns:
        For each range, (first document, end document, first token, end token), where ends are exclusive.

    Raises:
        NielsCacheError: If one document has more than `max_tokens` tokens.
    """
    cuts, document, token = [], 0, 0
    while document < len(doc_ends):
        stop = int(doc_ends.searchsorted(np.uint64(token + max_tokens), side="right"))
        if stop == document:
            size = int(doc_ends[document]) - token
            raise NielsCacheError(f"{folder}: document {document} has {size} tokens, {size * token_bytes} bytes: raise max_bytes")
        cuts.append((document, stop, token, int(doc_ends[stop - 1])))
        document, token = stop, int(doc_ends[stop - 1])
    return cuts


def open_consistently(folder: str | Path, open_files: Callable[[], _Opened]) -> _Opened:
    """Return the result of `open_files`. All files that it opens in the data set's folder are of one build.

    A rebuild exchanges the folder in one step, but `open_files` opens its files one after the other. If meta.json changed during that time,
    all files are opened again, even if there was an error. An error is raised only if meta.json is the same before and after.
    """
    for _ in range(OPEN_TRIES):
        build = read_build(folder)
        try:
            opened = open_files()
        except (NielsCacheError, OSError):
            if read_build(folder) == build:
                raise
        else:
            if read_build(folder) == build:
                return opened
    raise NielsCacheError(f"{folder}: was rebuilt {OPEN_TRIES} times while it was being opened; open it again when the build is done")


def read_build(folder: str | Path) -> bytes | None:
    """Return the bytes of meta.json, or None if it cannot be read.

    These bytes identify a build. They hold meta_sha256, so they depend on the sha256 of every file.
    """
    try:
        return read_regular(Path(folder) / META_NAME, most_bytes=MAX_META_BYTES)
    except (NielsCacheError, OSError):
        return None


def open_meta(folder: str | Path, *, verify: Verify = "size") -> Meta | None:
    """Read the meta.json of a data set's folder. Return None if the folder has none.

    Raises:
        NielsCacheError: If meta.json is unreadable, has an unknown token_dtype, or says that the data set was not built.
        NielsCacheError: If meta.json names another tokenizer than the cache root (the folder of all caches) holds now.
        NielsCacheError: If `verify` is "sha256" but meta.json is missing.
    """
    check_choice("verify", verify, get_args(Verify))
    path = Path(folder) / META_NAME
    try:
        os.lstat(path)  # a link whose file is missing is an error, because the dtype of the tokens would not be known
    except (FileNotFoundError, NotADirectoryError):
        if verify == "sha256":
            raise NielsCacheError(f"{path}: no such file, so the sha256 of these files is unknown; open them without verify=") from None
        return None
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be opened: {error.strerror or error}") from error
    meta = check_form(read_meta(path), path)
    try:
        token_dtype_of(meta)
    except NielsCacheError as error:
        raise NielsCacheError(f"{path}: {error}; rebuild this data set") from error
    if is_foreign(meta) and verify == "sha256":
        raise NielsCacheError(f"{path}: {UNVERIFIABLE}; open it without verify=")
    if meta.get("built") is False:
        raise NielsCacheError(f'{path}: this data set was never built ("built": false); switch it on and build it')
    problem = tokenizer_problem(meta, current_tokenizer_sha256(folder))
    if problem:
        raise NielsCacheError(f"{path}: {problem}")
    return meta


def current_tokenizer_sha256(folder: str | Path) -> str | None:
    """Return the sha256 of the tokenizer in the cache root above a data set's folder.

    Return None if the folder is not in a cache root, or if the root has no tokenizer.
    """
    folder = Path(folder).absolute()
    path = tokenizer_dir(folder.parent.parent) / META_NAME
    if folder.parent.name not in FAMILIES or not path.exists():
        return None
    return read_meta(path).get("sha256")


def tokenizer_problem(meta: Meta, current: str | None) -> str | None:
    """Return one clause if the data set was built with a tokenizer that is not `current`, otherwise None."""
    built_with = meta.get("tokenizer_sha256")
    if built_with is None or current is None or built_with == current:
        return None
    problem = f"built with tokenizer {short_sha256(built_with)}, but the cache now holds {short_sha256(current)}"
    return f"{problem}; rebuild this data set or restore its tokenizer"


def short_sha256(sha256: object) -> str:
    """Return the first 12 digits of a sha256, for messages."""
    return str(sha256)[:12]


def listed_files(meta: Meta, folder: str | Path) -> FileEntries:
    """Return the `files` of a meta.json: relative path -> {"bytes", "sha256"}.

    Raises:
        NielsCacheError: If `files` has a different form.
    """
    files = meta.get("files")
    well_formed = isinstance(files, dict) and all(
        isinstance(entry, dict) and is_count(entry.get("bytes")) and isinstance(entry.get("sha256"), str) for entry in files.values()
    )
    if not isinstance(files, dict) or not well_formed:
        raise NielsCacheError(f"{Path(folder) / META_NAME}: `files` does not map paths to bytes and sha256; rebuild this data set")
    for name in files:
        if problem := name_problem(name):
            raise NielsCacheError(f"{Path(folder) / META_NAME}: `files` lists {name!r:.80}, which {problem}; rebuild this data set")
    return files


def listed_of_split(meta: Meta, folder: str | Path, *, doc_ends: bool) -> FileEntries:
    """Return the files that meta.json lists for one pretrain split: its shards and, with `doc_ends`, its document ends."""
    folder = Path(folder)
    prefix, ends = f"{folder.name}/", doc_ends_name(folder.name) if doc_ends else None
    listed = listed_files(meta, folder.parent)
    return {path: entry for path, entry in listed.items() if path.startswith(prefix) or path == ends}


class PartEnd(NamedTuple):
    """Where a part of a split ends, counted from the start of the split.

    Attributes:
        name: The name of the part.
        shards: The number of shards of this part and those before it.
        tokens: The number of their tokens.
        documents: The number of their documents.
    """

    name: str
    shards: int
    tokens: int
    documents: int


def part_ends(meta: Meta, folder: str | Path) -> list[PartEnd] | None:
    """Return where each part of a split ends, in order, or None if the data set was not joined from parts.

    Args:
        meta: The meta.json of the data set.
        folder: The folder of the split.

    Raises:
        NielsCacheError: If an entry of `parts` lacks a name or a number.
    """
    if (parts := meta.get("parts")) is None:
        return None
    folder, found = Path(folder), [PartEnd("", 0, 0, 0)]
    for entry in parts:
        counts: list[Any] = [entry[key].get(folder.name) if isinstance(entry.get(key), dict) else None for key in PartEnd._fields[1:]]
        if not all(map(is_count, counts)) or not isinstance(entry.get("name"), str):
            raise NielsCacheError(
                f"{folder.parent / META_NAME}: parts has an entry without a name, or without shards, tokens or documents of {folder.name}; "
                "rebuild this data set"
            )
        found.append(PartEnd(entry["name"], *(before + count for before, count in zip(found[-1][1:], counts, strict=True))))
    return found[1:]


def check_sizes(
    folder: str | Path,
    listed: Mapping[str, Mapping[str, Any]],
    found: Mapping[str, int],
    *,
    verify: Verify = "size",
    unlinked: str | None = None,
) -> None:
    """Raise NielsCacheError unless the files on disk are exactly the files that meta.json lists, with the same sizes.

    Args:
        folder: The folder of the data set.
        listed: The entries of meta.json, by relative path.
        found: The bytes of the files on disk, by relative path.
        verify: "sha256" also reads the files and compares their content.
        unlinked: The name of a folder in which no file is a link.
    """
    for path in sorted(listed.keys() - found.keys()):
        raise NielsCacheError(f"{Path(folder) / path}: missing, though meta.json lists it; rebuild this data set")
    for path in sorted(found.keys() - listed.keys()):
        raise NielsCacheError(f"{Path(folder) / path}: not listed in meta.json; remove it or rebuild this data set")
    names = found if unlinked is None else [unlinked, *(path for path in found if not path.startswith(f"{unlinked}/"))]
    if outside := link_problem(folder, names):
        raise NielsCacheError(f"{Path(folder) / outside[0]}: {outside[1]}")
    if wrong := sorted(path for path, size in found.items() if size != listed[path]["bytes"]):
        size, expected = found[wrong[0]], listed[wrong[0]]["bytes"]
        raise NielsCacheError(f"{Path(folder) / wrong[0]}: has {size} bytes, but meta.json says {expected}; rebuild this data set")
    if verify == "sha256":
        _check_hashes(Path(folder), listed)


def check_meta_count(meta: Meta, folder: str | Path, key: str, found: int) -> None:
    """Raise NielsCacheError if a count in a foreign meta.json differs from the number that was counted in the files.

    A foreign meta.json is one of another program, without a list of files. A missing key is accepted.

    Args:
        meta: The foreign meta.json.
        folder: The folder of the data set, for messages.
        key: The key of the count.
        found: The number that was counted in the files.
    """
    if meta.get(key, found) != found:
        raise NielsCacheError(
            f"{Path(folder) / META_NAME}: {key} is {meta[key]}, but the files hold {found}; copy the cache again, or correct the count"
        )


def _check_hashes(folder: Path, listed: Mapping[str, Mapping[str, Any]]) -> None:
    hashes = hash_files(dict.fromkeys(folder / path for path in listed))
    wrong = []
    for path, entry in sorted(listed.items()):
        sha256 = hashes[folder / path]
        if isinstance(sha256, NielsCacheError):
            raise sha256
        if sha256 != entry["sha256"]:
            wrong.append(path)
    if wrong:
        more = f" (and that of {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise NielsCacheError(f"{folder / wrong[0]}: its sha256 is not the one in meta.json{more}; rebuild this data set, or copy it again")


def check_same_build(where: str, *, opened: Meta | None, reopened: Meta | None) -> None:
    """Raise NielsCacheError if a worker has reopened a different build than its parent process opened."""
    check_same_build_id(where, opened=build_id(opened), reopened=build_id(reopened))


def check_same_build_id(where: str, *, opened: str | None, reopened: str | None) -> None:
    """Raise NielsCacheError in the same case as `check_same_build`, given the `build_id` of both."""
    if opened != reopened:
        raise NielsCacheError(f"{where}: was rebuilt since this data set was opened; open it again in every process")
