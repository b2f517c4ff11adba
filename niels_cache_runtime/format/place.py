"""Which folder of a cache root a meta.json belongs in: `ROOT/FAMILY/NAME`, and an index under its hash.

A folder that was renamed, copied or exchanged with another keeps its files and its hashes, so nothing else shows that its name is wrong.
Only code that opens a folder by its name asks: a folder that is opened by its path may have any name. Costs nothing beyond the meta.json
at hand.
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
    """One clause if the folder NAME in FAMILY/ holds something else by its meta.json, else None. A `dataset_name` of null fits any name."""
    if is_foreign(meta):  # its kind and dataset_name, if it has any, are words of another program
        own_family = foreign_family(meta)
        return None if own_family == family else f"its counts are those of {own_family} data, it lies in {family}/"
    kind = meta.get("kind")
    if str(kind).partition("/")[0] != family:
        return f"kind is {kind!r:.80}, it lies in {family}/"
    own = meta.get("dataset_name")
    if own is not None and own != name:
        advice = "rename or remove the folder, or rebuild this data set with --force"
        return f"dataset_name is {own!r:.80}, its folder is called {name!r}; {advice}"
    if str(kind).startswith(_INDEX) and {"index_version", "parameters"} <= meta.keys():
        hashed = index_name(str(kind).removeprefix(_INDEX), version=meta["index_version"], parameters=meta["parameters"])
        if hashed != name:
            return f"is the index {hashed}, its folder is called {name!r}; rename or remove the folder: it is never read under this name"
    return None


def check_place(meta: Meta, folder: str | Path) -> Meta:
    """`meta` of a folder `ROOT/FAMILY/NAME` that was asked for by name. Raises NielsCacheError with its `place_problem`."""
    path = Path(folder).absolute()
    if problem := place_problem(meta, family=path.parent.name, name=path.name):
        raise NielsCacheError(f"{Path(folder) / META_NAME}: {problem}")
    return meta


def index_name(kind: str, *, version: int, parameters: Mapping[str, Any]) -> str:
    """The name of an index: the same for equal parameters, whatever their order."""
    return sha256_text(canonical_json({"kind": kind, "index_version": version, "parameters": parameters}))[:_HASH_DIGITS]
