"""The staging directory of one attempt, and what it takes over from the previous attempt.

An earlier attempt may still have open files, because its process may be frozen or cut off from the network. So nothing in its staging
directory is changed. The new attempt links its finished files, which no process writes again, and copies its unfinished files up to their
recorded size. The old directory is then renamed in one step, before it is removed. After that, the old process can neither record nor
commit.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from niels_cache_assets.disk.attempts import NO_LINKS, abandoned_attempts, attempt_path, lease_path, recorded_attempts, staged_attempts
from niels_cache_assets.disk.journal import JournalRecord, files_problem, read_journal, real_path, write_journal
from niels_cache_assets.disk.space import bytes_below, disk_error_message, name_path
from niels_cache_assets.disk.staging import staged, sweep_leftovers, unused_journal_path
from niels_cache_assets.parts.lease import HeldLease, Lease, Log, hold_lease
from niels_cache_assets.project.running import ClusterSettings
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import BusyError, lock_path, old_path, remove, sync

_COMPANION = re.compile(r"\.(.+?)\.(?:lock|lease|old|journal|(?:partial|gone)(?:\.\d+)?)")  # see format/commit.py and disk/attempts.py


@contextmanager
def staged_attempt(lease: Lease, *, log: Log, resumable: bool) -> Iterator[Path]:
    """Yield the staging directory of an attempt, with everything that the last attempt has recorded. At the end it replaces the target.

    If the block fails, the directory stays for the next attempt.

    Args:
        lease: The lease of the attempt.
        log: Called with a line about what is taken over.
        resumable: With False, the directory is always empty at the beginning, and is removed if the block fails.

    Raises:
        NielsCacheError: If the disk fails.
        LeaseLostError: If another process has taken over before the end.
    """
    target = lease.target
    partial = attempt_path(target, lease.attempt)
    try:
        remove(partial)
        for source in staged_attempts(target) if resumable else ():
            recorded = read_journal(source)
            if recorded is not None:
                _copy_recorded(source, recorded, partial, lease.attempt, log)
                break
        _remove_attempts(target, lease.attempt)
    except OSError as error:
        with suppress(OSError):
            remove(partial)
        raise NielsCacheError(
            f"{disk_error_message(error, target)}; the unfinished build is unchanged, and the next run resumes from it"
        ) from error
    with staged(target, resumable=resumable, partial=partial, check=lease.check):
        yield partial


@contextmanager
def attempt_scratch(lease: HeldLease) -> Iterator[Path]:
    """Yield an empty directory of an attempt, for a target that is one file. The block itself moves the file to its final name.

    The directories of all earlier attempts are renamed first, so that a process that was overtaken no longer finds its file.
    """
    partial = attempt_path(lease.target, lease.attempt)
    remove(partial)
    _remove_attempts(lease.target, lease.attempt)
    try:
        partial.mkdir()
        yield partial
    finally:
        remove(partial)


def sweep_attempts(target: Path) -> None:
    """Remove the unfinished attempts at a finished target, unless a process is making one."""
    target = real_path(target)
    before = max(recorded_attempts(target), default=0) + 1
    if not abandoned_attempts(target, before):
        return sweep_leftovers(target, resumable=False)
    try:
        with hold_lease(target, times=ClusterSettings(), wait=False, at_once=True, log=lambda line: None) as lease:
            _remove_attempts(target, lease.attempt)
    except BusyError:
        return None
    except OSError as error:
        raise NielsCacheError(f"{disk_error_message(error, target)}; files of a killed build cannot be removed") from error


def targets_in(folder: Path) -> list[Path]:
    """Return the targets of all builds in a folder, including those of which only a lock or an unfinished build is left."""
    names = {path.name for path in folder.glob("*") if path.is_dir() and not path.name.startswith(".")}
    for path in folder.glob(".*"):
        names.update(match[1] for match in [_COMPANION.fullmatch(path.name)] if match)
    return [folder / name for name in sorted(names)]


class PrunedPart(NamedTuple):
    """A removed part or range, its unfinished build, or what an attempt has left in a store.

    Attributes:
        directory: The folder, or its address in the store.
        bytes: The size.
    """

    directory: Path | str
    bytes: int


def remove_target(lease: Lease) -> list[PrunedPart]:
    """Remove a target, its unfinished attempts and finally its lease, which the caller holds. Return what was removed."""
    target = lease.target
    attempts = [path for each in abandoned_attempts(target, lease.attempt) for path in each]
    found = [path for path in (target, *attempts, old_path(target), unused_journal_path(target)) if path.exists()]
    removed = [PrunedPart(path, bytes_below(path)) for path in found]
    for path in (*found, lease_path(target), lock_path(target)):
        remove(path)  # while the lease is held, because afterwards another build could hold it
    return removed


def _copy_recorded(source: Path, recorded: JournalRecord, partial: Path, attempt: int, log: Log) -> None:
    """Link the finished files of a record, copy the unfinished ones, and write the record for the new attempt last."""
    if problem := files_problem(source, recorded.sizes):
        log(f"starting afresh: {problem}")
        return
    for folder in sorted({(partial / name).parent for name in recorded.sizes} | {partial}):
        folder.mkdir(parents=True, exist_ok=True)
    for name in recorded.finished:
        try:
            os.link(source / name, partial / name)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            _copy(source / name, partial / name, recorded.sizes[name])
    for name, size in recorded.files.items():
        _copy(source / name, partial / name, size)
    for folder in sorted({(partial / name).parent for name in recorded.sizes}):
        sync(folder)
    sync(partial.parent)
    write_journal(partial, recorded._replace(attempt=attempt))


def _copy(source: Path, copy: Path, size: int) -> None:
    """Copy the first `size` bytes of a file, and flush them to disk."""
    with name_path(copy):
        shutil.copyfile(source, copy)
        os.truncate(copy, size)
        sync(copy)


def _remove_attempts(target: Path, before: int) -> None:
    """Remove the staging directories of all attempts before this one. Each is renamed first, so that its process cannot commit it."""
    for partial, gone in abandoned_attempts(target, before):
        with suppress(OSError):
            remove(gone)
        try:
            os.rename(partial, gone)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            with suppress(OSError):
                remove(partial)  # what a process has created again after it was overtaken
        with suppress(OSError):  # NFS keeps files that another process of this machine has open; the next build removes them
            remove(gone)
