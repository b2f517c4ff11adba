"""Staging directories: a build writes into a directory next to its target, and replaces the target in one step at the end.

A build writes into `.NAME.partial` next to NAME under a lock (build_lock.py), and swaps the two directories when everything is on disk. On
Linux, the swap is one `renameat2(RENAME_EXCHANGE)`. On other systems, the old directory is renamed first, so for a moment a reader finds no
directory. The swap is in niels_cache_runtime.format.commit.

If a build with a journal is interrupted, its staging directory stays for the next build.

The staging folder of an export (`export_stage`) is itself locked, because its files move into a folder that other exports use, too.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.filesize import decimal as file_size

from niels_cache_assets.disk.build_lock import lock_target, state_of
from niels_cache_assets.disk.journal import JOURNAL_NAME, SCRATCH_NAME, real_path
from niels_cache_assets.disk.space import bytes_below, disk_error_message, name_path
from niels_cache_runtime.cache.opening import listed_files
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format import commit
from niels_cache_runtime.format.commit import BusyError, hold_lock, old_path, partial_path, remove, sync, try_lock
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.format.meta_keys import check_form
from niels_cache_runtime.format.safe_open import link_problem


def finished_meta(directory: Path) -> Meta | None:
    """Return the meta.json of a directory if it is readable and every listed file exists with the right size.

    Otherwise return None, which means that the directory must be built again.
    """
    try:
        meta = check_form(read_meta(directory / META_NAME), directory / META_NAME)
        files = listed_files({"files": {}, **meta}, directory)
    except NielsCacheError:
        return None
    complete = all((directory / path).is_file() and (directory / path).stat().st_size == entry["bytes"] for path, entry in files.items())
    return meta if complete and not link_problem(directory, files) else None


@contextmanager
def atomic_directory(target: str | Path, *, resumable: bool = False) -> Iterator[Path]:
    """Yield an empty directory that replaces `target` if the block succeeds. If the block fails, the directory is removed.

    The journal and SCRATCH_NAME are removed only when the directory replaces the target, so that a last step that fails or is interrupted
    can be repeated.

    Args:
        target: The directory to replace.
        resumable: If the block fails and leaves a JOURNAL_NAME in the directory, keep the directory. The next call then yields it
            unchanged; only in this case is the yielded directory not empty. Without a journal, the next build removes the files of a killed
            build.

    Raises:
        BusyError: If another build of `target` is running.
        NielsCacheError: If the file system has no locks, if the parent of `target` is not writable, if the disk fails, or if `target` is a
            directory that contains names that caches do not have.
    """
    with lock_target(target), staged(target, resumable=resumable) as partial:
        yield partial


@contextmanager
def staged(
    target: str | Path, *, resumable: bool = False, partial: Path | None = None, check: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """Yield the directory that will replace `target`. The caller must hold the lock of `target`. See `atomic_directory`.

    Args:
        target: The directory to replace.
        resumable: See `atomic_directory`.
        partial: The staging directory of this attempt (attempts.py) instead of the usual one.
        check: Called before the directory replaces the target. It raises NielsCacheError if this build must stop.
    """
    target = real_path(target)
    partial = partial or partial_path(target)
    placed, problem = False, ""
    try:
        try:
            _clear_leftovers(target, partial, resumable=resumable)
            partial.mkdir(exist_ok=True)
            if resumable:
                sync(target.parent)  # after a power loss, a journal is useless without its directory
            yield partial
            _sync_tree(partial)
            check()
            _replace_target(partial, target)
            placed = True
            sync(target.parent)
        except OSError as error:
            problem = disk_error_message(error, target)  # before the written files are removed, because the message names the free space
            raise
        finally:
            if placed or not _is_resumable(partial, resumable):
                with suppress(OSError):  # after a swap this is the old build; the next build removes it, or reports why it cannot
                    remove(partial)
                    remove(unused_journal_path(target))
    except OSError as error:
        state = "the new cache is in place, but a power loss may undo that" if placed else state_of(target)
        kept_bytes = 0 if placed or not _is_resumable(partial, resumable) else bytes_below(partial)
        kept = f"; {file_size(kept_bytes)} of the unfinished build are kept, and the next run resumes from them" if kept_bytes else ""
        raise NielsCacheError(f"{problem or disk_error_message(error, target)}; {state}: {target}{kept}") from error


@contextmanager
def export_stage(folder: Path, stage: Path, *, kept: str, advice: str) -> Iterator[Path]:
    """Create and lock the staging folder of an export to `folder`. Remove it afterwards, unless it contains the name `kept`.

    Args:
        folder: The folder of the export.
        stage: The staging folder.
        kept: The file or folder whose presence keeps the staging folder.
        advice: The end of the message about a disk error.

    Raises:
        NielsCacheError: If the disk fails, or if another export is writing there.
    """
    existed = folder.is_dir()
    try:
        stage.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)  # following a link would empty a different folder
    except OSError as error:
        raise NielsCacheError(f"{folder}: cannot write there: {error.strerror or error}; choose another place") from error
    try:
        if not try_lock(descriptor, stage, fcntl.LOCK_EX):
            raise NielsCacheError(f"{stage}: another export is writing there now; wait for it to end")
        try:
            yield stage
        except OSError as error:
            raise NielsCacheError(f"{disk_error_message(error, folder)}; {advice}") from error
        finally:
            if not (stage / kept).exists():
                shutil.rmtree(stage, ignore_errors=True)
            if not existed:
                with suppress(OSError):  # the folder is not empty
                    folder.rmdir()
    finally:
        os.close(descriptor)


def sweep_leftovers(target: str | Path, *, resumable: bool = True) -> None:
    """Remove the files of killed builds of `target`, unless a process is building it.

    Args:
        target: The directory.
        resumable: Whether to keep an unfinished build that can be resumed.
    """
    target = real_path(target)
    if not any(os.path.lexists(path) for path in (partial_path(target), old_path(target), unused_journal_path(target))):
        return
    try:
        with hold_lock(target):
            _clear_leftovers(target, partial_path(target), resumable=resumable)
    except BusyError:
        return
    except OSError as error:
        raise NielsCacheError(
            f"{error.filename or target}: {error.strerror or error}; files of a killed build cannot be removed"
        ) from error


def _is_resumable(partial: Path, resumable: bool) -> bool:
    return resumable and not partial.is_symlink() and (partial / JOURNAL_NAME).is_file()


def _clear_leftovers(target: Path, partial: Path, *, resumable: bool) -> None:
    """Remove the files of killed builds. The caller holds the lock, so no other build is running."""
    aside = old_path(target)
    if aside.exists() and not target.exists():
        os.rename(aside, target)  # a build was killed between the two renames, on a system without a swap
    remove(aside)
    remove(unused_journal_path(target))
    if not _is_resumable(partial, resumable):
        remove(partial)


def _sync_tree(root: Path) -> None:
    """Flush every file and directory below `root` to disk (fsync).

    Some writers (a child process) do not flush their files. For a file that is already on disk, this costs little. A file with a second
    link comes from a finished part, which is on disk, so only its name is flushed, together with its directory.
    """
    for folder, _, names in os.walk(root, topdown=False):
        for path in (Path(folder, name) for name in names):
            with name_path(path):
                if os.stat(path).st_nlink == 1:
                    sync(path)
        sync(Path(folder))


def _replace_target(partial: Path, target: Path) -> None:
    """Replace the target with the staging directory, without the journal and the scratch folder.

    If this step fails or is interrupted, the journal and the scratch folder are put back. If the process is killed in this step, the next
    build starts from the beginning.
    """
    spare, finished = unused_journal_path(target), os.stat(partial).st_ino
    for unfinished in partial.glob(f"{JOURNAL_NAME}.*"):
        unfinished.unlink()
    try:
        for name in (JOURNAL_NAME, SCRATCH_NAME):  # the journal is moved first, and put back last
            if (partial / name).exists():
                spare.mkdir(exist_ok=True)
                os.rename(partial / name, spare / name)
        sync(partial)
        sync(partial.parent)
        commit.replace_folder(partial, target)
    except BaseException:
        # If an interrupt came after the swap, `partial` is the old cache.
        if partial.exists() and os.stat(partial).st_ino == finished:
            for name in (SCRATCH_NAME, JOURNAL_NAME):
                if (spare / name).exists():
                    os.rename(spare / name, partial / name)
            remove(spare)
        raise


def unused_journal_path(target: Path) -> Path:
    """Return the path to which the journal of a finished build is moved before it is removed."""
    return target.parent / f".{target.name}.journal"
