"""Pull: a published build becomes a local cache, with its tokenizer, below a cache root.

    1. read the record and the cache's meta.json
    2. download the files into a staging directory, several at once; each is hashed while it is written, and renamed when its hash is right
    3. write meta.json; then the staging directory replaces the cache in one step

An interrupted pull keeps its staging directory. The next pull of the same build downloads only the missing bytes. A pull of another build
starts from the beginning. Memory: one piece for each thread.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from niels_cache_assets.disk.build_lock import lock_target
from niels_cache_assets.disk.journal import JOURNAL_NAME, partial_directory, write_atomically
from niels_cache_assets.disk.space import SpaceNeed, name_path, require_free_space
from niels_cache_assets.disk.staging import finished_meta, staged
from niels_cache_assets.publish.hub import SCHEME, open_repository
from niels_cache_assets.publish.transfer import OnBytesDone, Tally, run_in_threads
from niels_cache_runtime.cache.opening import short_sha256
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import remove
from niels_cache_runtime.format.layout import (
    IDX_DTYPE,
    META_NAME,
    SPLITS,
    TARGETS_DTYPE,
    WEIGHTS_DTYPE,
    Split,
    copies_of,
    dataset_dir,
    doc_ends_name,
    documents_folder,
    documents_name,
    examples_name,
    file_edges_name,
    idx_name,
    name_in_train,
    span_names,
    target_ends_name,
    target_weights_name,
    targets_name,
    tokenizer_dir,
    tokens_name,
)
from niels_cache_runtime.format.meta import Meta, canonical_json, content_sha256, encode_meta, load_meta, sha256_text
from niels_cache_runtime.format.reading import find_files
from niels_cache_runtime.format.safe_open import OwnedFolder, read_regular
from niels_cache_runtime.remote.download import ObjectSource, complete_download
from niels_cache_runtime.remote.record import TOKENIZER, PublishedBuild, RemoteFile, read_published
from niels_cache_runtime.remote.store import open_store

State = Literal["pulled", "replaced", "already there"]
PART = ".part"  # the suffix of an unfinished file
_MAX_JOURNAL_BYTES = 1 << 16
_COUNTS = ("tokens", "examples")
_BY_SPLIT = ("documents", "characters", "cut", "targets")


@dataclass(frozen=True, kw_only=True)
class PullResult:
    """The result of a pull.

    Attributes:
        directory: The folder of the cache.
        state: What happened. "replaced" if there was another build of the data set.
        meta: The meta.json of the cache.
        fetched_bytes: The bytes that this pull downloaded; the others were already there.
    """

    directory: Path
    state: State
    meta: Meta
    fetched_bytes: int


def pull(
    address: str, out: Path, *, split: Split | None = None, replace_other: bool = False, progress: OnBytesDone | None = None
) -> PullResult:
    """Download a published cache into the cache root `out`. After an error or a kill, call it again: it continues where it stopped.

    Args:
        address: The address of the build, in an object store or on the hub.
        out: The cache root.
        split: Download only this split; the other split of the result is empty. None downloads both.
        replace_other: Whether to replace another build of this data set.
        progress: Called with (bytes done, bytes in total).

    Raises:
        NielsCacheError: If nothing is published at the address, if `out` has another build or another tokenizer, or if the content of an
            object does not have the recorded hash.
        RemoteError: If the store refuses or does not answer.
    """
    source: ObjectSource
    if address.startswith(SCHEME):
        published, source = open_repository(address)
    else:
        published = read_published(source := open_store(address))
    target = dataset_dir(out, published.family, published.name)
    meta, files = published.meta, published.data
    empty: Mapping[str, bytes] = {}
    if split is not None:
        meta, empty = only_split(meta, split)
        files = [file for file in files if file.path in meta["files"] and file.path not in empty]
    tally = Tally(sum(file.size for file in (*files, *published.tokenizer)), progress)
    fetched = _fetch_tokenizer(published, out, source, tally)
    if (found := finished_meta(target)) is not None and found.get("files") == meta["files"]:
        return PullResult(directory=target, state="already there", meta=found, fetched_bytes=fetched)
    is_there = (target / META_NAME).exists()
    if is_there and not replace_other:
        raise NielsCacheError(f"{target}: holds another build, or a damaged one; --replace exchanges it, or choose another --out")
    _refuse_unfinished_build(target)
    require_free_space(target, SpaceNeed(bytes=tally.total, reason="the published files"))
    with lock_target(target), staged(target, resumable=True) as folder:
        _start_journal(folder, meta)
        own = OwnedFolder(folder.parent)
        for each in (*SPLITS, *copies_of(meta)) if published.family == "pretrain" else ():
            own.make_folder(f"{folder.name}/{each}")
        fetched += _fetch(source, tally, own, {file: f"{folder.name}/{file.path}" for file in files})
        for path, content in empty.items():
            own.write(f"{folder.name}/{path}", content)
        content = published.meta_content if split is None else encode_meta(str(target / META_NAME), meta)
        own.write(f"{folder.name}/{META_NAME}", content)
        _refuse_foreign_files(folder, {*meta["files"], *SPLITS, *copies_of(meta), META_NAME, JOURNAL_NAME})
    return PullResult(
        directory=target, state="replaced" if is_there else "pulled", meta=load_meta(target / META_NAME), fetched_bytes=fetched
    )


def _fetch_tokenizer(published: PublishedBuild, out: Path, source: ObjectSource, tally: Tally) -> int:
    """Download the tokenizer of a cache into the cache root, unless the root has it. Return the number of downloaded bytes."""
    folder, files = tokenizer_dir(out), published.tokenizer
    if not files:
        return 0
    expected = published.meta["tokenizer_sha256"]

    def is_there() -> bool:
        if not (folder / META_NAME).exists():
            return False
        found = load_meta(folder / META_NAME).get("sha256")
        if found != expected:
            raise NielsCacheError(
                f"{folder}: holds tokenizer {short_sha256(found)}, but this cache has {short_sha256(expected)}; choose another --out"
            )
        tally.add(sum(file.size for file in files))
        return True

    if is_there():
        return 0
    with lock_target(folder, wait=True, log=lambda line: print(line, file=sys.stderr)):
        if is_there():  # another process has downloaded it in the meantime
            return 0
        with staged(folder) as partial:
            names = {file: f"{partial.name}/{file.path.removeprefix(TOKENIZER)}" for file in files}
            fetched = _fetch(source, tally, OwnedFolder(partial.parent), names)
            if load_meta(partial / META_NAME).get("sha256") != expected:
                raise NielsCacheError(f"{folder}: the published tokenizer is not the one of the cache; push the cache again")
    return fetched


def _refuse_unfinished_build(target: Path) -> None:
    """Raise NielsCacheError if the staging directory contains an unfinished build, because a pull would remove it."""
    journal = partial_directory(target) / JOURNAL_NAME
    if journal.exists() and _read_pull_journal(journal) is None:
        raise NielsCacheError(f"{journal.parent}: holds an unfinished build; finish it, or remove it, or choose another --out")


def _read_pull_journal(journal: Path) -> str | None:
    """Return the hash of the files that an unfinished pull downloads, or None for the journal of a build."""
    try:
        entry = json.loads(read_regular(journal, most_bytes=_MAX_JOURNAL_BYTES))
        return entry["pulled"] if isinstance(entry["pulled"], str) else None
    except (NielsCacheError, OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _start_journal(folder: Path, meta: Meta) -> None:
    """Keep the files of an unfinished pull of the same files. Remove all others, and write the journal."""
    journal, own = folder / JOURNAL_NAME, sha256_text(canonical_json(meta["files"]))
    if journal.exists() and _read_pull_journal(journal) == own:
        return
    for path in folder.iterdir():
        remove(path)
    write_atomically(journal, canonical_json({"pulled": own}).encode())


def _refuse_foreign_files(folder: Path, written: Collection[str]) -> None:
    """Raise NielsCacheError for a file of another program in the staging directory, because it would become part of the cache."""
    found = find_files(folder)
    if others := sorted({*found.sizes, *found.irregular, *found.skipped, *found.empty} - {*written}):
        raise NielsCacheError(f"{folder / others[0]}: is not of this pull; remove {folder}, and pull again")


def _fetch(source: ObjectSource, tally: Tally, own: OwnedFolder, names: Mapping[RemoteFile, str]) -> int:
    """Download files below the folder of `own`, unless they exist, and return the number of bytes that were downloaded.

    A file with its final name is complete and on disk.
    """

    def fetch(file: RemoteFile) -> int:
        name, part = names[file], names[file] + PART
        size = own.size(name)
        if size is not None:
            if size != file.size:
                raise NielsCacheError(f"{own.root / name}: has {size} bytes, and not {file.size}; remove it")
            tally.add(size)
            return 0
        with name_path(own.root / part):
            with os.fdopen(own.open(part, os.O_RDWR, make=True), "r+b") as opened:
                fetched = complete_download(opened, source, file, tally=tally)
                os.fsync(opened.fileno())
            own.rename(part, name)
        return fetched

    return sum(run_in_threads(fetch, names, tally=tally))


def only_split(meta: Meta, split: Split) -> tuple[Meta, dict[str, bytes]]:
    """Return the meta.json of a cache that has only this split, and the content of its empty files by relative path.

    The result passes `verify`, and every reader opens it. It has no fingerprint, because no build produces it: `status` shows it as stale,
    and a build replaces it with the whole cache. The meta.json has no `meta_sha256` yet; `write_meta` adds it. Files of the split keep
    their names and hashes.
    """
    (other,) = (each for each in SPLITS if each != split)
    files = {path: entry for path, entry in meta["files"].items() if not _is_of(path, other)}
    empty = _empty_files(other, span_names(meta, other)) if meta["kind"] == "sft" else {}
    files |= {path: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()} for path, content in empty.items()}
    left_out = ("meta_sha256", "overlap", "forms", *(["fim", *(f"{name}_tokens" for name in copies_of(meta))] if split == "val" else []))
    found = {key: value for key, value in meta.items() if key not in left_out}
    found |= {"files": files, "content_sha256": content_sha256(files), "fingerprint": None}
    found |= {f"{other}_{unit}": 0 for unit in _COUNTS if f"{other}_{unit}" in meta}
    found |= {key: {**meta[key], other: 0} for key in _BY_SPLIT if isinstance(meta.get(key), dict) and other in meta[key]}
    if other in (cut := meta.get("cut_document") or {}):
        found["cut_document"] = {**cut, other: [] if isinstance(cut[other], list) else None}
    if "parts" in meta:
        found["parts"] = [_without(entry, other) for entry in meta["parts"]]
    return found, empty


def _is_of(path: str, split: Split) -> bool:
    of_pretrain = (doc_ends_name, file_edges_name, documents_name)
    of_split = (*of_pretrain, tokens_name, idx_name, targets_name, target_ends_name, target_weights_name, examples_name)
    path = name_in_train(path)
    return path in (name(split) for name in of_split) or path.startswith((f"{split}/", f"{documents_folder(split)}/"))


def _empty_files(split: Split, spans: list[str]) -> dict[str, bytes]:
    of_spans = (np.empty((0, 2), TARGETS_DTYPE), np.empty(0, TARGETS_DTYPE), np.empty(0, WEIGHTS_DTYPE))
    arrays: dict[str, Any] = {idx_name(split): np.empty(0, IDX_DTYPE), **dict(zip(spans, of_spans, strict=False))}
    files = {tokens_name(split): b""}
    for name, array in arrays.items():
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        files[name] = content.getvalue()
    return files


def _without(entry: dict[str, Any], split: Split) -> dict[str, Any]:
    return {key: {**value, split: 0} if isinstance(value, dict) and split in value else value for key, value in entry.items()}
