"""The check that a folder lies where its meta.json says: `ROOT/FAMILY/NAME`, and for an index under its hash.

A folder that was renamed, copied or exchanged with another folder keeps its files and its hashes, so only its meta.json shows that the name
is wrong. Only code that opens a folder by its name makes this check. A folder that is opened by its path may have any name. The check needs
no other file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.foreign_meta import foreign_family, is_foreign
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import Meta, canonical_json, sha256_text

_INDEX = "index/"
_HASH_DIGITS = 32


def place_problem(meta: Meta, *, family: str, name: str) -> str | None:
    """Return the problem if meta.json says that the folder NAME in FAMILY/ holds a different data set. Otherwise, return None.

    The problem is a part of an error message, without the path.

    A `dataset_name` of null fits any name.
    """
    if is_foreign(meta):  # if it has a kind or dataset_name, they follow no rule of ours
        own_family = foreign_family(meta)
        return None if own_family == family else f"its counts are those of {own_family} data, but it lies in {family}/"
    kind = meta.get("kind")
    if str(kind).partition("/")[0] != family:
        return f"kind is {kind!r:.80}, but it lies in {family}/"
    own = meta.get("dataset_name")
    if own is not None and own != name:
        advice = "rename or remove the folder, or rebuild this data set with --force"
        return f"dataset_name is {own!r:.80}, but its folder is called {name!r}; {advice}"
    if str(kind).startswith(_INDEX) and {"index_version", "parameters"} <= meta.keys():
        hashed = index_name(str(kind).removeprefix(_INDEX), version=meta["index_version"], parameters=meta["parameters"])
        if hashed != name:
            return (
                f"is the index {hashed}, but its folder is called {name!r}; rename or remove the folder, because no program reads it there"
            )
    return None


def check_place(meta: Meta, folder: str | Path) -> Meta:
    """Return `meta`, which was read from the folder `ROOT/FAMILY/NAME`. Raises NielsCacheError if `place_problem` finds a problem."""
    path = Path(folder).absolute()
    if problem := place_problem(meta, family=path.parent.name, name=path.name):
        raise NielsCacheError(f"{Path(folder) / META_NAME}: {problem}")
    return meta


def index_name(kind: str, *, version: int, parameters: Mapping[str, Any]) -> str:
    """Return the name of an index. It is the same for equal parameters in any order."""
    return sha256_text(canonical_json({"kind": kind, "index_version": version, "parameters": parameters}))[:_HASH_DIGITS]
