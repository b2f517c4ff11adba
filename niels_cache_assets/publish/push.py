"""Push: a local cache becomes a published build at an address. Prune: builds that the address no longer names are deleted.

    1. read the record at the address, and ask the store for conditional PUT
    2. list the build's folder; skip what is there with the same size and hash
    3. hash each other file, compare it with meta.json, and send it from the same open file: one PUT for each, several at once
    4. list again; then write the record, on the condition that it is unchanged since step 1; list once more

A prune first removes the builds that it deletes from the record, so a push that read the record before that fails at step 4. A reader
follows the record, so it sees either the old build or the new one. An interrupted push leaves no record, and the next push sends the files
that are missing. Keys depend on content, so simultaneous pushes do not disturb each other. Memory does not grow with the cache: files are
mapped.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Literal

from niels_cache_assets.publish.check import content_problem
from niels_cache_assets.publish.transfer import OnBytesDone, Tally, run_in_threads
from niels_cache_runtime.cache.opening import (
    check_sizes,
    current_tokenizer_sha256,
    listed_files,
    open_consistently,
    read_build,
    tokenizer_problem,
)
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, tokenizer_dir
from niels_cache_runtime.format.meta import UNVERIFIABLE, Meta, check_location, content_sha256, is_foreign, load_meta, sha256_file
from niels_cache_runtime.format.meta_keys import check_form
from niels_cache_runtime.format.reading import mapped
from niels_cache_runtime.remote.record import TOKENIZER, Record, RemoteFile, read_record, record_at
from niels_cache_runtime.remote.store import ConflictError, ListedObject, RemoteError, Store, check_address, open_store

State = Literal["published", "replaced", "already there"]
Compared = Literal["size", "hash", "content"]  # how an object is compared with a local file
UNFINISHED = timedelta(days=1)  # how long a build without a record may belong to a running push
_BLOCK_BYTES = 1 << 22
_BUILD = re.compile(r"([0-9a-f]{64})/")
_DELETED_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """The result of a push.

    Attributes:
        record: The record of the build that the address now names.
        state: What happened. "replaced" if the address named another build before.
        files: The number of files of the build.
        sent: The number of files that this push sent; the others were already there.
        sent_bytes: The size of these files in bytes.
    """

    record: Record
    state: State
    files: int
    sent: int
    sent_bytes: int


@dataclass(frozen=True, kw_only=True)
class PruneResult:
    """The result of a prune.

    Attributes:
        builds: The content_sha256 of the builds that were deleted.
        objects: The number of objects that were deleted.
        bytes: The size of these objects.
        kept: The content_sha256 of builds that may be in use.
    """

    builds: Sequence[str]
    objects: int
    bytes: int
    kept: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class LocalBuild:
    """A cache on disk that can be pushed.

    Attributes:
        directory: The folder of the cache.
        meta: Its meta.json.
        record: The record to publish.
        paths: The path on disk of each file of the record.
    """

    directory: Path
    meta: Meta
    record: Record
    paths: dict[str, Path]

    @property
    def files(self) -> list[RemoteFile]:
        return self.record.files(self.meta)


def open_local_build(directory: Path) -> LocalBuild:
    """Return the cache in `ROOT/FAMILY/NAME` with the tokenizer of its root. Only sizes are compared with meta.json.

    Raises:
        NielsCacheError: If the cache is incomplete, was not built by niels-cache, or lacks its tokenizer.
    """
    return open_consistently(directory, lambda: _local_build(directory))


def push(
    build: LocalBuild, address: str, *, replace_other: bool = False, repair: bool = False, progress: OnBytesDone | None = None
) -> PushResult:
    """Publish a cache. After an error or a kill, call it again: it sends only the missing files.

    Args:
        build: The cache.
        address: The address to publish it at.
        replace_other: Whether to replace the record if the address names another build of this data set.
        repair: Whether to read the content of existing objects, and send those again whose content is damaged. Without it, objects with the
            right size and recorded hash stay.
        progress: Called with (bytes done, bytes in total).

    Raises:
        NielsCacheError: If the address contains something else, or if a file of the cache is damaged.
        RemoteError: If the store refuses or does not answer.
    """
    store = open_store(check_address(address), make=True)
    found, version = record_at(store)
    require_replaceable(build, found, store.address, replace_other=replace_other)
    store.require_conditional_put()
    total = sum(file.size for file in build.files)
    compared: Compared = "content" if repair else "hash"
    sent = _send_missing(build, store, tally=Tally(total * (1 + repair), progress), compared=compared)
    record, is_new = build.record.after(found), not build.record.is_same_build(found)
    if is_new:  # a prune may have deleted files before or after the record was written
        sent |= _send_missing(build, store, tally=Tally(total, None), compared="size")
        _write_record(store, record, found, version, doing="push")
        sent |= _send_missing(build, store, tally=Tally(total, None), compared="size")
    state: State = "already there" if not is_new else "published" if found is None else "replaced"
    return PushResult(record=record, state=state, sent=len(sent), sent_bytes=sum(file.size for file in sent), files=len(build.files))


def prune(address: str) -> PruneResult:
    """Delete the builds that the record no longer names.

    A build that the record named before is deleted. A build that it never named may belong to a running push, so it is deleted only if
    nothing was written to it for the time UNFINISHED.

    Raises:
        MissingError: If nothing is published at the address.
        RemoteError: If another process changes the record, or if the store refuses or does not answer.
    """
    store = open_store(address)
    record, version = read_record(store)
    builds: dict[str, list[ListedObject]] = {}
    now = None
    for each in store.list():
        now = each.modified if now is None else max(now, each.modified)
        if match := _BUILD.match(each.key):
            builds.setdefault(match[1], []).append(each)
    builds.pop(record.content_sha256, None)
    deleted: list[str] = []
    kept: list[str] = []
    for build, found in builds.items():
        is_old = build in record.previous or (now is not None and now - max(each.modified for each in found) > UNFINISHED)
        (deleted if is_old else kept).append(build)
    remaining = replace(record, previous=tuple(each for each in record.previous if each not in deleted))
    if remaining != record:
        _write_record(store, remaining, record, version, doing="prune")
    for build in deleted:
        keys = [each.key for each in builds[build]]
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            _refuse_published(store, build)
            store.delete(keys[start : start + _DELETED_AT_ONCE])
    for build in deleted:
        _refuse_published(store, build)
    objects = [each for build in deleted for each in builds[build]]
    return PruneResult(builds=deleted, objects=len(objects), bytes=sum(each.size for each in objects), kept=kept)


def _refuse_published(store: Store, build: str) -> None:
    if read_record(store)[0].content_sha256 == build:
        raise NielsCacheError(f"{store.address}: build {build[:12]} was published again during the prune; push it once more")


def check_files(build: LocalBuild, *, progress: OnBytesDone | None = None) -> None:
    """Hash all files of a cache.

    Raises:
        NielsCacheError: If a file is damaged or cannot be read.
    """
    tally = Tally(sum(file.size for file in build.files), progress)

    def check_file(file: RemoteFile) -> None:
        with _checked_file(build, file, tally):
            tally.add(file.size)

    run_in_threads(check_file, build.files, tally=tally)


def _local_build(directory: Path) -> LocalBuild:
    path = directory / META_NAME
    meta = check_form(load_meta(path), path)
    if is_foreign(meta):
        raise NielsCacheError(f"{path}: {UNVERIFIABLE}; push needs a cache that niels-cache built or imported")
    check_location(meta, directory)
    if meta.get("built") is False:
        raise NielsCacheError(f"{path}: this data set is switched off and has no files; switch it on and build it")
    files = listed_files(meta, directory)
    check_sizes(directory, files, _sizes(directory, files))
    if content_sha256(files) != meta.get("content_sha256"):
        raise NielsCacheError(f"{path}: content_sha256 does not follow from `files`; rebuild this data set")
    paths = {name: directory / name for name in (*files, META_NAME)}
    paths |= {f"{TOKENIZER}{found.name}": found for found in _tokenizer_files(directory, meta)}
    family = next(family for family in FAMILIES if family == meta["kind"])
    beside = {name: _entry(paths[name]) for name in paths if name not in files}
    record = Record(
        family=family, name=directory.absolute().name, content_sha256=meta["content_sha256"], meta_sha256=meta["meta_sha256"], beside=beside
    )
    return LocalBuild(directory=directory, meta=meta, record=record, paths=paths)


def _tokenizer_files(directory: Path, meta: Meta) -> list[Path]:
    """Return the files of the tokenizer in the cache root. There are none for imported tokens, whose tokenizer is unknown."""
    if meta.get("tokenizer_sha256") is None:
        return []
    folder = tokenizer_dir(directory.absolute().parent.parent)
    current = current_tokenizer_sha256(directory)
    problem = "it is missing" if current is None else tokenizer_problem(meta, current)
    if problem:
        raise NielsCacheError(f"{folder}: push sends the tokenizer with the cache, but {problem}")
    path = folder / META_NAME
    files = listed_files(load_meta(path), folder)
    check_sizes(folder, files, _sizes(folder, files), verify="sha256")
    return [*(folder / name for name in sorted(files)), path]


def _sizes(folder: Path, names: Iterable[str]) -> dict[str, int]:
    return {name: (folder / name).stat().st_size for name in names if (folder / name).is_file()}


def _entry(path: Path) -> dict[str, int | str]:
    return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}


def require_replaceable(build: LocalBuild, found: Record | None, address: str, *, replace_other: bool) -> None:
    """Raise NielsCacheError if `found`, the record at the address, must not be replaced."""
    if found is None or build.record.is_same_build(found):
        return
    if (found.family, found.name) != (build.record.family, build.record.name):
        raise NielsCacheError(f"{address}: holds {found.family}/{found.name}; push to another address")
    if not replace_other:
        raise NielsCacheError(f"{address}: holds another build ({found.content_sha256[:12]}) of {found.name}; --replace exchanges it")


def _send_missing(build: LocalBuild, store: Store, *, tally: Tally, compared: Compared) -> set[RemoteFile]:
    """Send the files that the store does not have, and return them.

    Each comparison includes the previous ones: size, recorded hash, content.
    """
    sizes = {each.key: each.size for each in store.list(build.record.content_sha256)}
    sent: set[RemoteFile] = set()

    def is_there(file: RemoteFile) -> bool:
        found = sizes.get(file.key) == file.size and (compared == "size" or store.recorded_sha256(file.key) == file.sha256)
        if compared != "content":
            return found
        if found:
            return content_problem(store, file, tally) is None
        tally.add(file.size)  # instead of the bytes that would be read
        return False

    def send(file: RemoteFile) -> None:
        if not is_there(file):
            _send(build, file, store, tally)
            sent.add(file)
        tally.add(file.size)

    run_in_threads(send, build.files, tally=tally)
    return sent


def _send(build: LocalBuild, file: RemoteFile, store: Store, tally: Tally) -> None:
    """Send a local file. If its bytes change in the meantime, delete the object, because its content would differ from its hash."""
    with _checked_file(build, file, tally) as (opened, content, state):
        try:
            store.put(file.key, opened, content, sha256=file.sha256)
        finally:
            if _file_stamp(opened) != state and _sha256(content, tally) != file.sha256:
                store.delete([file.key])
                raise changed_file_error(build, file, "changed while it was sent; rebuild this data set")


@contextmanager
def _checked_file(build: LocalBuild, file: RemoteFile, tally: Tally) -> Iterator[tuple[BinaryIO, memoryview, object]]:
    """Open and hash a local file. Yield it with its bytes, and with its state before hashing.

    Raises:
        NielsCacheError: If the hash is not the one in meta.json, or for an OSError in the block.
    """
    try:
        with open(build.paths[file.path], "rb") as opened, mapped(opened) as content:
            state = _file_stamp(opened)
            if _sha256(content, tally) != file.sha256:
                raise changed_file_error(build, file, "its sha256 is not the one in meta.json; rebuild this data set")
            yield opened, content, state
    except OSError as error:
        raise changed_file_error(build, file, f"cannot be read: {error.strerror or error}") from error


def _sha256(content: memoryview, tally: Tally) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(content), _BLOCK_BYTES):
        digest.update(content[start : start + _BLOCK_BYTES])
        tally.add(0)
    return digest.hexdigest()


def _file_stamp(opened: BinaryIO) -> object:
    """Return values of an open file that change when its bytes change."""
    state = os.fstat(opened.fileno())
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns


def changed_file_error(build: LocalBuild, file: RemoteFile, problem: str) -> NielsCacheError:
    """Return the error for a local file that cannot be sent: either the cache was rebuilt, or `problem`."""
    now = read_build(build.directory)
    if now is None or hashlib.sha256(now).hexdigest() != build.record.beside[META_NAME]["sha256"]:
        return NielsCacheError(f"{build.directory}: was rebuilt during the push; push it again")
    return NielsCacheError(f"{build.paths[file.path]}: {problem}")


def _write_record(store: Store, record: Record, found: Record | None, version: str | None, *, doing: str) -> None:
    """Write the record if it is unchanged since it was read. `doing` is push or prune, for the message."""
    try:
        store.write_if(META_NAME, record.content(), state=version)
    except ConflictError:
        current, _ = record_at(store)
        if record.is_same_build(current) and not record.is_same_build(found):  # by another push
            return
        named = "nothing" if current is None else f"build {current.content_sha256[:12]}"
        raise RemoteError(
            f"{store.address}: another process changed this address during the {doing}; it names {named} now, and this {doing} changed "
            f"nothing; look at it, and {doing} again"
        ) from None
