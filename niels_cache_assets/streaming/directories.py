"""Directories that appear whole or not at all: build beside, then take the old one's place in one step.

A build writes into `.NAME.partial` next to NAME under a lock, and exchanges the two when everything is on disk. On Linux that is
one `renameat2(RENAME_EXCHANGE)`; elsewhere the old directory is renamed aside first, and for that instant a reader finds none.
"""

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import (
    META_NAME,
    SPLITS,
    TOKENIZER_MODEL_NAME,
    doc_ends_name,
    documents_name,
    examples_name,
    idx_name,
    tokens_name,
)
from niels_cache_runtime.meta import Meta, read_meta

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NAMES_BY_SPLIT = (doc_ends_name, documents_name, tokens_name, idx_name, examples_name)
_CACHE_NAMES = {META_NAME, TOKENIZER_MODEL_NAME, *SPLITS, *(name(split) for name in _NAMES_BY_SPLIT for split in SPLITS)}


def finished_meta(directory: Path) -> Meta | None:
    """The meta.json of what may still be good: readable, and every file of the right size. Anything else is to be built again."""
    try:
        meta = read_meta(str(directory / META_NAME))
    except NielsCacheError:
        return None
    sizes = {path: entry["bytes"] for path, entry in meta.get("files", {}).items()}
    whole = all((directory / path).is_file() and (directory / path).stat().st_size == size for path, size in sizes.items())
    return meta if whole else None


@contextmanager
def atomic_directory(target: str | Path, *, is_ours: Callable[[str], bool] = _CACHE_NAMES.__contains__) -> Iterator[Path]:
    """Yield an empty directory that takes the place of `target` when the block ends well, and vanishes when it does not.

    Raises NielsCacheError if another build of `target` runs, if the parent is not writable, or if `target` is a directory that is not
    ours (`is_ours` says of a name in it whether we write such a thing). A partial directory left by a killed build is cleared by the next.
    """
    target = Path(os.path.realpath(target))  # a link to a larger disk stays one
    partial = target.parent / f".{target.name}.partial"
    _refuse_foreign_directory(target, is_ours)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = open(target.parent / f".{target.name}.lock", "w")  # noqa: SIM115  (held for the whole block, closed below)
    except OSError as error:
        raise NielsCacheError(f"{target.parent}: cannot write there: {error.strerror}; choose another cache directory") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NielsCacheError(f"{target}: another build is writing it now; wait for it to end") from error
        _remove(partial)
        try:
            partial.mkdir()
            yield partial
            _sync_tree(partial)
            _take_place(partial, target)
        except OSError as error:
            where = error.filename or target
            raise NielsCacheError(f"{where}: {error.strerror or error}; the last good cache in {target} is unchanged") from error
        finally:
            _remove(partial)  # after an exchange this is the old build


def _refuse_foreign_directory(target: Path, is_ours: Callable[[str], bool]) -> None:
    if target.exists() and not target.is_dir():
        raise NielsCacheError(f"{target}: is a file, not a cache directory; choose another place")
    foreign = sorted(path.name for path in target.iterdir() if not is_ours(path.name)) if target.is_dir() else []
    if foreign:
        raise NielsCacheError(f"{target}: holds {foreign[0]!r}, so it is not a cache to replace; move it away or choose another place")


def _sync_tree(root: Path) -> None:
    """fsync every directory below `root` (the files were synced when they were closed)."""
    for folder, _, _ in os.walk(root, topdown=False):
        _sync_directory(Path(folder))


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take_place(partial: Path, target: Path) -> None:
    if not target.exists():
        os.rename(partial, target)
    elif not _exchange(partial, target):
        aside = target.parent / f".{target.name}.old"
        _remove(aside)
        os.rename(target, aside)
        os.rename(partial, target)
        _remove(aside)
    _sync_directory(target.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two paths in one step. False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(second))


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
