"""Files and names that may come from somebody else: a name stays inside its folder, a file is a regular one, or both are refused.

    meta.json --names--> `name_problem` --> `link_problem` of each part of the path --> `open_regular` --> a descriptor

A pipe or a device would block a reader or fill its memory; a link out of a data set would read, copy or vouch for somebody else's file. The
folder itself may be a link: where caches lie is their owner's choice. Costs one lstat for each file, and one for each folder between.
"""

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from niels_cache_runtime.errors import NielsCacheError


def name_problem(name: object) -> str | None:
    """One clause if `name` is no relative path with slashes that stays in the folder it is relative to, else None."""
    if not isinstance(name, str) or not name:
        return "is no name of a file"
    if not name.isprintable():  # NUL, line breaks, halves of surrogate pairs
        return "holds a character that no name of ours has"
    if "\\" in name or PurePosixPath(name).as_posix() != name or {"..", "."} & set(name.split("/")) or name.startswith("/"):
        return "does not stay in its folder"
    return None


def require_utf8(path: str | Path, advice: str) -> None:
    """Raise NielsCacheError for a path that is not UTF-8: libraries that write tables there, and records of it, refuse it later."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        shown = str(path).encode(errors="backslashreplace").decode()
        raise NielsCacheError(f"{shown}: is not UTF-8, as the names of folders that caches lie in must be; {advice}") from error


def link_problem(folder: str | Path, names: Iterable[str]) -> tuple[str, str] | None:
    """The first of `names` (relative, checked) that is, or lies below, a link out of `folder`, and one clause; None if there is none."""
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
        if not stat.S_ISLNK(os.lstat(folder / name).st_mode):
            return False
    except OSError:  # whoever opens it says what is wrong
        return False
    return not Path(os.path.realpath(folder / name)).is_relative_to(os.path.realpath(folder))


def open_regular(path: str | Path) -> int:
    """A descriptor, for reading, of a regular file. Raises OSError as `os.open`, NielsCacheError for a pipe or a device."""
    # Without O_NONBLOCK a pipe would wait for somebody to write into it; to a regular file it means nothing.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):  # what open() says of one
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise NielsCacheError(f"{path}: is no regular file; remove it, or put the file there that belongs there")
    return descriptor


def read_regular(path: str | Path, *, most_bytes: int) -> bytes:
    """All bytes of a regular file. Raises OSError as `os.open`, NielsCacheError if it is none, or holds more than `most_bytes`."""
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise NielsCacheError(f"{path}: has more than {most_bytes} bytes, which no such file has; rebuild what it belongs to")
    return content
