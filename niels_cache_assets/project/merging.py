"""The merging of tables: the user's file overrides a profile (a configuration that ships with the package), and flags override both.

The keys of the catalog (the list of shipped data sets) have the lowest priority. No value is checked here.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_assets.base.config_path import hub_or_path
from niels_cache_assets.base.toml import as_toml, parse_toml
from niels_cache_assets.project.shipped import catalog
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_assets.sources.types import PATH_KEYS, Source
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, Family

SOURCES: Mapping[Family, Mapping[str, type[Source]]] = {"pretrain": PRETRAIN_SOURCES, "sft": SFT_SOURCES}
_SHARED = ("build", "tokenizer", "cleaning", "dedup", "lines", "spans")
_SECTIONS = (*_SHARED, *FAMILIES, "blend", "reports", "find", "publish", "dagster", "cluster", "notify")
EXCLUSIVE_KEYS = frozenset({"files", "path"})  # each source kind has one of these two keys, and accepts both names
_NAMED = (*FAMILIES, "blend")  # in these sections, the user chooses the names of the tables

Tables = dict[str, Any]


def add_catalog_keys(user: Tables, shipped: Tables, where: str, advice: list[str]) -> Tables:
    """Return the user's tables with the keys of the catalog added to tables that name a shipped data set.

    A table gets these keys if it has no `source` and the profile has no table of this name.

    Args:
        user: The user's tables.
        shipped: Tables of the profile.
        where: The user's file, for the advice.
        advice: Receives a line for each table to which keys were added.
    """
    found = dict(user)
    for family in FAMILIES:
        tables = user.get(family)
        if not isinstance(tables, Mapping):
            continue
        found[family] = dict(tables)
        for name, table in tables.items():
            its_family, from_catalog = catalog().get(name, (None, {}))
            if its_family != family or name in shipped.get(family, {}) or not isinstance(table, Mapping) or "source" in table:
                continue
            found[family][name] = {**from_catalog, **table}
            keys = ", ".join(f"{key} = {as_toml(value)}" for key, value in from_catalog.items() if key not in table)
            advice.append(
                f"{where}: [{family}.{name}] has no source, so the catalog gives its other keys; to write them into the file, add {keys}"
            )
    return found


def read_tables(path: Path, remedy: str) -> Tables:
    """Return the tables of a TOML file. `remedy` is what the message for an unreadable file advises."""
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be read: {error.strerror}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise NielsCacheError(f"{path}: is not UTF-8 (byte {error.start:,}); save it as UTF-8") from error
    except ValueError as error:
        raise NielsCacheError(f"{path}: not valid TOML: {error}; correct it (text needs quotation marks)") from error
    except RecursionError as error:
        raise NielsCacheError(f"{path}: nested too deeply for settings; make it flatter") from error


def merge_tables(below: Tables, above: Mapping[str, Any], where: str) -> Tables:
    """Return both layers, merged key by key, so that a user can set one key of a shipped data set.

    If `source` of a data set differs between the layers, the table in `above` replaces the whole table in `below`.
    """
    merged = dict(below)
    for section, tables in above.items():
        if section not in _SECTIONS:
            if isinstance(tables, Mapping):
                for family in FAMILIES:
                    if isinstance(source := tables.get("source"), str) and source in SOURCES[family]:
                        raise NielsCacheError(f"{where}: unknown table {section!r}; write [{family}.{section}]")
            raise_unknown_choice(where, "unknown table", section, _SECTIONS)
        if not isinstance(tables, Mapping):
            shown = "" if section == "notify" else f", not {tables!r}"  # an argument of its command may be a secret
            raise NielsCacheError(f"{where}: {section} must be a table{shown}")
        merged[section] = dict(merged.get(section, {}))
        for key, value in tables.items():
            old = merged[section].get(key)
            same_kind = isinstance(old, dict) and isinstance(value, Mapping) and value.get("source", old.get("source")) == old.get("source")
            merged[section][key] = _changed(old, value) if section in _NAMED and same_kind else value
    return merged


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> Tables:
    """Return the old table with the keys of the new table added or replaced.

    `files` and `path` both name where the data is. So if the new table has one of these keys, the old table loses both.
    """
    dropped = EXCLUSIVE_KEYS - new.keys() if new.keys() & EXCLUSIVE_KEYS else set()
    return {**{key: value for key, value in old.items() if key not in dropped}, **new}


def absolute_paths(tables: Tables) -> Tables:
    """Resolve paths from the command line relative to the working directory, not to the folder of the configuration file."""

    def resolve(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {inner: resolve(inner, item) for inner, item in value.items()}
        if isinstance(value, list):
            return [item if isinstance(item, Mapping) else resolve(key, item) for item in value]  # tables `added` are relative to the file
        if key == "model":
            value = hub_or_path(value, value)
        is_path = key in PATH_KEYS | {"model", "cache_dir", "exclude"} or (key == "template" and str(value).endswith(".jinja"))
        return os.path.abspath(os.path.expanduser(value)) if is_path and isinstance(value, str) and "://" not in value else value

    return {section: resolve(section, table) for section, table in tables.items()}
