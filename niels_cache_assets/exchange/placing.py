"""The files of an export and those of the older one in its place: which those are, and the exchange of the two, as a whole or not at all.

What an export wrote is told by a list that lies with it, one name a line: by a pattern of names, parts of `c4` and a data set `c4_00000`
would be the same. How files are made is not known here.
"""

import json
import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from niels_cache_assets.processes import signals_afterwards
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.safe_open import link_problem, name_problem, read_regular

NEW, OLD = "new", "old"  # below the stage: complete files that wait for their places, and those that lay there
_PLACED = "placed"  # below the stage: which files are being put into their places, a line of JSON each

_MOST_LIST_BYTES = 1 << 26


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a split goes, also one that is empty now. `names`: its files, whatever is in them; where their number varies, the file
    `list_name` says which there are. All relative to the export's folder, with slashes."""

    list_name: str | None = None
    names: tuple[str, ...] = ()

    def older(self, folder: Path) -> list[str]:
        """Names of the files that are there of an older export, the list first, each part's tokens before what describes them."""
        names = list(self.names)
        if self.list_name is not None and os.path.lexists(folder / self.list_name):
            names += [self.list_name, *_read_list(folder / self.list_name)]
        return [name for name in names if os.path.lexists(folder / name)]


def list_of(names: Sequence[str]) -> bytes:
    """What the file `list_name` of a place holds."""
    return "".join(f"{name}\n" for name in names).encode()


def _read_list(path: Path) -> list[str]:
    """Raises NielsCacheError for what is no list: nothing is deleted that is not surely an export's."""
    try:
        names = read_regular(path, most_bytes=_MOST_LIST_BYTES).decode().splitlines()
    except (OSError, ValueError) as error:
        raise NielsCacheError(f"{path}: cannot be read as the list of an export's files; choose another place") from error
    for name in names:
        if not _is_below(name):
            raise NielsCacheError(f"{path}: is not the list of an export's files, it has {name!r}; move it away or choose another place")
        if leaves := link_problem(path.parent, [PurePosixPath(name).parent.as_posix()]):
            raise NielsCacheError(f"{path.parent / leaves[0]}: {leaves[1]}")
        if os.path.lexists(path.parent / name) and not stat.S_ISREG(os.lstat(path.parent / name).st_mode):
            raise NielsCacheError(f"{path.parent / name}: is no regular file, so no export's, though {path.name} names it; move it away")
    return names


def _is_below(name: str) -> bool:
    """Whether it names a file in the export's folder, or in a folder of that, neither hidden: `.git/config` is no export's."""
    return name_problem(name) is None and name.count("/") <= 1 and not any(part.startswith(".") for part in name.split("/"))


def left_behind(folder: Path, stage: Path) -> set[str]:
    """Names of the files in the folder that an export, killed while it placed them, left there; none that anybody has touched since."""
    try:
        placed = (json.loads(line) for line in (stage / _PLACED).read_text(encoding="utf-8").splitlines())
        named = [(str(name), identity) for name, *identity in placed]
    except (OSError, ValueError, TypeError):  # what is no such list names nothing
        return set()
    return {name for name, identity in named if _is_below(name) and os.path.lexists(folder / name) and _identity(folder / name) == identity}


def take_back(folder: Path, stage: Path) -> None:
    """Remove the files that a killed export left in their places: the next one has them all."""
    for name in left_behind(folder, stage):
        os.unlink(folder / name)


def _identity(path: Path) -> list[int]:
    """What a rename leaves as it is."""
    found = os.lstat(path)
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def _note_placed(stage: Path, names: Sequence[str]) -> None:
    lines = [json.dumps([name, *_identity(stage / NEW / name)]) for name in names]
    with open(stage / _PLACED, "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(stage)


def exchange(folder: Path, stage: Path, *, older: Sequence[str], names: Sequence[str]) -> None:
    """Move `older` of the folder into stage/OLD, last name first, then `names` of stage/NEW into the folder; then what is old is deleted.

    Raises OSError for what the disk refuses; all is as it was then. SIGINT and SIGTERM come when it is done. A process that is killed
    meanwhile leaves a part of the old files or of the new ones in the folder, never of both; the old ones are in stage/OLD, and the new
    ones are `left_behind`.
    """
    moved: list[str] = []
    placed: list[str] = []
    made: list[Path] = []
    with signals_afterwards():
        try:
            _note_placed(stage, names)
            for name in reversed(older):
                (stage / OLD / name).parent.mkdir(parents=True, exist_ok=True)
                os.rename(folder / name, stage / OLD / name)
                moved.append(name)
            for name in names:
                below = (folder / name).parent
                if not below.is_dir():
                    below.mkdir()
                    made.append(below)
                os.rename(stage / NEW / name, folder / name)
                placed.append(name)
            for below in {(folder / name).parent for name in (*names, *older)}:
                _sync_folder(below)
        except BaseException as error:
            try:
                for name in reversed(placed):
                    os.unlink(folder / name)
                for name in reversed(moved):
                    os.rename(stage / OLD / name, folder / name)
            except OSError as second:
                message = f"{folder}: {second.strerror}, so the older export could not be put back after {error}; it is in {stage / OLD}"
                raise NielsCacheError(f"{message}: move it from there by hand") from error
            for below in reversed(made):
                with suppress(OSError):  # there is something in it
                    below.rmdir()
            shutil.rmtree(stage / OLD, ignore_errors=True)
            raise
        shutil.rmtree(stage / OLD, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
