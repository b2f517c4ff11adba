"""Checks of files and names from an untrusted source. A name must stay inside its folder, and a file must be a regular file.

    meta.json --names--> `name_problem` --> `link_problem` of each part of the path --> `open_regular` --> a descriptor

A pipe or a device could block a reader or fill its memory. Through a link out of a data set, a reader could read, copy or verify a file of
another owner. The folder of the data set itself may be a link, because its owner chooses where caches lie. The checks cost one lstat for
each file, and one for each folder between the data set and the file.
"""

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from niels_cache_runtime.errors import NielsCacheError

_MOST_NAME_BYTES = 255  # of Linux and macOS; a longer name raises an OSError where it is looked for


def name_problem(name: object) -> str | None:
    """Return one clause if `name` is not a relative path with slashes that stays inside its folder. Return None if it is."""
    if not isinstance(name, str) or not name:
        return "is not a file name"
    if not name.isprintable():  # NUL, line breaks, halves of surrogate pairs
        return "holds a character that is not allowed in a file name"
    if "\\" in name or not {"..", ".", ""}.isdisjoint(name.split("/")):
        return "does not stay in its folder"
    if any(len(part.encode()) > _MOST_NAME_BYTES for part in name.split("/")):
        return "is too long for a file name"
    return None


def require_utf8(path: str | Path, advice: str) -> None:
    """Raise NielsCacheError for a path that is not UTF-8. Libraries that write the path into tables and records would refuse such a path
    later.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        shown = str(path).encode(errors="backslashreplace").decode()
        raise NielsCacheError(f"{shown}: is not UTF-8, but the path of a cache must be; {advice}") from error


def link_problem(folder: str | Path, names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first of `names` that is a link out of `folder` or lies below such a link, and one clause about the problem.

    The names are relative, and `name_problem` has accepted them. Return None if all names are safe.
    """
    folder = Path(folder)
    looked_at: dict[str, bool] = {}
    for name in names:
        parts = name.split("/")
        for part in ("/".join(parts[: count + 1]) for count in range(len(parts))):
            if part not in looked_at:
                looked_at[part] = _leaves(folder, part)
            if looked_at[part]:
                return name, f"is a link out of {folder}, which is not followed; put the file itself there"
    return None


def _leaves(folder: Path, name: str) -> bool:
    try:
        if not stat.S_ISLNK(os.lstat(os.path.join(folder, name)).st_mode):  # a join of paths as objects takes longer than the look
            return False
    except OSError:  # opening it later raises the error
        return False
    return not Path(os.path.realpath(folder / name)).is_relative_to(os.path.realpath(folder))


def open_regular(path: str | Path) -> int:
    """Open a regular file for reading and return its descriptor.

    Raises OSError in the same cases as `os.open`, and NielsCacheError for a pipe or a device.
    """
    # Without O_NONBLOCK, opening a pipe would wait for a writer. The flag has no effect on a regular file.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):  # the same error that open() raises
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise NielsCacheError(f"{path}: is not a regular file; remove it, or restore the right file")
    return descriptor


def read_regular(path: str | Path, *, most_bytes: int) -> bytes:
    """Read all bytes of a regular file.

    Raises OSError in the same cases as `os.open`. Raises NielsCacheError if the path is not a regular file, or has more than `most_bytes`.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise NielsCacheError(f"{path}: has more than {most_bytes} bytes, too many for such a file; rebuild its data set")
    return content
