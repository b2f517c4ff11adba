"""Checks of files and names from an untrusted source. A name must stay inside its folder, and a file must be a regular file.

    meta.json --names--> `name_problem` --> `link_problem` of each part of the path --> `open_regular` --> a descriptor

A pipe or a device could block a reader or fill its memory. Through a link out of a data set, a reader could read, copy or verify a file of
another owner. The folder of the data set itself may be a link, because its owner chooses where caches lie. The checks cost one lstat for
each file, and one for each folder between the data set and the file.

`OwnedFolder` reads and writes files in a folder in which other users may plant links, such as a local copy on a shared disk. It opens each
folder by the descriptor of the one above it, and follows no link. This costs a system call for each folder.
"""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path, PurePosixPath

from niels_cache_runtime.errors import NielsCacheError

# Without O_NONBLOCK, opening a pipe would wait for a writer. The flag has no effect on a regular file.
_NO_WAIT = os.O_NONBLOCK
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_NEW = ".new"  # the end of the name of a file that replaces another one
_PLAIN_NAME = re.compile(r"(?:\w[\w.-]*/)*\w[\w.-]*", re.ASCII)
_MAX_NAME_BYTES = 255  # of Linux and macOS; a longer name raises an OSError where it is looked for


def name_problem(name: object) -> str | None:
    """Return a clause if `name` is not a relative path with slashes that stays inside its folder, otherwise None."""
    if not isinstance(name, str) or not name:
        return "is not a file name"
    if len(name) <= _MAX_NAME_BYTES and _PLAIN_NAME.fullmatch(name):  # as those of a cache: only this look for each of thousands of files
        return None
    if not name.isprintable():  # NUL, line breaks, halves of surrogate pairs
        return "holds a character that is not allowed in a file name"
    if "\\" in name or not {"..", ".", ""}.isdisjoint(name.split("/")):
        return "does not stay in its folder"
    if any(len(part.encode()) > _MAX_NAME_BYTES for part in name.split("/")):
        return "is too long for a file name"
    return None


def require_utf8(path: str | Path, advice: str) -> None:
    """Raise NielsCacheError for a path that is not UTF-8.

    Libraries that write the path into tables and records would refuse such a path later.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        shown = str(path).encode(errors="backslashreplace").decode()
        raise NielsCacheError(f"{shown}: is not UTF-8, but the path of a cache must be; {advice}") from error


def link_problem(folder: str | Path, names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first name that is a link out of `folder` or lies below such a link, and one clause about the problem.

    Return None if all names are safe.

    Args:
        folder: The folder.
        names: Relative names that `name_problem` has accepted.
    """
    folder = Path(folder)
    is_outside: dict[str, bool] = {}
    for name in names:
        for part in accumulate(name.split("/"), "{}/{}".format):  # each folder, then the file
            if part not in is_outside:
                is_outside[part] = _leads_outside(folder, part)
            if is_outside[part]:
                return name, f"is a link out of {folder}, which is not followed; put the file itself there"
    return None


def _leads_outside(folder: Path, name: str) -> bool:
    try:
        if not stat.S_ISLNK(os.lstat(os.path.join(folder, name)).st_mode):  # a join of paths as objects takes longer than the look
            return False
    except OSError:  # opening it later raises the error
        return False
    return not Path(os.path.realpath(folder / name)).is_relative_to(os.path.realpath(folder))


def open_no_link(path: str | Path) -> int:
    """Open anything but a link for reading, and return its descriptor. A pipe does not block. The caller checks what it has opened."""
    return os.open(path, os.O_RDONLY | _NO_WAIT | _NO_LINK)


def open_regular(path: str | Path) -> int:
    """Open a regular file for reading and return its descriptor.

    Raises:
        OSError: In the same cases as `os.open`.
        NielsCacheError: For a pipe or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | _NO_WAIT)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):  # the same error that open() raises
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise NielsCacheError(f"{path}: is not a regular file; remove it, or restore the right file")
    return descriptor


def read_regular(path: str | Path, *, most_bytes: int) -> bytes:
    """Read all bytes of a regular file.

    Raises:
        OSError: In the same cases as `os.open`.
        NielsCacheError: If the path is not a regular file, or has more than `most_bytes`.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise NielsCacheError(f"{path}: has more than {most_bytes} bytes, too many for such a file; rebuild its data set")
    return content


class OwnedFolder:
    """The files of this user below the folder `root`. Names are relative, with slashes. `root` itself may be a link.

    Raises:
        NielsCacheError: From every method, and naming the path, for a folder below `root` that is a link or belongs to another user, and
            for a file that is not a regular file, has a second link, or belongs to another user.
        OSError: For other errors of the system.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, name: str, flags: int = os.O_RDONLY, *, make: bool = False) -> int:
        """Open a file and return its descriptor.

        Args:
            name: The file.
            flags: The flags of `os.open`.
            make: Whether to make the file and its folders if they are missing.
        """
        with self._folder(name, make=make) as (folder, last):
            while True:
                try:
                    descriptor = self._open(folder, last, flags, self.root / name)
                    break
                except FileNotFoundError:
                    if not make:
                        raise
                with suppress(FileExistsError):  # another process has made it meanwhile
                    return os.open(last, flags | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666, dir_fd=folder)
        state = os.fstat(descriptor)
        problem = None if stat.S_ISREG(state.st_mode) else "is not a regular file"
        problem = problem or ("has a second link" if state.st_nlink > 1 else _other_user(state))
        if problem:
            os.close(descriptor)
            raise NielsCacheError(f"{self.root / name}: {problem}; remove it, or choose another folder")
        return descriptor

    def size(self, name: str) -> int | None:
        """Return the size of a file, or None if it is missing."""
        with suppress(FileNotFoundError), os.fdopen(self.open(name), "rb") as file:
            return os.fstat(file.fileno()).st_size
        return None

    def exists(self, name: str) -> bool:
        """Return whether there is anything of this name, even a link that leads nowhere."""
        try:
            with self._folder(name) as (folder, last):
                os.stat(last, dir_fd=folder, follow_symlinks=False)
                return True
        except FileNotFoundError:
            return False

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with os.fdopen(self.open(name), "rb") as file:
            return file.read()

    def sha256(self, name: str) -> str | None:
        """Return the hex sha256 of a file, or None for a file that cannot be read or that `open` refuses."""
        with suppress(NielsCacheError, OSError), os.fdopen(self.open(name), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
        return None

    def write(self, name: str, content: bytes) -> None:
        """Write a whole file, which appears in one step."""
        with os.fdopen(self.open(name + _NEW, os.O_WRONLY, make=True), "wb") as file:
            file.truncate(0)  # a process that was killed may have left a part
            file.write(content)
        self.rename(name + _NEW, name)

    def rename(self, name: str, new: str) -> None:
        """Give a file another name in the same folder. An older file of this name is replaced."""
        with self._folder(name) as (folder, last):
            os.replace(last, new.rpartition("/")[2], src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self, name: str) -> None:
        """Remove a file, and the folders that are empty then. A file that `open` refuses stays."""
        with suppress(NielsCacheError, FileNotFoundError):
            os.close(self.open(name))
            with self._folder(name) as (folder, last):
                os.unlink(last, dir_fd=folder)
        with suppress(NielsCacheError, OSError):  # the first folder that is not empty
            for parent in PurePosixPath(name).parents[:-1]:
                with self._folder(str(parent)) as (folder, last):
                    os.rmdir(last, dir_fd=folder)

    def make_folder(self, name: str) -> None:
        """Make a folder and those above it."""
        with self._folder(f"{name}/.", make=True):
            pass

    @contextmanager
    def _folder(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield the descriptor of the folder that has the file `name`, and the last part of the name."""
        *parents, last = name.split("/")
        folder, path = os.open(self.root, _FOLDER), self.root
        try:
            for part in parents:
                path = path / part
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                above, folder = folder, self._open(folder, part, _FOLDER, path, is_folder=True)
                os.close(above)
                if problem := _other_user(os.fstat(folder)):
                    raise NielsCacheError(f"{path}: {problem}; remove it, or choose another folder")
            yield folder, last
        finally:
            os.close(folder)

    @staticmethod
    def _open(folder: int, name: str, flags: int, path: Path, *, is_folder: bool = False) -> int:
        try:
            return os.open(name, flags | _NO_LINK | _NO_WAIT, dir_fd=folder)
        except OSError as error:
            with suppress(OSError):
                if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise NielsCacheError(f"{path}: is a link, which is not followed; remove it, or choose another folder") from error
            if isinstance(error, IsADirectoryError | NotADirectoryError) or error.errno == errno.ENXIO:  # ENXIO: of a pipe or a socket
                what = "a folder" if is_folder else "a regular file"
                raise NielsCacheError(f"{path}: is not {what}; remove it, or choose another folder") from error
            raise


def _other_user(state: os.stat_result) -> str | None:
    return None if state.st_uid == os.geteuid() else f"belongs to another user ({state.st_uid})"
