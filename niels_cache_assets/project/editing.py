"""Changes to the user's niels_cache.toml by commands, which keep comments, order and formatting."""

import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from niels_cache_assets.base.processes import open_to_lock
from niels_cache_assets.base.toml import as_toml, parse_toml, toml_key, typed_toml
from niels_cache_assets.project.merging import Tables, read_tables
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import is_same_file


def read_added_tables(path: Path, name: str) -> list[Any]:
    """Return the tables `[[pretrain.NAME.added]]` of a file as they are written."""
    table = read_tables(path, "make it readable").get("pretrain", {}).get(name, {})
    found = table.get("added", []) if isinstance(table, Mapping) else []
    return found if isinstance(found, list) else []


class TableNotWrittenError(NielsCacheError):
    """The error for a table that could not be written.

    Args:
        message: The message.
        toml: What the user can write into the file instead.
    """

    def __init__(self, message: str, toml: str) -> None:
        super().__init__(message)
        self.toml = toml


@contextmanager
def locked_config(path: Path, *, log: Callable[[str], None]) -> Iterator[None]:
    """Keep other commands from changing a configuration file during the block. Read the file again in the block, not before.

    The lock is on the file itself, so no other file is left behind. Without locks in the file system, the block runs without one.

    Args:
        path: The file.
        log: Called with one line if this function has to wait.
    """
    descriptor = open_to_lock(path)  # None if there is no such file: the caller reads the file, and says why it cannot
    while descriptor is not None and _lock(descriptor, path, log) and not is_same_file(path, descriptor):
        os.close(descriptor)
        descriptor = open_to_lock(path)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(descriptor: int, path: Path, log: Callable[[str], None]) -> bool:
    """Take the lock of a file, waiting for it if necessary. Return False if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log(f"waiting for another command that changes {path}")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def add_table(path: Path, name: str, entry: Mapping[str, Any], *, keys: Mapping[str, Any]) -> Path:
    """Append a table `[[pretrain.NAME.added]]` to a file, and set other keys of `[pretrain.NAME]`.

    Args:
        path: The file. A link to a file is kept.
        name: Name of the data set.
        entry: Keys of the new table.
        keys: Other keys to set in `[pretrain.NAME]`.

    Returns:
        The file that was written.

    Raises:
        TableNotWrittenError: If the file cannot be written, if it has several hard links, or if the result would change anything else. The
            file is then unchanged.
    """
    real = Path(os.path.realpath(path))
    before = read_tables(real, "make it readable")
    lines, by_hand = _manual_edit(real, before, name, entry, keys)
    try:
        if (links := os.stat(real).st_nlink) > 1:
            raise TableNotWrittenError(f"{real}: has {links} names (hard links), so other projects may read it; {by_hand}", lines)
        with open(real, encoding="utf-8", newline="") as file:
            text = file.read()
        edited = _edited(text, name, entry, keys)
        if edited is None or not _changes_only(before, text, edited, name, entry, keys):
            raise TableNotWrittenError(f"{real}: its form does not allow a new table; {by_hand}", lines)
        _replace(real, edited)
    except OSError as error:
        raise TableNotWrittenError(f"{real}: cannot be written: {error.strerror or error}; {by_hand}", lines) from error
    return real


def set_key(path: Path, family: str, name: str, key: str, value: str) -> Path:
    """Set a key of the table `[FAMILY.NAME]` of a file, which is added if it is missing. A link to a file is kept.

    Returns:
        The file that was written.

    Raises:
        TableNotWrittenError: If the file cannot be written, or if the result would change anything else. The file is then unchanged.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    real = Path(os.path.realpath(path))
    before = read_tables(real, "make it readable")
    lines = f"[{family}.{toml_key(name)}]\n{key} = {as_toml(value)}"
    try:
        with open(real, encoding="utf-8", newline="") as file:
            text = file.read()
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        document = tomlkit.parse(text.removeprefix(mark))
        tables = document.setdefault(family, tomlkit.table(is_super_table=True))
        tables.setdefault(name, tomlkit.table())[key] = value
        edited = tomlkit.dumps(document).replace("\r\n", "\n")
        edited = edited.replace("\n", "\r\n") if "\r\n" in text else edited
        table = {**before.get(family, {}).get(name, {}), key: value}
        if parse_toml(edited) != {**before, family: {**before.get(family, {}), name: table}}:
            raise ValueError
        _replace(real, mark + edited)
    except OSError as error:
        raise TableNotWrittenError(f"{real}: cannot be written: {error.strerror or error}; write {key} into it yourself", lines) from error
    except (TOMLKitError, AttributeError, TypeError, ValueError) as error:
        raise TableNotWrittenError(f"{real}: its form does not allow a new key; write {key} into it yourself", lines) from error
    return real


def _manual_edit(path: Path, before: Tables, name: str, entry: Mapping[str, Any], keys: Mapping[str, Any]) -> tuple[str, str]:
    """Return the new lines as TOML, and a clause that tells the user to write them."""
    label = f"pretrain.{toml_key(name)}"
    lines = [f"{key} = {as_toml(value)}" for key, value in keys.items()]
    if not _has_inline_tables(path, name):
        table = [f"[[{label}.added]]", *(f"{key} = {as_toml(value)}" for key, value in entry.items())]
        own = [f"# in [{label}]:", *lines, ""] if lines else []
        return "\n".join([*own, *table]), f"write [[{label}.added]] into it yourself, as stdout shows"
    every = [*before["pretrain"][name]["added"], entry]
    text = "\n".join([f"# in [{label}]:", *lines, f"added = {typed_toml(every)}"])
    return text, f"replace added in [{label}] yourself, as stdout shows, or write each of its tables as [[{label}.added]]"


def _has_inline_tables(path: Path, name: str) -> bool:
    """Return whether `added` is a list of tables in one value, and not a sequence of [[table]]."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError
    from tomlkit.items import AoT

    try:
        added = tomlkit.parse(path.read_text(encoding="utf-8").removeprefix("\ufeff"))["pretrain"][name]["added"]
    except (OSError, TOMLKitError, KeyError, TypeError, ValueError):
        return False
    return not isinstance(added, AoT)


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


def _changes_only(before: Tables, text: str, edited: str, name: str, entry: Mapping[str, Any], keys: Mapping[str, Any]) -> bool:
    """Return whether the edited text has every old line, and only the new values besides the old ones."""
    pretrain = before.get("pretrain", {})
    table = {**pretrain.get(name, {}), **keys}
    table["added"] = [*table.get("added", []), dict(entry)]
    try:
        same = parse_toml(edited) == {**before, "pretrain": {**pretrain, name: table}}
    except ValueError:
        return False
    replaced = re.compile(rf"\s*({'|'.join(map(re.escape, keys))})\s*=") if keys.keys() & pretrain.get(name, {}).keys() else None
    lines = iter(edited.splitlines())
    return same and all(line in lines for line in text.splitlines() if replaced is None or not replaced.match(line))


def _replace(path: Path, text: str) -> None:
    """Replace a file in one step, and keep its mode."""
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
