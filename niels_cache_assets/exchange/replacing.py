"""The files of an export in their final folder: what an older export left there, and the replacement of old files, all or nothing.

A list next to the files of an export names these files, one name per line. A pattern of names would not be enough, because one pattern
would match both the parts of `c4` and a data set `c4_00000`. The files are written elsewhere (writing.py).
"""

import json
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from niels_cache_assets.base.processes import delay_signals
from niels_cache_assets.disk.journal import write_atomically
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import remove, sync
from niels_cache_runtime.format.safe_open import link_problem, name_problem, read_regular

NEW, OLD = "new", "old"  # folders in the stage: NEW has complete files to be moved, OLD the replaced files
_PLACED = "placed"  # a file in the stage: it lists the files that are being moved, a line of JSON each

_MAX_LIST_BYTES = 1 << 26


@dataclass(frozen=True, kw_only=True)
class ExportTarget:
    """The file names of a split in the export's folder. An empty split has them, too.

    All names are relative to the export's folder, with slashes.

    Attributes:
        list_name: The file that lists the files, if their number varies.
        names: The names of the files, if they are always the same.
    """

    list_name: str | None = None
    names: tuple[str, ...] = ()

    def older(self, folder: Path) -> list[str]:
        """Return the names of the existing files of an older export.

        The file `list_name` comes before the files that it lists. In each part of the export, the tokens come before the files that
        describe them.
        """
        names = list(self.names)
        if self.list_name is not None and os.path.lexists(folder / self.list_name):
            names += [self.list_name, *_read_list(folder / self.list_name)]
        return [name for name in names if os.path.lexists(folder / name)]


def _read_list(path: Path) -> list[str]:
    """Return the names in a list. Raise NielsCacheError for any other file, so that only files of an export are ever deleted."""
    try:
        names = read_regular(path, most_bytes=_MAX_LIST_BYTES).decode().splitlines()
    except (OSError, ValueError) as error:
        raise NielsCacheError(f"{path}: cannot be read as the list of an export's files; choose another place") from error
    for name in names:
        if not _is_below(name):
            raise NielsCacheError(f"{path}: is not the list of an export's files: it has {name!r}; move it away or choose another place")
        if leaves := link_problem(path.parent, [PurePosixPath(name).parent.as_posix()]):
            raise NielsCacheError(f"{path.parent / leaves[0]}: {leaves[1]}")
        if os.path.lexists(path.parent / name) and not stat.S_ISREG(os.lstat(path.parent / name).st_mode):
            raise NielsCacheError(f"{path.parent / name}: is not a regular file of an export, though {path.name} names it; move it away")
    return names


def _is_below(name: str) -> bool:
    """Return whether the name is a file in the export's folder or one folder below, and is not hidden.

    Hidden names such as `.git/config` are never part of an export.
    """
    return name_problem(name) is None and name.count("/") <= 1 and not any(part.startswith(".") for part in name.split("/"))


def existing_files(folder: Path, names: Iterable[str]) -> list[str]:
    """Return the names of existing files in the export's folder, each once.

    Raises:
        NielsCacheError: If a folder is in the way.
    """
    found = [name for name in dict.fromkeys(names) if os.path.lexists(folder / name)]
    for name in found:
        if (folder / name).is_dir():
            raise NielsCacheError(f"{folder / name}: is a folder in the place of an export file; choose another place")
    return found


def leftover_files(folder: Path, stage: Path) -> set[str]:
    """Return the names of the files that a killed export left in the folder while it moved files there.

    Files that have changed since then are left out.
    """
    try:
        placed = (json.loads(line) for line in (stage / _PLACED).read_text(encoding="utf-8").splitlines())
        named = [(str(name), identity) for name, *identity in placed]
    except (OSError, ValueError, TypeError):  # there is no valid list of placed files
        return set()
    return {name for name, identity in named if _is_below(name) and os.path.lexists(folder / name) and _identity(folder / name) == identity}


def take_back(folder: Path, stage: Path, *, force: bool) -> None:
    """Move the files that a killed export left in the folder back to stage/NEW.

    Args:
        folder: The folder of the export.
        stage: The staging directory.
        force: Whether the files of an older export in stage/OLD may be lost.

    Raises:
        NielsCacheError: If there are such files, and `force` is not set.
    """
    if (stage / OLD).exists() and not force:
        raise NielsCacheError(f"{stage / OLD}: holds files of an older export; put them back, or delete them with --force")
    for name in leftover_files(folder, stage):
        os.replace(folder / name, stage / NEW / name)


def empty_folder(folder: Path) -> None:
    """Remove everything in a folder."""
    for path in folder.iterdir():
        remove(path)


def _identity(path: Path) -> list[int]:
    """Return the attributes that a rename does not change."""
    found = os.lstat(path)
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def swap_files(folder: Path, stage: Path, *, older: Sequence[str], names: Sequence[str]) -> None:
    """Replace the files of an older export, then delete them.

    The files `older` are moved from the folder to stage/OLD, last name first, and the files `names` from stage/NEW into the folder. SIGINT
    and SIGTERM are handled afterwards. If the process is killed in between, the folder has some of the old files or some of the new files,
    but never both. The missing old files are then in stage/OLD, and `leftover_files` returns the names of the new files in the folder.

    Args:
        folder: The folder of the export.
        stage: The staging directory.
        older: The names of the old files.
        names: The names of the new files.

    Raises:
        OSError: If the disk fails. All files are then where they were before.
    """
    moved: list[str] = []
    placed: list[str] = []
    created: list[Path] = []
    with delay_signals():
        try:
            lines = [json.dumps([name, *_identity(stage / NEW / name)]) for name in names]
            write_atomically(stage / _PLACED, "".join(f"{line}\n" for line in lines).encode())
            for name in reversed(older):
                (stage / OLD / name).parent.mkdir(parents=True, exist_ok=True)
                os.rename(folder / name, stage / OLD / name)
                moved.append(name)
            for name in names:
                below = (folder / name).parent
                if not below.is_dir():
                    below.mkdir()
                    created.append(below)
                os.rename(stage / NEW / name, folder / name)
                placed.append(name)
            for below in {(folder / name).parent for name in (*names, *older)}:
                sync(below)
        except BaseException as error:
            try:
                for name in reversed(placed):
                    os.unlink(folder / name)
                for name in reversed(moved):
                    os.rename(stage / OLD / name, folder / name)
            except OSError as second:
                message = f"{folder}: {second.strerror}, so the older export could not be put back after {error}; it is in {stage / OLD}"
                raise NielsCacheError(f"{message}: move it from there by hand") from error
            for below in reversed(created):
                with suppress(OSError):  # the folder is not empty
                    below.rmdir()
            shutil.rmtree(stage / OLD, ignore_errors=True)
            raise
        shutil.rmtree(stage / OLD, ignore_errors=True)
