"""The kind of a path, in words: a cache root, a data set, a split, a file of a data set, or none of these.

Error messages use this module if a user gave a different path than expected. A call lists a few folders and reads one meta.json.
"""

import json
from pathlib import Path
from typing import Literal, NamedTuple

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, SPLITS, built_names, tokenizer_dir
from niels_cache_runtime.format.meta import MAX_META_BYTES
from niels_cache_runtime.format.safe_open import read_regular

NO_CACHE = "holds no cache (no tokenizer/, pretrain/NAME/ or sft/NAME/)"

PathKind = Literal["root", "dataset", "family", "inside", "above", "file", "missing", "nothing"]

NAMED = (*FAMILIES, "corpus", "repeats", "index", "suffixes")  # folders that contain named folders
UNNAMED = ("tokenizer", "duplicates")  # folders that exist once in a cache root
_MAX_NAMED = 3


class PathDescription(NamedTuple):
    """A described path.

    Attributes:
        kind: The kind of the path.
        clause: A clause for messages, such as `is a pretrain data set, no cache root`.
        roots: The cache roots (folders of all caches) that the user may have meant.
        dataset: The data set at the path or above it.
    """

    kind: PathKind
    clause: str
    roots: list[Path]
    dataset: Path | None = None

    @property
    def root_advice(self) -> str | None:
        """Advice to give the cache root near the path instead, or None if there is no cache root near the path."""
        return f"give the cache root: {' or '.join(map(str, self.roots[:_MAX_NAMED]))}" if self.roots else None


def describe(given: str | Path) -> PathDescription:
    """Return the kind of a path. No error is raised: an unreadable path is of kind "nothing"."""
    try:
        return _describe(Path(given).expanduser())
    except (OSError, RuntimeError):  # no permission, or `~` of an unknown user
        return PathDescription("nothing", "cannot be read", [])


def _describe(path: Path) -> PathDescription:
    if not path.exists():
        return PathDescription("missing", "no such folder", [])
    inside = None if _is_dataset(path) else next((parent for parent in (_above(path, 1), _above(path, 2)) if _is_dataset(parent)), None)
    if inside is not None:
        part = path.absolute().relative_to(inside.absolute()).as_posix()
        what = f"the split {part}" if part in SPLITS and path.is_dir() else f"the {'folder' if path.is_dir() else 'file'} {part}"
        return PathDescription("inside", f"is {what} of {_describe_dataset(inside)}", _root_of(inside), inside)
    if path.is_file():
        return PathDescription("file", "is a file, not a folder", [])
    if _is_dataset(path):
        return PathDescription("dataset", f"is {_describe_dataset(path)}, no cache root", _root_of(path), path)
    if path.absolute().name in NAMED and (built_names(path) or _is_root(path.absolute().parent)):
        return PathDescription("family", f"is the folder of {path.absolute().name} data sets, no cache root", [_above(path, 1)])
    if _is_root(path):
        return PathDescription("root", "is a cache root", [path])
    below = [folder for folder in sorted(path.iterdir()) if folder.is_dir() and not folder.name.startswith(".") and _is_root(folder)]
    if below:
        return PathDescription("above", "is no cache root, but contains one", below)
    return PathDescription("nothing", NO_CACHE, [])


def _is_dataset(path: Path) -> bool:
    return (path / META_NAME).is_file()


def _is_root(path: Path) -> bool:
    return _is_dataset(tokenizer_dir(path)) or any(built_names(path / name) for name in NAMED)


def _above(path: Path, levels: int) -> Path:
    """Return the folder `levels` above `path`. The result is relative if the path is relative and has enough parts."""
    return path.parents[levels - 1] if len(path.parts) >= levels and ".." not in path.parts else path.absolute().parents[levels - 1]


def _root_of(dataset: Path) -> list[Path]:
    folder = dataset.absolute()
    if folder.name in UNNAMED:
        return [_above(dataset, 1)]
    return [_above(dataset, 2)] if folder.parent.name in NAMED else []


def _describe_dataset(dataset: Path) -> str:
    """Return the name of a data set in words, such as `the pretrain data set notes`. Its meta.json gives the kind, and may be damaged."""
    try:
        meta = json.loads(read_regular(dataset / META_NAME, most_bytes=MAX_META_BYTES))
        kind = meta.get("kind") if isinstance(meta, dict) else None
    except (NielsCacheError, OSError, ValueError, RecursionError):
        kind = None
    name = dataset.absolute().name
    if kind in FAMILIES:
        return f"the {'SFT' if kind == 'sft' else kind} data set {name}"
    return f"the {kind}" if kind in UNNAMED else f"the {kind} {name}" if kind == "corpus" else f"the folder {name} with a {META_NAME}"
