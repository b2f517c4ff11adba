"""Local files that a glob or a folder names, and which of them are one file.

A glob has the meaning of Python's `glob.glob(recursive=True)`, and a folder stands for `**`, with two differences. A folder is entered once
for each component of a pattern, whatever links lead to it, so that each search ends: it makes at most as many steps as there are folders,
times the components of the pattern. And a folder that may not be listed is an error. Folders are entered in the sorted order of their
paths, so the result does not depend on the order in which a file system lists names.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from niels_cache_runtime.errors import NielsCacheError


class Found(NamedTuple):
    """Paths of files in sorted order.

    `again`: paths of folders that were not entered, and the path by which each folder was entered. `has_folders`: whether a glob also
    matches folders, which are left out.
    """

    paths: list[str]
    again: dict[str, str]
    has_folders: bool = False


class _Folders:
    """The folders of one search. Each is entered once for each component of the pattern."""

    def __init__(self) -> None:
        self.again: dict[str, str] = {}
        self._entered: dict[tuple[int, int, int], str] = {}  # device, inode and component -> path

    def entries(self, folder: str, component: int) -> list[os.DirEntry[str]]:
        """Return the entries of a folder in sorted order. Return nothing if this folder was entered before for this component."""
        try:
            state = os.stat(folder or os.curdir)
            key = (state.st_dev, state.st_ino, component)
            if key in self._entered:
                if self._entered[key] != folder:
                    self.again[folder] = self._entered[key]
                return []
            self._entered[key] = folder
            with os.scandir(folder or os.curdir) as entries:
                return sorted(entries, key=lambda entry: f"{entry.name}/")
        except PermissionError as error:
            _refuse_folder(folder, error)
        except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
            return []
        except OSError as error:
            _refuse_folder(folder, error)

    def found(self, paths: list[str]) -> Found:
        """Return the paths. Of the folders that were not entered, only those below which files were found matter."""
        paths.sort()
        return Found(paths, {path: first for path, first in self.again.items() if _has_below(paths, first)})


def _has_below(paths: Sequence[str], folder: str) -> bool:
    start = os.path.join(folder, "")
    place = bisect_left(paths, start)
    return place < len(paths) and paths[place].startswith(start)


def _refuse_folder(folder: str, error: OSError) -> NoReturn:
    raise NielsCacheError(f"{os.path.normpath(folder)}: cannot be listed ({error.strerror}); make it readable") from error


def _is_folder(path: str | os.DirEntry[str]) -> bool:
    """Return whether a path leads to a folder. Raises NielsCacheError if a link leads to a place that may not be looked at."""
    try:
        return path.is_dir() if isinstance(path, os.DirEntry) else stat.S_ISDIR(os.stat(path).st_mode)
    except PermissionError as error:
        _refuse_folder(os.fspath(path), error)
    except OSError:  # missing, or a link to itself
        return False


def _exists(folder: str, name: str) -> bool:
    try:
        os.lstat(os.path.join(folder, name))
    except PermissionError as error:
        _refuse_folder(folder, error)
    except (OSError, ValueError):
        return False
    return True


def glob_files(pattern: str) -> Found:
    """Return the files that a local glob matches; their paths are relative if the glob is.

    Raises NielsCacheError for a folder on its way that may not be listed.
    """
    anchor = Path(pattern).anchor
    components = Path(pattern).parts[bool(anchor) :]
    folders, paths, has_folders = _Folders(), list[str](), False
    waiting = [(anchor, 0)] if components else []
    while waiting:
        folder, number = waiting.pop()
        component, is_last = components[number], number + 1 == len(components)
        if not glob.has_magic(component):
            path = os.path.join(folder, component)
            if _exists(folder, component):
                if not _is_folder(path):
                    paths += [path] if is_last else []
                elif is_last:
                    has_folders = True
                else:
                    waiting.append((path, number + 1))
            continue
        is_recursive, below = component == "**", list[tuple[str, int]]()
        for entry in folders.entries(folder, number):
            if entry.name.startswith(".") and not (component.startswith(".") and not is_recursive):
                continue
            if not is_recursive and not fnmatch.fnmatch(entry.name, component):
                continue
            path = os.path.join(folder, entry.name)
            if not _is_folder(entry):
                paths += [path] if is_last else []
            elif is_recursive:
                below.append((path, number))
            elif is_last:
                has_folders = True
            else:
                below.append((path, number + 1))
        waiting += reversed(below)
        if is_recursive and not is_last:
            waiting.append((folder, number + 1))
    return folders.found([*dict.fromkeys(paths)])._replace(has_folders=has_folders)


def files_below(folder: str, skip: Collection[str] = ()) -> Found:
    """Return the files below a folder. Files and folders whose names begin with a dot are left out, and folders with a name in `skip`.

    Links are followed to any place. Raises NielsCacheError for a folder that may not be listed.
    """
    folders, paths = _Folders(), list[str]()
    waiting = [folder]
    while waiting:
        below = []
        for entry in folders.entries(waiting.pop(), 0):
            if entry.name.startswith("."):
                continue
            if not _is_folder(entry):
                paths.append(entry.path)
            elif entry.name not in skip:
                below.append(entry.path)
        waiting += reversed(below)
    return folders.found(paths)


class Links(NamedTuple):
    """Which of several paths lead to one file. `first`: for each path, the first path in sorted order that leads to its file. `hard`: for
    each path that is a hard link to the file of an earlier path, this path.
    """

    first: Mapping[str, str]
    hard: Mapping[str, str]


def links_among(paths: Iterable[str]) -> Links:
    """Return which of these paths lead to one file: links, or two spellings of a path. Hard links are files of their own.

    This asks for the state of each path once. A path whose state is not known, such as a broken link, is a file of its own.
    """
    first: dict[str, str] = {}
    hard: dict[str, str] = {}
    seen: dict[tuple[int, int], str] = {}  # device and inode -> the first path
    real: dict[str, str] = {}  # of files with hard links: the path without links -> the first path
    for path in sorted(paths):
        first[path] = path
        try:
            state = os.stat(path)
        except OSError:
            continue
        if not state.st_ino:  # some file systems have no inodes
            first[path] = real.setdefault(os.path.realpath(path), path)
            continue
        earlier = seen.setdefault((state.st_dev, state.st_ino), path)
        if state.st_nlink > 1:
            first[path] = real.setdefault(os.path.realpath(path), path)
            if first[path] == path and earlier != path:
                hard[path] = earlier
        else:
            first[path] = earlier
    return Links(first, hard)
