"""Staging directories: a build writes into a directory next to its target, and replaces the target in one step at the end.

A build writes into `.NAME.partial` next to NAME under a lock, and swaps the two directories when everything is on disk. On Linux, the swap
is one `renameat2(RENAME_EXCHANGE)`. On other systems, the old directory is renamed first, so for a moment a reader finds no directory. The
lock and the swap are in niels_cache_runtime.format.commit.

If a build with a journal is interrupted, its staging directory stays for the next build.

The staging folder of an export (`export_stage`) is itself locked, because its files move into a folder that other exports use, too.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from rich.filesize import decimal as file_size

from niels_cache_assets.disk.journal import JOURNAL_NAME, SCRATCH_NAME, partial_directory, read_journal, real_path
from niels_cache_assets.disk.space import bytes_below, naming, refusal
from niels_cache_runtime.cache.opening import listed_files
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format import commit
from niels_cache_runtime.format.commit import Busy, Writer, aside_path, partial_path, remove, sync, try_lock, writer_lock, writer_of
from niels_cache_runtime.format.layout import (
    CHAT_TEMPLATE_NAME,
    META_NAME,
    SPLITS,
    TOKENIZER_MODEL_NAMES,
    TOKENIZER_SIDE_NAMES,
    VAL_TEXTS,
    doc_ends_name,
    documents_folder,
    documents_name,
    examples_name,
    idx_name,
    target_ends_name,
    targets_name,
    tokens_name,
)
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.format.meta_keys import check_form
from niels_cache_runtime.format.safe_open import link_problem, require_utf8

_WAIT_SECONDS = 0.2
_NAMES_BY_SPLIT = (
    doc_ends_name,
    documents_folder,
    documents_name,
    tokens_name,
    idx_name,
    targets_name,
    target_ends_name,
    examples_name,
)
_TOKENIZER_NAMES = {*TOKENIZER_MODEL_NAMES.values(), *TOKENIZER_SIDE_NAMES}
_CACHE_NAMES = {
    META_NAME,
    CHAT_TEMPLATE_NAME,
    VAL_TEXTS,
    *_TOKENIZER_NAMES,
    *SPLITS,
    *(name(split) for name in _NAMES_BY_SPLIT for split in SPLITS),
}


def is_cache_name(name: str) -> bool:
    """Return whether caches or tokenizers contain a file or folder with this name."""
    return name in _CACHE_NAMES


def finished_meta(directory: Path) -> Meta | None:
    """Return the meta.json of a directory if it is readable and every listed file exists with the right size.

    Otherwise return None, which means that the directory must be built again.
    """
    try:
        meta = check_form(read_meta(str(directory / META_NAME)), directory / META_NAME)
        files = listed_files({"files": {}, **meta}, directory)
    except NielsCacheError:
        return None
    whole = all((directory / path).is_file() and (directory / path).stat().st_size == entry["bytes"] for path, entry in files.items())
    return meta if whole and not link_problem(directory, files) else None


class Work(NamedTuple):
    """The state of a build.

    Attributes:
        writer: The process that is building now, or None.
        is_resumable: Whether there is an unfinished build that can be resumed.
        share: The progress of that build from 0 to 1, or None if unknown.
        documents: The number of its documents or conversations so far, or None if unknown.
    """

    writer: Writer | None
    is_resumable: bool
    share: float | None
    documents: int | None


def work_on(target: str | Path) -> Work:
    """Return the state of a build of `target`. This costs one small read."""
    target = real_path(target)
    try:
        recorded = read_journal(partial_directory(target))
    except OSError:
        recorded = None  # another user's journal
    share, documents = (recorded.share, recorded.documents) if recorded else (None, None)
    return Work(writer_of(target), recorded is not None, share, documents)


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
        Busy: If another build of `target` is running.
        NielsCacheError: If the file system has no locks, if the parent of `target` is not writable, if the disk fails, or if `target` is a
            directory that contains names that caches do not have.
    """
    with locked(target), staged(target, resumable=resumable) as partial:
        yield partial


@contextmanager
def locked(
    target: str | Path, *, is_ours: Callable[[str], bool] = is_cache_name, wait: bool = False, log: Callable[[str], None] = print
) -> Iterator[bool]:
    """Hold the lock of `target`, and yield whether it was necessary to wait for it. The errors are those of `atomic_directory`.

    Args:
        target: The directory to lock.
        is_ours: Returns whether a directory of ours may contain this name. A target with other names is refused.
        wait: Whether to log and wait until another build ends, instead of raising Busy.
        log: Called with a line about each process that is waited for.
    """
    target, waited = real_path(target), False

    def wait_for(writer: Writer) -> None:
        nonlocal waited
        waited = True
        _wait_until_free(target, writer, log)

    with ExitStack() as held:
        try:
            require_target(target, is_ours)
            held.enter_context(writer_lock(target, wait=wait_for if wait else None))
        except OSError as error:
            raise NielsCacheError(f"{refusal(error, target)}; {_state_of(target)}: {target}") from error
        yield waited


def _wait_until_free(target: Path, writer: Writer | None, log: Callable[[str], None]) -> None:
    """Wait until no process builds `target` (`--wait`). Each process that builds it is logged once.

    `artifacts/materialize.py` then checks again whether a build is still needed.

    Args:
        target: The directory.
        writer: The process that is building it now.
        log: Called with a line about each such process.
    """
    told: Writer | None = None
    while writer is not None:
        if writer != told:
            log(f"waiting for the other build of {target}: {writer}")
            told = writer
        time.sleep(_WAIT_SECONDS)
        writer = writer_of(target)


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
            _take_place(partial, target)
            placed = True
            sync(target.parent)
        except OSError as error:
            problem = refusal(error, target)  # before the written files are removed, because the message names the free space
            raise
        finally:
            if placed or not _is_resumable(partial, resumable):
                with suppress(OSError):  # after a swap this is the old build; the next build removes it, or reports why it cannot
                    remove(partial)
                    remove(_spare_journal(target))
    except OSError as error:
        stands = "the new cache is in place, but a power loss may undo that" if placed else _state_of(target)
        left = 0 if placed or not _is_resumable(partial, resumable) else bytes_below(partial)
        kept = f"; {file_size(left)} of the unfinished build are kept, and the next run resumes from them" if left else ""
        raise NielsCacheError(f"{problem or refusal(error, target)}; {stands}: {target}{kept}") from error


def _state_of(target: Path) -> str:
    """Return a clause about the state of the target after a failed build."""
    try:
        os.lstat(target)
    except FileNotFoundError:
        return "nothing is there yet"
    except OSError:
        return "the last good cache, if there is one, is unchanged"
    return "the last good cache is unchanged"


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
    was_there = folder.is_dir()
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
            raise NielsCacheError(f"{refusal(error, folder)}; {advice}") from error
        finally:
            if not (stage / kept).exists():
                shutil.rmtree(stage, ignore_errors=True)
            if not was_there:
                with suppress(OSError):  # the folder is not empty
                    folder.rmdir()
    finally:
        os.close(descriptor)


def place_of(target: Path) -> tuple[int, int] | None:
    """Return a value that changes when a different directory replaces `target`, or None if nothing is there."""
    try:
        found = os.stat(real_path(target))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def sweep_leftovers(target: str | Path, *, resumable: bool = True) -> None:
    """Remove the files of killed builds of `target`, unless a process is building it.

    Args:
        target: The directory.
        resumable: Whether to keep an unfinished build that can be resumed.
    """
    target = real_path(target)
    if not any(os.path.lexists(path) for path in (partial_path(target), aside_path(target), _spare_journal(target))):
        return
    try:
        with writer_lock(target):
            _clear_leftovers(target, partial_path(target), resumable=resumable)
    except Busy:
        return
    except OSError as error:
        raise NielsCacheError(
            f"{error.filename or target}: {error.strerror or error}; files of a killed build cannot be removed"
        ) from error


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


def _is_resumable(partial: Path, wanted: bool) -> bool:
    return wanted and not partial.is_symlink() and (partial / JOURNAL_NAME).is_file()


def _clear_leftovers(target: Path, partial: Path, *, resumable: bool) -> None:
    """Remove the files of killed builds. The caller holds the lock, so no other build is running."""
    aside = aside_path(target)
    if aside.exists() and not target.exists():
        os.rename(aside, target)  # a build was killed between the two renames, on a system without a swap
    remove(aside)
    remove(_spare_journal(target))
    if not _is_resumable(partial, resumable):
        remove(partial)


def _sync_tree(root: Path) -> None:
    """Flush every file and directory below `root` to disk (fsync).

    Some writers (a child process) do not flush their files. For a file that is already on disk, this costs little. A file with a second
    link comes from a finished part, which is on disk, so only its name is flushed, together with its directory.
    """
    for folder, _, names in os.walk(root, topdown=False):
        for path in (Path(folder, name) for name in names):
            with naming(path):
                if os.stat(path).st_nlink == 1:
                    sync(path)
        sync(Path(folder))


def _take_place(partial: Path, target: Path) -> None:
    """Replace the target with the staging directory, without the journal and the scratch folder.

    If this step fails or is interrupted, the journal and the scratch folder are put back. If the process is killed in this step, the next
    build starts from the beginning.
    """
    spare, finished = _spare_journal(target), os.stat(partial).st_ino
    for unfinished in partial.glob(f"{JOURNAL_NAME}.*"):
        unfinished.unlink()
    try:
        for name in (JOURNAL_NAME, SCRATCH_NAME):  # the journal is moved first, and put back last
            if (partial / name).exists():
                spare.mkdir(exist_ok=True)
                os.rename(partial / name, spare / name)
        sync(partial)
        sync(partial.parent)
        commit.take_place(partial, target)
    except BaseException:
        # If an interrupt came after the swap, `partial` is the old cache.
        if partial.exists() and os.stat(partial).st_ino == finished:
            for name in (SCRATCH_NAME, JOURNAL_NAME):
                if (spare / name).exists():
                    os.rename(spare / name, partial / name)
            remove(spare)
        raise


def _spare_journal(target: Path) -> Path:
    return target.parent / f".{target.name}.journal"
