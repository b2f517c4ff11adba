"""Indices on disk, which are stored orders of samples: one process builds an index, and all processes map it.

FOLDER/<hash>/ has one .npy file per array, and a meta.json with the parameters.

    hash = sha256 of kind, parameters and the data's fingerprint (32 hex digits)   ->   another cache at the same path, another index

A folder whose name is its hash is complete. The index is built in a neighbouring folder, `.HASH.partial`, under a lock; then it is opened
once as a check, and the folder is renamed. If many processes need one index at once, one of them builds it and the others wait. If the
builder dies, the system releases its lock, and the next process starts again. Finished indices are found without a lock, so a prebuilt
folder may be read-only or on a file system without locks. A damaged index is built again and replaced; processes that have mapped it keep
it.

The builders define the arrays. Opening a finished index costs one small read, and one map for each array.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_runtime.cache.opening import listed_files
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from niels_cache_runtime.format.commit import (
    UNKNOWN,
    BusyError,
    LockOwner,
    LockRefusedError,
    hold_lock,
    partial_path,
    remove,
    replace_folder,
    sync,
)
from niels_cache_runtime.format.layout import META_NAME, Array
from niels_cache_runtime.format.meta import Meta, index_name, read_meta, sha256_file, write_meta
from niels_cache_runtime.format.meta_keys import check_form
from niels_cache_runtime.format.npy_files import create_npy, map_npy
from niels_cache_runtime.format.safe_open import link_problem

INDEX_VERSION = 1  # version of the algorithms, a part of every hash: if their results change, it must change
_POLL_SECONDS = 0.2
_ARRAY_NAME = re.compile(r"[a-z_]+\.npy")
_ABANDONED_NAME = re.compile(r"\.[0-9a-f]{32}\.(partial|damaged|old)")
_QUIET_SECONDS = 2.0  # a shorter wait is not reported

Arrays = dict[str, Array]
Allocate = Callable[[str, tuple[int, ...], np.dtype], Array]
Notify = Callable[[str], None]


def new_array(name: str, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Allocate memory for the array `name`. This is the default `Allocate`."""
    return np.empty(shape, dtype=dtype)


class IndexCache:
    """A folder of indices, such as `cache/index`.

    Args:
        folder: The folder. It is created when the first index is built.
        wait_seconds: How long to wait for another process that builds the same index.
        hashed_bytes: Whenever an index is opened, files of at most so many bytes are hashed and compared with its meta.json.
        notify: Called with a one-line message about such a wait. By default the message is printed to standard error.
    """

    def __init__(self, folder: str | Path, *, wait_seconds: float = 3600.0, notify: Notify | None = None, hashed_bytes: int = 0) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.wait_seconds, self._hashed_bytes = wait_seconds, hashed_bytes
        self._notify = notify or (lambda message: print(message, file=sys.stderr, flush=True))

    def directory(self, kind: str, parameters: Mapping[str, Any]) -> Path:
        """Return the folder of an index, which may not exist yet. Its name is the hash.

        Args:
            kind: The kind of index, such as "blend".
            parameters: Everything that determines the arrays, as values that JSON can represent.
        """
        return self.folder / index_hash(kind, parameters)

    def open(self, kind: str, parameters: Mapping[str, Any], build: Callable[[Allocate], object]) -> Arrays:
        """Return the arrays of an index by name, mapped read-only. If the index does not exist, build it first.

        Args:
            kind: The kind of index, such as "blend".
            parameters: Everything that determines the arrays, as values that JSON can represent.
            build: A function that takes an `Allocate` and fills the arrays that it returns.

        Raises:
            NotWrittenError: If the folder cannot be written.
            NielsCacheError: If another process builds the index for longer than `wait_seconds`.
        """
        directory = self.directory(kind, parameters)
        return self._open_finished(directory) or self._build(directory, kind, parameters, build)

    def _open_finished(self, directory: Path) -> Arrays | None:
        return _open_finished(directory, self._hashed_bytes)

    def _build(self, directory: Path, kind: str, parameters: Mapping[str, Any], build: Callable[[Allocate], object]) -> Arrays:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clear_abandoned()
            with hold_lock(directory, retry_seconds=0.0, wait=self._wait_for(directory)):
                os.listdir(self.folder)  # a network file system may have cached, before the wait, that the folder is missing
                arrays = self._open_finished(directory)
                if arrays is not None:
                    return arrays
                partial = partial_path(directory)
                remove(partial)
                partial.mkdir()
                try:
                    build(_files_in(partial))
                    write_meta(partial / META_NAME, _describe_files(partial, f"index/{kind}", parameters))
                    if _open_finished(partial) is None:
                        raise NielsCacheError(f"{partial}: the new index cannot be read; is the disk damaged?")
                    if self._open_finished(directory) is None:  # another process may have built it, if locks do not work here
                        replace_folder(partial, directory)  # a damaged index is then in `partial`
                        sync(self.folder)
                finally:
                    remove(partial)
        except LockRefusedError as error:
            if error.no_locks:
                raise NotWrittenError(
                    f"{self.folder}: its file system supports no locks ({error.refusal.strerror}), so nothing can be built there; "
                    "build the index ahead elsewhere and copy it"
                ) from error.refusal
            raise _write_error(directory, error.refusal) from error.refusal
        except OSError as error:
            raise _write_error(directory, error) from error
        arrays = _open_finished(directory)
        if arrays is None:
            raise NielsCacheError(f"{directory}: the index vanished as soon as it was built; is another program clearing {self.folder}?")
        return arrays

    def _clear_abandoned(self) -> None:
        """Remove the folders of builders that were killed. Such a folder has a lock that no process holds.

        The user chooses the folder of the cache, so other programs may have folders with similar names in it. These are not removed.
        """
        for abandoned in [path for path in self.folder.iterdir() if _ABANDONED_NAME.fullmatch(path.name) and path.is_dir()]:
            with suppress(BusyError, LockRefusedError), hold_lock(abandoned.with_name(abandoned.stem.removeprefix(".")), retry_seconds=0.0):
                remove(abandoned)

    def _wait_for(self, directory: Path) -> Callable[[LockOwner], None]:
        """Return a function to call repeatedly while another process builds this index."""
        began, is_reported = time.monotonic(), False

        def wait(owner: LockOwner) -> None:
            nonlocal is_reported
            waited = time.monotonic() - began
            builder = "another process" if owner == UNKNOWN else f"process {owner.pid} on {owner.host}"
            if waited > self.wait_seconds:
                raise NielsCacheError(
                    f"{directory}: {builder} has been building this index for more than {self.wait_seconds:.0f} s; "
                    "wait longer (wait_seconds), or build it ahead"
                )
            if waited > _QUIET_SECONDS and not is_reported:
                self._notify(f"waiting for {builder}, which builds the index {directory} (at most {self.wait_seconds:.0f} s)")
                is_reported = True
            time.sleep(_POLL_SECONDS)

        return wait


def _write_error(directory: Path, error: OSError) -> NotWrittenError:
    return NotWrittenError(
        f"{error.filename or directory}: {error.strerror or error}: the index cannot be written; "
        "choose another folder, or build it ahead on another machine"
    )


def index_hash(kind: str, parameters: Mapping[str, Any]) -> str:
    """Return the name of an index. It does not depend on the order of the parameters."""
    return index_name(kind, version=INDEX_VERSION, parameters=dict(parameters))


def open_arrays(directory: str | Path) -> Arrays:
    """Return the arrays of a finished index by name, mapped read-only.

    Raises:
        NielsCacheError: If the index is missing or incomplete.
    """
    arrays = _open_finished(Path(directory))
    if arrays is None:
        raise NielsCacheError(f"{directory}: no finished index here; open the data set again to build it")
    return arrays


def _open_finished(directory: Path, hashed_bytes: int = 0) -> Arrays | None:
    """Return the arrays of an index if its name matches its parameters and all files are as listed, otherwise None."""
    try:
        meta = check_form(read_meta(directory / META_NAME), directory / META_NAME)
        files = listed_files(meta, directory)
        expected_name = index_hash(str(meta.get("kind")).removeprefix("index/"), meta.get("parameters", {}))
        if directory.name not in (expected_name, f".{expected_name}.partial") or not all(_ARRAY_NAME.fullmatch(name) for name in files):
            return None
        if link_problem(directory, files) or any((directory / name).stat().st_size != entry["bytes"] for name, entry in files.items()):
            return None
        if any(entry["bytes"] <= hashed_bytes and sha256_file(directory / name) != entry["sha256"] for name, entry in files.items()):
            return None
    except (NielsCacheError, OSError):
        return None
    try:
        return {name.removesuffix(".npy"): map_npy(directory / name) for name in sorted(files)}
    except (NielsCacheError, FileNotFoundError):  # a file has an invalid header or was removed meanwhile
        return None
    except OSError as error:  # the process has too many maps or no permission: the index is not damaged
        raise NielsCacheError(f"{directory}: cannot be mapped: {error.strerror or error}") from error


def _files_in(folder: Path) -> Allocate:
    def allocate(name: str, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        shape = tuple(int(extent) for extent in shape)  # numpy cannot read back a header with numpy integers
        if 0 in shape:  # an empty array cannot be mapped
            np.save(folder / f"{name}.npy", np.empty(shape, dtype=dtype))
            return np.empty(shape, dtype=dtype)
        return create_npy(folder / f"{name}.npy", dtype, shape)

    return allocate


def _describe_files(folder: Path, kind: str, parameters: Mapping[str, Any]) -> Meta:
    """Flush the arrays in a folder to disk. Return their record for meta.json."""
    files = {}
    for path in sorted(folder.glob("*.npy")):
        sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    return {"kind": kind, "index_version": INDEX_VERSION, "parameters": dict(parameters), "files": files}
