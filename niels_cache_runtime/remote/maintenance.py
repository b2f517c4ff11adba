"""The maintenance of a local copy: list, trim and check it. Readers of the copy may run at the same time."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.remote.eviction import files_over_limit
from niels_cache_runtime.remote.ledger import BUILDS, TAILS, Ledger


@dataclass(frozen=True, kw_only=True)
class CopiedBuildFiles:
    """The files of one build in a local copy.

    Attributes:
        family: The family of the data set.
        name: The name of the data set.
        address: Where the build was published.
        content_sha256: The hash that identifies the build.
        files: The number of files.
        bytes: Their total size.
        in_use: Whether a live process has mapped one of the files.
    """

    family: str
    name: str
    address: str
    content_sha256: str
    files: int
    bytes: int
    in_use: bool


@dataclass(frozen=True, kw_only=True)
class CopyContents:
    """The contents of a local copy.

    Attributes:
        builds: The builds with at least one file in the copy.
        bytes: The total size of all files.
        limit: The smallest limit of the readers, or None without readers.
        readers: The number of live readers.
    """

    builds: Sequence[CopiedBuildFiles]
    bytes: int
    limit: int | None
    readers: int


def contents(folder: str | os.PathLike[str]) -> CopyContents:
    """Return what a local copy contains.

    Raises:
        NielsCacheError: If the folder is not a local copy.
    """
    with _ledger(folder).changing() as state:
        mapped = state.mapped()
        found = []
        for build, record in state.builds.items():
            content, family, name = build.split("/")
            folders = (f"{BUILDS}/{build}/", f"{TAILS}/{build}/", f"{BUILDS}/{content}/tokenizer/")  # the last is beside that of the family
            own = [path for path in state.entries if path.startswith(folders)]
            if own:
                found.append(
                    CopiedBuildFiles(
                        family=family,
                        name=name,
                        address=record["address"],
                        content_sha256=content,
                        files=len(own),
                        bytes=sum(state.entries[path].size for path in own),
                        in_use=not mapped.isdisjoint(own),
                    )
                )
        return CopyContents(
            builds=found,
            bytes=state.used_bytes() - state.overhead,
            limit=state.limit() if state.readers else None,
            readers=len(state.readers),
        )


def trim(folder: str | os.PathLike[str], to_bytes: int) -> int:
    """Remove files that no process has mapped, until at most `to_bytes` are left. Return the number of bytes that were freed.

    The least recently used files are removed first.

    Raises:
        NielsCacheError: If the folder is not a local copy.
    """
    ledger = _ledger(folder)
    with ledger.changing() as state:
        before = state.used_bytes()
        ledger.remove(state, *files_over_limit(state, to_bytes))
        return before - state.used_bytes()


def check(folder: str | os.PathLike[str]) -> list[str]:
    """Hash every complete file. Return the sorted paths of damaged and missing files, relative to the copy.

    These files are removed from the copy, unless a process has mapped them. Files that pass need no check before their next use. Each
    result is recorded at once, so an interrupted check is not lost.

    Raises:
        NielsCacheError: If the folder is not a local copy.
    """
    ledger = _ledger(folder)
    with ledger.changing() as state:
        expected = {path: entry.sha256 for path, entry in state.entries.items() if not entry.owner}
    damaged = []
    for path, sha256 in sorted(expected.items()):
        is_intact = ledger.files.sha256(path) == sha256
        with ledger.changing() as state:
            entry = state.entries.get(path)
            if entry is None or entry.owner or entry.sha256 != sha256:
                continue  # it was removed or replaced in the meantime
            if is_intact:
                state.unchecked.discard(path)
                continue
            damaged.append(path)
            if path not in state.mapped():
                ledger.remove(state, path)
    return damaged


def _ledger(folder: str | os.PathLike[str]) -> Ledger:
    ledger = Ledger(Path(folder).expanduser().absolute())
    if not ledger.exists():
        raise NielsCacheError(f"{folder}: is not a local copy; give the folder that a loader has as Copy(dir=...)")
    return ledger
