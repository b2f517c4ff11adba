"""What an erasure cannot reach: other names of the same file, programs that have mapped an old build, and folders that are read-only.

The kernel frees the bytes of a deleted file only when its last name is gone and no program has it open.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from niels_cache_inspection.erasure.texts import regular_files


class Remaining(TypedDict):
    """Something that still has the text, or may have it.

    Attributes:
        what: What it is, in a word or two.
        where: Where it is.
        advice: What to do about it.
    """

    what: str
    where: str
    advice: str


def other_names(folders: Iterable[Path], root: Path) -> list[Remaining]:
    """Return the files of old builds that have names outside of the root, which no build removes."""
    suspects = {(found.st_dev, found.st_ino): (path, found.st_nlink) for path, found in regular_files(folders) if found.st_nlink > 1}
    names: Counter[tuple[int, int]] = Counter()
    for below, _, files in os.walk(root) if suspects else ():
        for name in files:
            with suppress(OSError):
                found = os.lstat(os.path.join(below, name))
                names[found.st_dev, found.st_ino] += 1
    return [
        Remaining(
            what="hard link",
            where=f"{links - names[key]} other names of {path} (inode {key[1]})",
            advice=f"find them: find {shlex.quote(str(_mount_of(path)))} -xdev -inum {key[1]}; and delete them",
        )
        for key, (path, links) in suspects.items()
        if links > names[key]
    ]


def _mount_of(path: Path) -> Path:
    """Return the mount point of the file system of a file, which has all of its names."""
    return next(each for each in path.resolve().parents if each.is_mount())


def read_only(folders: Iterable[Path]) -> list[Remaining]:
    """Return the folders whose files cannot be replaced."""
    return [
        Remaining(what="read-only folder", where=str(each), advice="make it writable, and run the same command again")
        for each in folders
        if each.exists() and not (os.access(each.parent, os.W_OK) and os.access(each, os.W_OK))
    ]


def hub_copies(sources: Iterable[object]) -> list[Remaining]:
    """Return the folders in which the hub's libraries keep what they have read, if one of these sources is on the hub."""
    from huggingface_hub import constants

    folders = (Path(constants.HF_HUB_CACHE), Path(constants.HF_HOME) / "datasets")
    is_read = any(getattr(each, "dataset", None) and not getattr(each, "local_key", None) for each in sources)
    advice = "`hf cache delete` and deleting the folder remove what is there"
    return [Remaining(what="copy of the hub's library", where=str(each), advice=advice) for each in folders if is_read and each.is_dir()]


def readers_of(root: Path) -> Iterator[Remaining]:
    """Yield the programs of this machine that still have deleted files below a root open or mapped."""
    prefix, hidden = f"{root.resolve()}/", 0  # the kernel names files without links
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            lines = (process / "maps").read_text(errors="replace").splitlines()
            opened = [os.readlink(each) for each in (process / "fd").iterdir()]
        except PermissionError:
            hidden += 1
            continue
        except OSError:  # it has ended
            continue
        paths = {line[line.find("/") :] for line in lines if prefix in line} | {each for each in opened if each.startswith(prefix)}
        if old := sorted(each for each in paths if each.startswith(prefix) and each.endswith(" (deleted)")):
            with suppress(OSError):
                command = (process / "comm").read_text().strip()
                yield Remaining(
                    what="reader of an old build",
                    where=f"process {process.name} ({command}): {old[0].removesuffix(' (deleted)')} and {len(old) - 1} more files",
                    advice="end it, or let it end: the old bytes are freed then",
                )
    if hidden:
        yield Remaining(
            what="processes that cannot be looked into", where=f"{hidden:,} on this machine", advice="root may see what they have open"
        )
