"""An export on disk: planned files are written into a folder beside their places, and renamed when all of them are complete.

That folder is locked, so that two exports to one place do not meet, and goes with the export, however it ends; one that a killed export
left is cleared by the next to the same place. What an export is made of is the formats' business.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from niels_cache_assets.export.splits import ExportSplit
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import SPLITS

OnBytes = Callable[[int], None]  # that many more are written
Progress = Callable[[int, int], None]  # bytes written, bytes in all


@dataclass(frozen=True, kw_only=True)
class PlannedFile:
    """`name`: relative to the export's folder, with slashes. `tokens` and `documents`: what it holds, None where it holds none."""

    name: str
    bytes: int
    tokens: int | None = None
    documents: int | None = None


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Files that belong together, in the order in which they appear; `write` makes them all, complete and on the disk, below a folder."""

    files: tuple[PlannedFile, ...]
    write: Callable[[Path, OnBytes], None]


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """`folder`: where the files go. `label`: what else goes there under another label does not meet it. `owned`: names, relative to the
    folder, of what an export like this one writes, from which an older one is known. `notes`: what to know about the result."""

    folder: Path
    label: str
    splits: tuple[ExportSplit, ...]
    units: tuple[Unit, ...]
    owned: re.Pattern[str]
    notes: tuple[str, ...]

    @property
    def files(self) -> list[PlannedFile]:
        return [file for unit in self.units for file in unit.files]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def existing(self) -> list[str]:
        """Names of the files that an older export left in the folder."""
        below = [self.folder, *(self.folder / split for split in SPLITS)]
        found = (path for folder in below if folder.is_dir() for path in folder.iterdir())
        names = sorted(path.relative_to(self.folder).as_posix() for path in found)
        return [name for name in names if self.owned.fullmatch(name) or name in {file.name for file in self.files}]

    def require_free(self) -> None:
        """Raise NielsCacheError where an older export would be replaced."""
        existing = self.existing()
        if existing:
            more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
            raise NielsCacheError(f"{self.folder / existing[0]}: is there already{more}; choose another place, or replace it with --force")


def write_export(plan: ExportPlan, *, force: bool = False, progress: Progress | None = None) -> None:
    """Write the plan's files. With `force` they replace an older export, of which nothing is left.

    Raises NielsCacheError if files are there and not `force`, if another export writes there, if the data set is rebuilt meanwhile, and
    for what the disk refuses. What was there is then as it was.
    """
    if not force:
        plan.require_free()
    total, done = plan.bytes, 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    with _staging(plan.folder, plan.label) as stage:
        for unit in plan.units:
            unit.write(stage, on_bytes)
        for file in plan.files:
            size = (stage / file.name).stat().st_size
            if size != file.bytes:
                raise NielsCacheError(f"{file.name}: became {size} bytes, not {file.bytes}; the data set changed: export it again")
        for split in plan.splits:
            split.require_same_build()
        _put_in_place(plan, stage)
    if progress is not None:
        progress(total, total)


def write_file(path: Path, blocks: Iterable[bytes], on_bytes: OnBytes) -> None:
    """Write a file from front to back and put it on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for block in blocks:
            file.write(block)
            on_bytes(len(block))
        file.flush()
        os.fsync(file.fileno())


def _put_in_place(plan: ExportPlan, stage: Path) -> None:
    """Rename the files to their places. An index goes before the tokens that it described are replaced, and comes after the new ones."""
    stale = set(plan.existing()) - {file.name for file in plan.files}
    for unit in plan.units:
        for file in reversed(unit.files[1:]):
            (plan.folder / file.name).unlink(missing_ok=True)
        for file in unit.files:
            (plan.folder / file.name).parent.mkdir(exist_ok=True)
            os.replace(stage / file.name, plan.folder / file.name)
    for name in stale:
        (plan.folder / name).unlink(missing_ok=True)
    for folder in {(plan.folder / file.name).parent for file in plan.files}:
        _sync_folder(folder)


@contextmanager
def _staging(folder: Path, label: str) -> Iterator[Path]:
    """An empty folder in `folder` that is ours alone, and gone afterwards."""
    stage, was_there = folder / f".{label}.partial", folder.is_dir()
    try:
        stage.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(stage, os.O_RDONLY)
    except OSError as error:
        raise NielsCacheError(f"{folder}: cannot write there: {error.strerror or error}; choose another place") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NielsCacheError(f"{stage}: another export is writing there now; wait for it to end") from error
        try:
            _empty(stage)
            yield stage
        except OSError as error:
            raise NielsCacheError(f"{error.filename or folder}: {error.strerror or error}; the export was given up") from error
        finally:
            shutil.rmtree(stage, ignore_errors=True)
            if not was_there:
                with suppress(OSError):  # there is something in it
                    folder.rmdir()
    finally:
        os.close(descriptor)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
