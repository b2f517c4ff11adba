"""The entries `exclude` that keep erased documents out of all later builds.

Each data set has a file with ids. If its table names one, the ids are appended to it. Otherwise, `erased/NAME.txt` beside the configuration
is written first, and the table names it then, so that a kill in between changes no build.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path

from niels_cache_assets.disk.journal import write_atomically
from niels_cache_assets.project.editing import locked_config, set_key
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.excluding import excluded_ids, ids_of_key
from niels_cache_runtime.errors import NielsCacheError

_FOLDER = "erased"


def config_of(registry: Registry) -> Path:
    """Return the configuration file, which must exist.

    Raises:
        NielsCacheError: If there is none.
    """
    path = Path(registry.origin)
    if not path.is_file():
        raise NielsCacheError(f"{registry.origin}: erase writes into a niels_cache.toml, and there is none; `niels-cache init` writes one")
    return path


def exclude(registry: Registry, family: str, name: str, ids: Collection[str]) -> Path:
    """Let builds of a data set leave out documents with these ids, and return the file with the ids.

    Raises:
        NielsCacheError: If a file cannot be written.
    """
    source, config = registry.source(name), config_of(registry)
    given: str | None = getattr(source, "exclude", None)
    if given is not None and "://" in given:
        raise NielsCacheError(f"{given}: exclude of {name} is not on this machine; add these ids yourself: {json.dumps(sorted(ids))}")
    path = config.absolute().parent / _FOLDER / f"{name}.txt" if given is None else Path(given)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        known = excluded_ids(str(path)) if before.strip() else frozenset()
        if new := sorted({*ids} - known):
            start = before if before.endswith("\n") or not before else f"{before}\n"
            write_atomically(path, (start + "".join(_lines(new))).encode())
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be written: {error.strerror or error}") from error
    if given is None:
        with locked_config(config, log=lambda line: None):
            set_key(config, family, name, "exclude", f"{_FOLDER}/{name}.txt")
    return path


def missing_ids(registry: Registry, name: str, ids: Iterable[str]) -> list[str]:
    """Return those of these ids that builds of a data set do not leave out."""
    return sorted({*ids} - ids_of_key(getattr(registry.source(name), "exclude", None)))


def _lines(ids: Iterable[str]) -> Iterable[str]:
    """Return ids as lines of the file. JSON strings also hold ids with line ends and white space."""
    return (f"{json.dumps(each, ensure_ascii=False)}\n" for each in ids)
