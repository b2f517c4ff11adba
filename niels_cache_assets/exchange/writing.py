"""An export on disk: planned files are written into a staging directory, and renamed when all files are complete.

The staging directory is locked, so two exports to one folder do not mix. It is removed at the end, even after an error. If an export was
killed, the next export to the same folder removes its files from both directories. The formats define the files, and replacing.py renames
them.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from niels_cache_assets.disk.space import SpaceNeed, explain_disk_full, name_path, require_free_space
from niels_cache_assets.disk.staging import export_stage
from niels_cache_assets.exchange.replacing import (
    NEW,
    OLD,
    ExportTarget,
    empty_folder,
    existing_files,
    leftover_files,
    swap_files,
    take_back,
)
from niels_cache_assets.exchange.splits import ExportSplit
from niels_cache_runtime.errors import NielsCacheError

OnBytes = Callable[[int], None]  # takes the number of bytes written since the last call
OnExportProgress = Callable[[int, int], None]  # bytes written, bytes in total


@dataclass(frozen=True, kw_only=True)
class PlannedFile:
    """One file of an export.

    Attributes:
        name: The path relative to the export's folder, with slashes.
        bytes: The size of the file.
        tokens: The number of tokens in the file, or None.
        documents: The number of documents in the file, or None.
    """

    name: str
    bytes: int
    tokens: int | None = None
    documents: int | None = None


Content = tuple[PlannedFile, Callable[[], Iterable[bytes]]]  # a file, and a function that yields its content


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Files that belong together.

    Attributes:
        files: The files, in the order in which they appear in the export's folder.
        write: Writes all of them into a folder, complete and flushed to disk.
    """

    files: tuple[PlannedFile, ...]
    write: Callable[[Path, OnBytes], None]


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """The plan of an export.

    Attributes:
        folder: The folder of the files.
        label: What distinguishes exports to the same folder.
        splits: The splits with tokens.
        units: The files to write.
        targets: The file names of each requested split, including empty ones.
        notes: Facts about the result, for the user.
        lines: Python code to paste into the other project.
    """

    folder: Path
    label: str
    splits: tuple[ExportSplit, ...]
    units: tuple[Unit, ...]
    targets: tuple[ExportTarget, ...]
    notes: tuple[str, ...]
    lines: tuple[str, ...] = ()

    @property
    def files(self) -> list[PlannedFile]:
        return [file for unit in self.units for file in unit.files]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def stage(self) -> Path:
        """The staging directory, where files wait until all are complete."""
        return self.folder / f".{self.label}.partial"

    @property
    def _lists(self) -> set[str | None]:
        return {place.list_name for place in self.targets}

    def older(self) -> list[str]:
        """Return the names of an older export's files, and of files that are in the way.

        Raises:
            NielsCacheError: If a folder is in the way.
        """
        names = [name for place in self.targets for name in place.older(self.folder)]
        return existing_files(self.folder, [*names, *(file.name for file in self.files)])

    def existing(self) -> list[str]:
        """Return the names of `older`, without the files that a killed export left.

        If only a list of files remains, return an empty list.
        """
        behind = leftover_files(self.folder, self.stage)
        names = [name for name in self.older() if name not in behind]
        return names if set(names) - self._lists else []

    def deleted(self) -> list[str]:
        """Return the existing files that `force` deletes without a new file to replace them."""
        return sorted(set(self.existing()) - {file.name for file in self.files})

    def require_free(self) -> None:
        """Raise NielsCacheError if an older export would be replaced."""
        existing = [name for name in self.existing() if name not in self._lists]
        if existing:
            more = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
            raise NielsCacheError(f"{self.folder / existing[0]}: is there already{more}; choose another place, or replace it with --force")


def write_export(plan: ExportPlan, *, force: bool = False, progress: OnExportProgress | None = None) -> None:
    """Write the plan's files. After an error, the older files are unchanged.

    Args:
        plan: The plan.
        force: Whether the new files may replace an older export, completely.
        progress: Called with (bytes written, bytes in total).

    Raises:
        NielsCacheError: If files exist and `force` is not set, if another export is writing to the same folder, if the data set is rebuilt
            during the export, or if the disk fails.
    """
    if not force:
        plan.require_free()
    total, done = plan.bytes, 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    need = SpaceNeed(bytes=total, reason="its files")
    # If the stage has OLD files that could not be put back, it stays.
    with explain_disk_full(need), export_stage(plan.folder, plan.stage, kept=OLD, advice="the export was stopped") as stage:
        take_back(plan.folder, stage, force=force)
        empty_folder(stage)
        (stage / NEW).mkdir()
        require_free_space(plan.folder, need)  # the new files are on disk in addition to the older export
        for unit in plan.units:
            unit.write(stage / NEW, on_bytes)
        for file in plan.files:
            size = (stage / NEW / file.name).stat().st_size
            if size != file.bytes:
                raise NielsCacheError(f"{file.name}: has {size} bytes instead of {file.bytes}; the data set changed: export it again")
        for split in plan.splits:
            split.require_same_build()
        if not force:
            plan.require_free()
        names = [file.name for file in plan.files]
        # Lists are moved first and removed last, so the next export finds the files of a killed export. An index comes after its tokens.
        swap_files(plan.folder, stage, older=plan.older(), names=sorted(names, key=lambda name: name not in plan._lists))
    if progress is not None:
        progress(total, total)


def tokens_file(
    split: ExportSplit, name: str, first: int, end: int, *, documents: int | None = None, header: bytes = b"", eot_before: bool = False
) -> Content:
    """Return a file with the tokens from `first` to `end` - 1 of a split.

    Args:
        split: The split.
        name: The name of the file.
        first: The first token.
        end: The token after the last one.
        documents: The number of documents in the file. None: not known.
        header: What stands before the tokens.
        eot_before: Whether EOT is moved from the end of each document to its beginning.
    """
    blocks = split.blocks_with_eot_before if eot_before else split.blocks
    size = len(header) + (end - first) * split.dtype.itemsize
    return PlannedFile(name=name, bytes=size, tokens=end - first, documents=documents), lambda: chain(
        [header] * bool(header), blocks(first, end)
    )


def even_units(
    split: ExportSplit,
    suffix: str,
    header_of: Callable[[int, np.dtype], bytes],
    *,
    max_bytes: int,
    folder: str = "",
    eot_before: bool = False,
) -> list[Unit]:
    """Return the files NAME_SPLIT_000000SUFFIX, ... of a split in order. Each has `max_bytes` of tokens; the last one may be shorter.

    Args:
        split: The split.
        suffix: The end of the names.
        header_of: Returns the header of a file with this many tokens of this dtype.
        max_bytes: The bytes of tokens in a file.
        folder: What stands before the names.
        eot_before: See `tokens_file`.
    """
    largest = max_bytes // split.dtype.itemsize
    found = []
    for index, first in enumerate(range(0, split.tokens, largest)):
        end = min(first + largest, split.tokens)
        name, header = f"{folder}{split.name}_{split.split}_{index:06d}{suffix}", header_of(end - first, split.dtype)
        found.append(make_unit(tokens_file(split, name, first, end, header=header, eot_before=eot_before)))
    return found


def make_unit(*files: Content) -> Unit:
    """Return a unit of files, each of which is written from front to back and flushed to disk.

    Args:
        *files: The files.
    """

    def write(stage: Path, on_bytes: OnBytes) -> None:
        for file, blocks in files:
            path = stage / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as opened:
                for block in blocks():
                    with name_path(path, writes=len(block)):
                        opened.write(block)
                    on_bytes(len(block))
                opened.flush()
                os.fsync(opened.fileno())

    return Unit(files=tuple(file for file, _ in files), write=write)


def list_unit(list_name: str, units: Iterable[Unit]) -> Unit:
    """Return a unit with one file: the list of the files of `units`."""
    content = "".join(f"{file.name}\n" for unit in units for file in unit.files).encode()
    return make_unit((PlannedFile(name=list_name, bytes=len(content)), lambda: [content]))
