"""The files of an export and those of the older one in its place: which those are, and the exchange of the two, as a whole or not at all.

What an export wrote is told by a list that lies with it, one name a line: by a pattern of names, parts of `c4` and a data set `c4_00000`
would be the same. How files are made is not known here.
"""

import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import FrameType

from niels_cache_runtime.errors import NielsCacheError

NEW, OLD = "new", "old"  # below the stage: complete files that wait for their places, and those that lay there

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a split goes, also one that is empty now. `names`: its files, whatever is in them; where their number varies, the file
    `list_name` says which there are. All relative to the export's folder, with slashes."""

    list_name: str | None = None
    names: tuple[str, ...] = ()

    def older(self, folder: Path) -> list[str]:
        """Names of the files that are there of an older export, the list first, each part's tokens before what describes them."""
        names = list(self.names)
        if self.list_name is not None and os.path.lexists(folder / self.list_name):
            names += [self.list_name, *_read_list(folder / self.list_name)]
        return [name for name in names if os.path.lexists(folder / name)]


def list_of(names: Sequence[str]) -> bytes:
    """What the file `list_name` of a place holds."""
    return "".join(f"{name}\n" for name in names).encode()


def _read_list(path: Path) -> list[str]:
    """Raises NielsCacheError for what is no list: nothing is deleted that is not surely an export's."""
    try:
        names = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise NielsCacheError(f"{path}: cannot be read as the list of an export's files; choose another place") from error
    for name in names:
        parts = PurePosixPath(name).parts
        if not 1 <= len(parts) <= 2 or ".." in parts or PurePosixPath(name).is_absolute():
            raise NielsCacheError(f"{path}: is not the list of an export's files, it has {name!r}; move it away or choose another place")
    return names


def exchange(folder: Path, stage: Path, *, older: Sequence[str], names: Sequence[str]) -> None:
    """Move `older` of the folder into stage/OLD, last name first, then `names` of stage/NEW into the folder; then what is old is deleted.

    Raises OSError for what the disk refuses; all is as it was then. SIGINT and SIGTERM come when it is done. A process that is killed
    meanwhile leaves a part of the old files or of the new ones in the folder, never of both; the old ones are in stage/OLD.
    """
    moved: list[str] = []
    placed: list[str] = []
    made: list[Path] = []
    with _signals_afterwards():
        try:
            for name in reversed(older):
                (stage / OLD / name).parent.mkdir(parents=True, exist_ok=True)
                os.rename(folder / name, stage / OLD / name)
                moved.append(name)
            for name in names:
                below = (folder / name).parent
                if not below.is_dir():
                    below.mkdir()
                    made.append(below)
                os.rename(stage / NEW / name, folder / name)
                placed.append(name)
            for below in {(folder / name).parent for name in (*names, *older)}:
                _sync_folder(below)
        except BaseException as error:
            try:
                for name in reversed(placed):
                    os.unlink(folder / name)
                for name in reversed(moved):
                    os.rename(stage / OLD / name, folder / name)
            except OSError as second:
                message = f"{folder}: {second.strerror}, so the older export could not be put back after {error}; it is in {stage / OLD}"
                raise NielsCacheError(f"{message}: move it from there by hand") from error
            for below in reversed(made):
                with suppress(OSError):  # there is something in it
                    below.rmdir()
            shutil.rmtree(stage / OLD, ignore_errors=True)
            raise
        shutil.rmtree(stage / OLD, ignore_errors=True)


@contextmanager
def _signals_afterwards() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the block has ended.

    By handlers, because a mask of this thread holds nothing back: any other thread takes the signal, and Python handles it in this one.
    The wakeup descriptor is set aside as well, so that whoever reads it does not end the process for a handler that does not come.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread
        return
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    wakeup = signal.set_wakeup_fd(-1)
    handlers = {number: signal.signal(number, note) for number in map(int, _SIGNALS) if signal.getsignal(number) is not None}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        for number in received[:1]:
            signal.raise_signal(number)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
