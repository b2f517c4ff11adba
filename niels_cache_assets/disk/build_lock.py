"""The lock of a build: one process builds a target at a time, and with `--wait` another process waits until the lock is free.

The lock is in niels_cache_runtime.format.commit. `artifacts/materialize.py` checks again after waiting whether a build is still needed.
Parts of a data set have leases instead (parts/lease.py), which also work on machines that share no file locks.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from niels_cache_assets.disk.journal import partial_directory, read_journal, real_path
from niels_cache_assets.disk.space import disk_error_message
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import LockOwner, hold_lock, lock_owner, sync
from niels_cache_runtime.format.layout import SPLITS, VAL_TEXTS, documents_folder, is_cache_file, is_tokenizer_file, name_in_train
from niels_cache_runtime.format.safe_open import require_utf8

_WAIT_SECONDS = 0.2
_FOLDERS = (VAL_TEXTS, *SPLITS, *map(documents_folder, SPLITS))


def is_cache_name(name: str) -> bool:
    """Return whether caches or tokenizers contain a file or folder with this name."""
    return name_in_train(name) in _FOLDERS or is_cache_file(name) or is_tokenizer_file(name)


class BuildStatus(NamedTuple):
    """The state of a build.

    Attributes:
        writer: The process that is building now, or None.
        is_resumable: Whether there is an unfinished build that can be resumed.
        share: The progress of that build from 0 to 1, or None if unknown.
        documents: The number of its documents or conversations so far, or None if unknown.
    """

    writer: LockOwner | None
    is_resumable: bool
    share: float | None
    documents: int | None


def build_status(target: str | Path) -> BuildStatus:
    """Return the state of a build of `target`. This costs one small read."""
    target = real_path(target)
    try:
        recorded = read_journal(partial_directory(target))
    except OSError:
        recorded = None  # another user's journal
    share, documents = (recorded.share, recorded.documents) if recorded else (None, None)
    return BuildStatus(lock_owner(target), recorded is not None, share, documents)


@contextmanager
def lock_target(
    target: str | Path, *, is_ours: Callable[[str], bool] = is_cache_name, wait: bool = False, log: Callable[[str], None] = print
) -> Iterator[bool]:
    """Hold the lock of `target`, and yield whether it was necessary to wait for it.

    Args:
        target: The directory to lock.
        is_ours: Returns whether a directory of ours may contain this name. A target with other names is refused.
        wait: Whether to log and wait until another build ends, instead of raising BusyError.
        log: Called with a line about each process that is waited for.

    Raises:
        BusyError: If another build of `target` is running and `wait` is False.
        NielsCacheError: For the other reasons of `atomic_directory`.
    """
    target, last = real_path(target), list[LockOwner]()

    def wait_for(writer: LockOwner) -> None:
        if last != [writer]:
            log(f"waiting for the other build of {target}: {writer}")
            last[:] = [writer]
        time.sleep(_WAIT_SECONDS)

    with ExitStack() as stack:
        try:
            require_target(target, is_ours)
            stack.enter_context(hold_lock(target, wait=wait_for if wait else None))
        except OSError as error:
            raise NielsCacheError(f"{disk_error_message(error, target)}; {state_of(target)}: {target}") from error
        yield bool(last)


def require_target(target: Path, is_ours: Callable[[str], bool]) -> None:
    """Create the parent folders of `target`.

    Raises:
        NielsCacheError: If the target must not be replaced or cannot be written.
    """
    require_utf8(target, "build into another folder")
    if target.exists() and not target.is_dir():
        raise NielsCacheError(f"{target}: is a file, not a cache directory; choose another place")
    foreign = sorted(path.name for path in target.iterdir() if not is_ours(path.name)) if target.is_dir() else []
    if foreign:
        raise NielsCacheError(f"{target}: holds {foreign[0]!r}, so it is not a cache to replace; move it away or choose another place")
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for parent in missing:
            sync(parent.parent)  # so that the new folders survive a power loss
    except OSError as error:
        raise NielsCacheError(f"{target.parent}: cannot write there: {error.strerror}; choose another cache directory") from error


def state_of(target: Path) -> str:
    """Return a clause about the state of the target after a failed build."""
    try:
        os.lstat(target)
    except FileNotFoundError:
        return "nothing is there yet"
    except OSError:
        return "the last good cache, if there is one, is unchanged"
    return "the last good cache is unchanged"


def path_stamp(path: Path) -> tuple[int, int] | None:
    """Return a value that changes when a different file or directory replaces this one, or None if nothing is there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
