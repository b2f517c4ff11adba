"""What lies in a cache root: the folders that `verify` verifies, and what lies beside them.

A data set is a folder with a meta.json in `pretrain/`, `sft/`, `corpus/` or `index/`; nothing else belongs there. It may be a link: where a
data set lies is its owner's choice, and it is verified there. No other link is followed. Beside those folders anything may lie, which
nobody reads. Costs a look at each name; what is in a folder is `verified_folder`'s.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import META_NAME, tokenizer_dir
from niels_cache_runtime.verified_folder import Finding, escaped

_ONE = ("tokenizer", "duplicates")
_MANY = ("pretrain", "sft", "corpus", "index")
_UNVERIFIED = ("reports",)  # drawn from the others, for people


def find_folders(root: str | Path, *, names: Sequence[str] | None = None) -> list[Path]:
    """The folders that `verify_cache` verifies, in order. Folders with a leading dot (builds in progress) are not among them."""
    root = Path(root)
    if not root.is_dir():
        raise NielsCacheError(f"{root}: no such folder; give a cache root such as cache/")
    if (root / META_NAME).exists():
        if names:
            raise NielsCacheError(f"{root}: is one data set, so it has no {names[0]}; give the cache root above it")
        return [root]
    found = [tokenizer_dir(root), *_entries(root / "pretrain"), *_entries(root / "sft")]
    found += [*_entries(root / "corpus"), root / "duplicates", *_entries(root / "index")]
    found = [folder for folder in found if _stray_problem(folder) is None and os.path.isdir(folder)]
    if not found:
        raise NielsCacheError(f"{root}: holds no cache (no tokenizer/, pretrain/NAME/ or sft/NAME/); build one first, or check the path")
    for name in names or ():
        if not any(_is_called(name, folder) for folder in found):
            known = ", ".join(folder.relative_to(root).as_posix() for folder in found)
            raise NielsCacheError(f"{root}: holds no {name}; it has {known}")
    return [folder for folder in found if not names or any(_is_called(name, folder) for name in names)]


def stray_findings(root: str | Path) -> Iterator[Finding]:
    """What lies where data sets lie and is none."""
    for path, problem in _places(Path(root)):
        if problem is not None:
            yield Finding(kind="files", folder=str(path.parent), path=path.name, problem=problem)


def notes(root: str | Path) -> list[str]:
    """One line each of what harms nothing and is to be known: data sets that lie elsewhere, and what is no part of the cache."""
    root = Path(root)
    if (root / META_NAME).exists():
        return []
    links = [path for path, problem in _places(root) if problem is None and path.is_symlink()]
    said = [f"{path}: is a link; what is verified is {os.path.realpath(path)}" for path in links]
    if others := [path.name for path in _entries(root) if path.name not in (*_ONE, *_MANY, *_UNVERIFIED)]:
        said.append(f"{root}: no part of the cache, and not looked at: {', '.join(others)}")
    return [escaped(line) for line in said]


def _places(root: Path) -> Iterator[tuple[Path, str | None]]:
    """The folders of data sets and what lies in them, each with what is wrong with that, or None."""
    for name in _ONE:
        yield root / name, _stray_problem(root / name)
    for name in _MANY:
        yield root / name, _listing_problem(root / name) if os.path.isdir(root / name) else _stray_problem(root / name)
        yield from ((path, _stray_problem(path)) for path in _entries(root / name))


def _entries(folder: Path) -> list[Path]:
    """What has a leading dot is a build at work, its lock, or the file manager's. Nothing of a folder that cannot be listed."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return []


def _stray_problem(path: Path) -> str | None:
    """Why what lies at the place of a data set is none; None where nothing does."""
    if path.is_symlink() and not os.path.isfile(path / META_NAME):
        return "is a link to no data set, which is not followed; put the data set there, or remove it"
    if os.path.lexists(path) and not os.path.isdir(path):
        return "is no folder, and only those of data sets belong here; remove it"
    return None


def _listing_problem(path: Path) -> str | None:
    """Why the data sets of a family cannot be found; None where they can, or where there is no such folder."""
    try:
        os.listdir(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be listed: {error.strerror or error}"
    return None


def _is_called(name: str, folder: Path) -> bool:
    return name in (folder.name, f"{folder.parent.name}/{folder.name}")
