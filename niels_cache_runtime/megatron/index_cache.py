"""Indices on disk, built once and mapped by all: FOLDER/<hash>/ with an .npy file for each array and meta.json, which says of what.

    hash = sha256 of kind, parameters and the data's fingerprint (32 hex digits)   ->   another cache at the same path, another index

A folder under its hash is complete: it is built beside, `.HASH.partial`, under a lock, opened once, and renamed. Of many processes that
ask at once one builds, the others wait; a builder that dies gives its lock back to the system, and the next begins anew. Finished indices
are found without a lock, so a prebuilt folder may lie on a read-only file system or on one without locks. One that is damaged is renamed
aside and built again; whoever has it mapped keeps it.

What the arrays are is the business of their builders (`gpt_indices`, `blended`). Asking for a finished index costs a small read and a
map for each array.
"""

import fcntl
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.cache.opening import listed_files
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import Meta, read_meta, sha256_file, write_meta
from niels_cache_runtime.format.meta_form import check_form
from niels_cache_runtime.format.npy_files import create_npy, map_npy
from niels_cache_runtime.format.place import index_name
from niels_cache_runtime.format.safe_open import link_problem
from niels_cache_runtime.megatron.gpt_indices import Allocate

INDEX_VERSION = 1  # of the algorithms: a change of what they give is a change of every hash
_POLL_SECONDS = 0.2
_DAMAGED = ".damaged"
_ARRAY_NAME = re.compile(r"[a-z_]+\.npy")
_ABANDONED_NAME = re.compile(r"\.[0-9a-f]{32}(-[A-Za-z]+-[a-z]+)?\.(partial|damaged)")  # with a class and a part for megatron-core
_QUIET_SECONDS = 2.0  # nobody is told of a shorter wait

Arrays = dict[str, NDArray[Any]]
Notify = Callable[[str], None]


class IndexCache:
    """A folder of indices, such as `cache/index`, made when the first is built.

    wait_seconds: how long to wait for another process that builds the same index. notify: told in one line that and for what this process
    waits (standard error by default).
    """

    def __init__(self, folder: str | Path, *, wait_seconds: float = 3600.0, notify: Notify | None = None) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.wait_seconds = wait_seconds
        self._notify = notify or (lambda message: print(message, file=sys.stderr, flush=True))

    def directory(self, kind: str, parameters: Mapping[str, Any]) -> Path:
        """Where that index lies, or will; its name is the hash."""
        return self.folder / index_hash(kind, parameters)

    def of(self, prefix: str | Path) -> "IndexCache":
        """Return the cache for indices of the data set at this prefix: this one, because its hash covers the data, not the place."""
        return self

    def array_files(self, directory: Path) -> list[Path]:
        """Return the .npy files of a finished index."""
        return [directory / name for name in read_meta(str(directory / META_NAME))["files"]]

    def open(self, kind: str, parameters: Mapping[str, Any], build: Callable[[Allocate], object]) -> Arrays:
        """The arrays of an index by name, mapped read-only; built here first where nobody has.

        parameters: all that decides the arrays, as JSON can hold it. build: is given an `Allocate` and fills what it gets from it.
        Raises NotWrittenError where the folder cannot be written, NielsCacheError after waiting for another builder in vain.
        """
        directory = self.directory(kind, parameters)
        arrays = self._find(directory, kind, parameters)
        return self._build(directory, kind, parameters, build) if arrays is None else arrays

    def _build(self, directory: Path, kind: str, parameters: Mapping[str, Any], build: Callable[[Allocate], object]) -> Arrays:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clear_abandoned()
            with self._locked(directory):
                os.listdir(self.folder)  # a file system on a network may remember from before the wait that it was not there
                arrays = self._find(directory, kind, parameters)
                if arrays is not None:
                    return arrays
                partial = directory.parent / f".{directory.name}.partial"
                _remove(partial)
                partial.mkdir()
                try:
                    build(_files_in(partial))
                    self._commit(partial, directory, kind, parameters)
                finally:
                    _remove(partial)
        except OSError as error:
            raise NotWrittenError(
                f"{error.filename or directory}: {error.strerror or error}: the index cannot be written; "
                "choose another folder, or build it ahead where it can"
            ) from error
        arrays = self._find(directory, kind, parameters)
        if arrays is None:
            raise NielsCacheError(f"{directory}: the index vanished as soon as it was built; is another program clearing {self.folder}?")
        return arrays

    def _find(self, directory: Path, kind: str, parameters: Mapping[str, Any]) -> Arrays | None:
        """The arrays of this index if it is finished and whole, else None."""
        return _finished(directory)

    def _commit(self, partial: Path, directory: Path, kind: str, parameters: Mapping[str, Any]) -> None:
        """Put the files that were built in `partial` into their place."""
        record = describe_files(partial, f"index/{kind}", parameters)
        write_meta(str(partial / META_NAME), record)
        if _finished(partial) is None:
            raise cannot_be_read(partial)
        _exchange(partial, directory)

    def _clear_abandoned(self) -> None:
        """Remove what builders left that were killed: their locks are free.

        The user chooses the folder, so other programs may keep names like these in it: they stay.
        """
        for left in [path for path in self.folder.iterdir() if _ABANDONED_NAME.fullmatch(path.name) and path.is_dir()]:
            with open(left.with_suffix(".lock"), "a+", encoding="utf-8") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:  # at work, or a file system without locks
                    continue
                _remove(left)

    @contextmanager
    def _locked(self, directory: Path) -> Iterator[None]:
        path = directory.parent / f".{directory.name}.lock"
        with open(path, "a+", encoding="utf-8") as lock:
            self._wait_for(lock, directory)
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {os.uname().nodename}")
            lock.flush()
            yield  # closing gives the lock back

    def _wait_for(self, lock: TextIO, directory: Path) -> None:
        began, told = time.monotonic(), False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                waited = time.monotonic() - began
            except OSError as error:
                raise NotWrittenError(
                    f"{directory.parent}: its file system has no locks ({error.strerror}), so nothing can be built there; "
                    "build the index ahead elsewhere and copy it"
                ) from error
            lock.seek(0)
            builder = lock.read() or "another process"
            if waited > self.wait_seconds:
                raise NielsCacheError(
                    f"{directory}: {builder} has been building this index for more than {self.wait_seconds:.0f} s; "
                    "wait longer (wait_seconds), or build it ahead"
                )
            if waited > _QUIET_SECONDS and not told:
                self._notify(f"waiting for {builder}, which builds the index {directory} (at most {self.wait_seconds:.0f} s)")
                told = True
            time.sleep(_POLL_SECONDS)


def index_hash(kind: str, parameters: Mapping[str, Any]) -> str:
    """The name of an index: the same for equal parameters, whatever their order."""
    return index_name(kind, version=INDEX_VERSION, parameters=dict(parameters))


def open_arrays(directory: str | Path) -> Arrays:
    """The arrays of a finished index by name, mapped read-only. Raises NielsCacheError if it is not there or not whole."""
    arrays = _finished(Path(directory))
    if arrays is None:
        raise NielsCacheError(f"{directory}: no finished index here; open the data set again to build it")
    return arrays


def _finished(directory: Path) -> Arrays | None:
    """Its arrays, if they are of what its name says and every file has the size that its description says; None if it is damaged or not
    there."""
    try:
        meta = check_form(read_meta(str(directory / META_NAME)), directory / META_NAME)
        files = listed_files(meta, directory)
        named = index_hash(str(meta.get("kind")).removeprefix("index/"), meta.get("parameters", {}))
        if directory.name not in (named, f".{named}.partial") or not all(_ARRAY_NAME.fullmatch(name) for name in files):
            return None
        if link_problem(directory, files) or any((directory / name).stat().st_size != entry["bytes"] for name, entry in files.items()):
            return None
    except (NielsCacheError, OSError):
        return None
    try:
        return {name.removesuffix(".npy"): map_npy(directory / name) for name in sorted(files)}
    except (NielsCacheError, FileNotFoundError):  # no such header; gone meanwhile
        return None
    except OSError as error:  # too many maps, no permission: the index is not to blame
        raise NielsCacheError(f"{directory}: cannot be mapped: {error.strerror or error}") from error


def _exchange(partial: Path, directory: Path) -> None:
    """Put what was built into its place, unless another process did first, whom a lock did not reach."""
    if _finished(directory) is not None:
        return
    damaged = directory.parent / f".{directory.name}{_DAMAGED}"
    _remove(damaged)
    if directory.exists():
        os.rename(directory, damaged)  # in one step: nobody finds it half removed
    os.rename(partial, directory)
    sync(directory.parent)
    _remove(damaged)


def _files_in(folder: Path) -> Allocate:
    def allocate(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        shape = tuple(int(extent) for extent in shape)  # numpy writes its own integers into the header so that it cannot read them
        if 0 in shape:  # cannot be mapped
            np.save(folder / f"{name}.npy", np.empty(shape, dtype=dtype))
            return np.empty(shape, dtype=dtype)
        return create_npy(folder / f"{name}.npy", dtype, shape)

    return allocate


def describe_files(folder: Path, kind: str, parameters: Mapping[str, Any]) -> Meta:
    """Return the record of the arrays that were built there, once they are on the disk."""
    files = {}
    for path in sorted(folder.glob("*.npy")):
        sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_file(str(path))}
    return {"kind": kind, "index_version": INDEX_VERSION, "parameters": dict(parameters), "files": files}


def cannot_be_read(partial: Path) -> NielsCacheError:
    """Return the error for a new index that does not open."""
    return NielsCacheError(f"{partial}: what was built cannot be read again; is the disk damaged?")


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
