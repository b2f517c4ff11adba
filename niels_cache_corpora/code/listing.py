"""Repositories in folders, and their files.

    FOLDER with .git                      one repository: the tracked files of the checkout
    FOLDER with *.dist-info               a Python environment: each distribution is a repository, with the files of its RECORD
    FOLDER whose subfolders have .git     each subfolder is a repository
    any other FOLDER                      one repository: all files that are not hidden, without __pycache__

Of a checkout, the files are read as they are in the working tree. The commit, and how many tracked files differ from it, are recorded.
"""

import csv
import os
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from niels_cache_assets.sources.finding.globs import files_below
from niels_cache_assets.sources.reading.files import SourceFile, valid_unicode
from niels_cache_runtime.errors import NielsCacheError

Division = Literal["auto", "folder", "subfolders"]
_SKIPPED_MODES = ("120000", "160000")  # of links and submodules
_SKIPPED_FOLDERS = ("__pycache__",)
_DIST_INFO = ".dist-info"


class Repository(NamedTuple):
    """A repository.

    Attributes:
        name: Its name, without a slash, which is the first folder of the names of its files.
        files: The files by their path in the repository, sorted.
        commit: The commit of a checkout, or None.
        changed: The number of tracked files that differ from the commit.
    """

    name: str
    files: dict[str, SourceFile]
    commit: str | None = None
    changed: int = 0


def find_repositories(folders: Sequence[str], division: Division) -> list[Repository]:
    """Return the repositories in folders, sorted by name.

    Raises:
        NielsCacheError: If a folder is missing or has no files, if git fails, or if two repositories have the same name.
    """
    found = dict[str, Repository]()
    for folder in folders:
        if not os.path.isdir(folder):
            raise NielsCacheError(f"{valid_unicode(folder)}: is no folder; set files to folders of code, or to *.parquet")
        for each in _repositories_in(folder, division):
            if each.name in found:
                raise NielsCacheError(f"{valid_unicode(folder)}: a second repository is named {each.name!r}; rename one of the folders")
            if each.files:
                found[each.name] = each
    if not found:
        raise NielsCacheError(f"files = {[*map(valid_unicode, folders)]}: the folders have no files; set it to folders of code")
    return [found[name] for name in sorted(found)]


def _repositories_in(folder: str, division: Division) -> list[Repository]:
    path = Path(os.path.abspath(folder))
    if (path / ".git").exists():
        return [_checkout(path)]
    below = sorted(each for each in path.iterdir() if each.is_dir())
    if division == "auto" and any(each.name.endswith(_DIST_INFO) for each in below):
        return _distributions(path)
    if division == "subfolders" or (division == "auto" and any((each / ".git").exists() for each in below)):
        inner = [_checkout(each) if (each / ".git").exists() else _plain(each) for each in below if not each.name.startswith(".")]
        own = {each.name: str(each) for each in sorted(path.iterdir()) if each.is_file() and not each.name.startswith(".")}
        return [*inner, _repository(path.name, own)]
    return [_plain(path)]


def _repository(name: str, files: dict[str, str], commit: str | None = None, changed: int = 0) -> Repository:
    """Return a repository with these files, which are paths in it, and on disk."""
    name = valid_unicode(name)
    named = {valid_unicode(each): files[each] for each in sorted(files)}
    return Repository(name, {each: SourceFile(path, f"{name}/{each}") for each, path in named.items()}, commit, changed)


def _plain(path: Path) -> Repository:
    paths = files_below(str(path), _SKIPPED_FOLDERS).paths
    return _repository(path.name, {Path(os.path.relpath(each, path)).as_posix(): each for each in paths if os.path.isfile(each)})


def _checkout(path: Path) -> Repository:
    """Return the tracked files of a checkout, without links and submodules."""
    entries = _git(path, "ls-files", "--stage", "-z").split("\0")
    named = [entry.split("\t", 1) for entry in entries if entry and not entry.startswith(_SKIPPED_MODES)]
    files = {name: str(path / name) for _, name in named if os.path.isfile(path / name)}
    head = _git(path, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True).strip()
    changed = _git(path, "status", "--porcelain", "--untracked-files=no", "-z").split("\0") if head else []
    return _repository(path.name, files, head or None, sum(map(bool, changed)))


def _git(path: Path, *arguments: str, may_fail: bool = False) -> str:
    command = ["git", "--no-optional-locks", "-C", str(path), "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise NielsCacheError(f"{path}: is a git checkout, and the program git is not installed; install it") from error
    if done.returncode and not may_fail:
        said = done.stderr.decode(errors="replace").strip().split("\n")[0]
        raise NielsCacheError(f"{path}: git {arguments[0]} fails: {said}; correct the checkout, or move its .git away to read all files")
    return os.fsdecode(done.stdout)


def _distributions(path: Path) -> list[Repository]:
    """Return the distributions of a Python environment. A file that no RECORD names belongs to a repository of its first folder."""
    owner, folders = dict[str, str](), dict[str, str]()
    for info in sorted(path.glob(f"*{_DIST_INFO}")):
        name, record = info.name.removesuffix(_DIST_INFO).rpartition("-")[0], info / "RECORD"
        folders[info.name] = name
        if record.is_file():
            with record.open(newline="", encoding="utf-8", errors="replace") as lines:
                rows = [row[0] for row in csv.reader(lines) if row]
            owner |= {each: name for each in rows if not each.startswith(("..", "/"))}
    found = defaultdict[str, dict[str, str]](dict)
    for full in files_below(str(path), _SKIPPED_FOLDERS).paths:
        inner = Path(os.path.relpath(full, path)).as_posix()
        first = inner.split("/")[0]
        if os.path.isfile(full):
            found[owner.get(inner, folders.get(first, first))][inner] = full
    return [_repository(name, files) for name, files in found.items()]
