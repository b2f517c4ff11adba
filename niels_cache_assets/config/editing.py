"""Changes to the user's niels_cache.toml by commands. Comments, order and formatting stay."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_cache_assets.config.merging import Tables, read_tables
from niels_cache_assets.config.toml import as_toml, parse_toml
from niels_cache_runtime.errors import NielsCacheError


def added_tables(path: Path, name: str) -> list[Any]:
    """Return the tables `[[pretrain.NAME.added]]` of a file as they are written."""
    table = read_tables(path, "make it readable").get("pretrain", {}).get(name, {})
    found = table.get("added", []) if isinstance(table, Mapping) else []
    return found if isinstance(found, list) else []


def add_table(path: Path, name: str, entry: Mapping[str, Any], *, keys: Mapping[str, Any]) -> Path:
    """Append a table `[[pretrain.NAME.added]]` to a file, and set other keys of `[pretrain.NAME]`. Return the file that was written.

    A link to a file stays a link. Raises NielsCacheError if the file cannot be written, if it has several hard links, or if the result
    would change anything else; the file then stays unchanged.
    """
    real = Path(os.path.realpath(path))
    lines = [f"[[pretrain.{name}.added]]", *(f"{key} = {as_toml(value)}" for key, value in entry.items())]
    by_hand = f"add these lines yourself: {' '.join([*(f'{key} = {as_toml(value)}' for key, value in keys.items()), *lines])}"
    before = read_tables(real, "make it readable")
    try:
        if (links := os.stat(real).st_nlink) > 1:
            raise NielsCacheError(f"{real}: has {links} names (hard links), so other projects may read it; {by_hand}")
        with open(real, encoding="utf-8", newline="") as file:
            text = file.read()
        edited = _edited(text, name, entry, keys)
        if edited is None or not _is_only_this(before, text, edited, name, entry, keys):
            raise NielsCacheError(f"{real}: its form does not allow a new table; {by_hand}")
        _replace(real, edited)
    except OSError as error:
        raise NielsCacheError(f"{real}: cannot be written: {error.strerror or error}; {by_hand}") from error
    return real


def _edited(text: str, name: str, entry: Mapping[str, Any], keys: Mapping[str, Any]) -> str | None:
    """Return the text with the new table, or None if its form does not allow one."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError
    from tomlkit.items import AoT

    mark = "\ufeff" if text.startswith("\ufeff") else ""
    try:
        document = tomlkit.parse(text.removeprefix(mark))
        pretrain = document.setdefault("pretrain", tomlkit.table(is_super_table=True))
        table = pretrain.setdefault(name, tomlkit.table(is_super_table=not keys))
        for key, value in keys.items():
            table[key] = value
        new = tomlkit.table()
        for key, value in entry.items():
            new[key] = value
        added = table.setdefault("added", tomlkit.aot())
        if not isinstance(added, AoT):
            return None
        new.add(tomlkit.nl())
        added.append(new)
        edited = tomlkit.dumps(document).replace("\r\n", "\n")
        if edited.endswith("\n\n") and not text.replace("\r\n", "\n").endswith("\n\n"):
            edited = edited.removesuffix("\n")
        return mark + (edited.replace("\n", "\r\n") if "\r\n" in text else edited)
    except (TOMLKitError, AttributeError, TypeError, ValueError):
        return None


def _is_only_this(before: Tables, text: str, edited: str, name: str, entry: Mapping[str, Any], keys: Mapping[str, Any]) -> bool:
    """Return whether the edited text has every old line, and only the new values beside the old ones."""
    pretrain = before.get("pretrain", {})
    table = {**pretrain.get(name, {}), **keys}
    table["added"] = [*table.get("added", []), dict(entry)]
    try:
        same = parse_toml(edited) == {**before, "pretrain": {**pretrain, name: table}}
    except ValueError:
        return False
    lines = iter(edited.splitlines())
    return same and all(line in lines for line in text.splitlines())


def _replace(path: Path, text: str) -> None:
    """Replace a file in one step. Its mode stays."""
    mode = os.stat(path).st_mode & 0o7777
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, mode)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
