"""Local files that a glob or a folder names, links among them, and advice for a path that matches nothing.

A glob has the meaning of Python's `glob.glob(recursive=True)`, and a folder stands for `**`, with two differences. A folder is entered once
for each component of a pattern, whatever links lead to it, so each search ends: its number of steps is at most the number of folders times
the number of components. And a folder that may not be listed is an error.

Folders are entered in the sorted order of their paths, so the result does not depend on the order in which a file system lists names.
"""

import difflib
import fnmatch
import glob
import itertools
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from niels_cache_runtime.errors import NielsCacheError

_BRACKET = re.compile(r"\[\[\]|\[")  # an opening bracket, which may be escaped already
_MAX_TRIED = 64  # maximum number of ways to read the brackets of a glob that are tried
_MAX_NAMES = 10_000  # number of names in a folder that are read to find a name similar to a missing name


class GlobResult(NamedTuple):
    """The result of a search.

    Attributes:
        paths: The paths of files, in sorted order.
        again: For each folder that was not entered a second time, the path by which it was entered.
        has_folders: Whether a glob also matches folders, which are left out.
    """

    paths: list[str]
    again: dict[str, str]
    has_folders: bool = False


def _entries(folder: str, component: int, entered: dict[tuple[int, int, int], str], again: dict[str, str]) -> list[os.DirEntry[str]]:
    """Return the entries of a folder in sorted order, or nothing if it was entered before for this component of the pattern.

    Args:
        folder: The path of the folder.
        component: The number of the component.
        entered: The paths of the folders that were entered, by device, inode and component.
        again: Receives each folder that was not entered, with the path by which it was.
    """
    try:
        state = os.stat(folder or os.curdir)
        key = (state.st_dev, state.st_ino, component)
        if key in entered:
            if entered[key] != folder:
                again[folder] = entered[key]
            return []
        entered[key] = folder
        with os.scandir(folder or os.curdir) as entries:
            return sorted(entries, key=lambda entry: f"{entry.name}/")
    except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
        return []
    except OSError as error:
        _refuse_folder(folder, error)


def _has_below(paths: Sequence[str], folder: str) -> bool:
    start = os.path.join(folder, "")
    index = bisect_left(paths, start)
    return index < len(paths) and paths[index].startswith(start)


def _refuse_folder(folder: str, error: OSError) -> NoReturn:
    raise NielsCacheError(f"{os.path.normpath(folder)}: cannot be listed ({error.strerror}); make it readable") from error


def _is_folder(path: str | os.DirEntry[str]) -> bool:
    """Return whether a path leads to a folder.

    Raises:
        NielsCacheError: If the path is a link whose target may not be examined.
    """
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


def glob_files(pattern: str) -> GlobResult:
    """Return the files that a local glob matches. Their paths are relative if the glob is.

    Raises:
        NielsCacheError: If a folder on the way may not be listed.
    """
    anchor = Path(pattern).anchor
    components = Path(pattern).parts[bool(anchor) :]
    return _search(anchor, components) if components else GlobResult([], {})


def files_below(folder: str, skip: Collection[str] = ()) -> GlobResult:
    """Return the files below a folder. Files and folders whose names begin with a dot are left out. Links are followed anywhere.

    Args:
        folder: The folder.
        skip: The names of folders not to enter.

    Raises:
        NielsCacheError: If a folder may not be listed.
    """
    return _search(folder, ["**"], skip)


def _search(start: str, components: Sequence[str], skip: Collection[str] = ()) -> GlobResult:
    """Return the files below a folder that match the components of a glob, without entering folders named in `skip`."""
    paths, has_folders = list[str](), False
    entered, again = dict[tuple[int, int, int], str](), dict[str, str]()
    waiting = [(start, 0)]
    while waiting:
        folder, number = waiting.pop()
        component, is_last, below = components[number], number + 1 == len(components), list[tuple[str, int]]()
        is_recursive, found = component == "**", dict[str, str | os.DirEntry[str]]()
        if glob.has_magic(component):
            found = {entry.name: entry for entry in _entries(folder, number, entered, again) if fnmatch.fnmatch(entry.name, component)}
        elif _exists(folder, component):
            found[component] = os.path.join(folder, component)
        for name, entry in found.items():
            if name.startswith(".") and not component.startswith("."):
                continue
            path = os.path.join(folder, name)
            if not _is_folder(entry):
                paths += [path] if is_last else []
            elif is_recursive:
                below += [(path, number)] if name not in skip else []
            elif is_last:
                has_folders = True
            else:
                below.append((path, number + 1))
        waiting += reversed(below)
        if is_recursive and not is_last:
            waiting.append((folder, number + 1))
    paths = sorted({*paths})
    return GlobResult(paths, {path: first for path, first in again.items() if _has_below(paths, first)}, has_folders)


class SameFiles(NamedTuple):
    """Which of several paths lead to the same file.

    Attributes:
        first: For each path, the first path in sorted order that leads to its file.
        hard: For each path that is a hard link to the file of an earlier path, that earlier path.
    """

    first: Mapping[str, str]
    hard: Mapping[str, str]


def find_same_files(paths: Iterable[str]) -> SameFiles:
    """Return which of these paths lead to the same file, through links or as two spellings of a path.

    Hard links are separate files. This calls `stat` once per path. A path without a known state, such as a broken link, is a separate file.
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
    return SameFiles(first, hard)


def advice_for_missing(pattern: str) -> str:
    """Return advice for a path or glob that matches nothing."""
    near = None if "://" in pattern else _near_path(pattern)
    return _bracket_advice(pattern) or (f"did you mean {near!r}?" if near else "check the path")


def _bracket_advice(pattern: str) -> str | None:
    """Return advice for a glob that matches nothing and has an opening bracket, or None.

    If there are files whose names contain these brackets, the advice has the glob that matches them.
    """
    if "[" not in pattern:
        return None
    what = "brackets in a glob stand for one of the characters in them"
    components = pattern.split("/")
    choices = [dict.fromkeys([_BRACKET.sub("[[]", each), each]) if "[" in each else [each] for each in components]
    for literal in [] if "://" in pattern else itertools.islice(map("/".join, itertools.product(*choices)), _MAX_TRIED):
        if literal != pattern and glob_files(os.path.expanduser(literal)).paths:
            return f"{what}; write {literal!r}"
    return f"{what}; write [[] for a bracket of a name"


def _near_path(path: str) -> str | None:
    """Return the path up to its first missing name, with the nearest existing name in place of the missing one.

    None if nothing is missing, or if no name is near. In a glob, only the names before the first wildcard are checked.
    """
    folder = Path()
    for part in Path(path).parts:
        if glob.has_magic(part):
            return None
        if not os.path.lexists((folder / part).expanduser()):
            try:
                with os.scandir(folder.expanduser()) as entries:
                    names = [entry.name for entry in itertools.islice(entries, _MAX_NAMES)]
            except OSError:
                return None
            near = difflib.get_close_matches(part, names, n=1)
            return str(folder / near[0]) if near else None
        folder /= part
    return None
