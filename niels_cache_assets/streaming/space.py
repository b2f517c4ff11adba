"""Room on the disk: how much a build will take, held against what is free before it begins, and what is said when a disk refuses.

A budget of tokens that a corpus which is there surely fills refuses a build that cannot end. One of a source of unknown length, which may
end before, and an estimate from the size of source files only warn. Where neither is known nothing is said. Costs one statvfs.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from niels_cache_assets.streaming.journal import JOURNAL_NAME
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import TOKEN_BYTES

_BYTES_PER_TOKEN = 4  # of text, roughly
_ADVICE = {
    errno.ENOSPC: "make room, or choose another cache directory",
    errno.EDQUOT: "raise the quota, make room, or choose another cache directory",
    errno.EROFS: "choose a cache directory on a disk that can be written",
    errno.EACCES: "make it writable for you, or choose another cache directory",
    errno.EIO: "the disk may be failing: look at the system's log",
}


@dataclass(frozen=True, kw_only=True)
class Need:
    """`bytes` that a build takes. `why`: what they follow from. `certain`: whether it takes them for sure."""

    bytes: int
    why: str
    certain: bool


def pretrain_need(*, train_tokens: int | None, val_tokens: int | None, text_bytes: int | None, exact: bool) -> Need | None:
    """Of a pretrain cache: budgets (None: all of the source) and the bytes of the source's text (None: not known), `exact` or at most.

    None where nothing is known.
    """
    budget = None if train_tokens is None else train_tokens + (val_tokens or 0)
    of_text = None if text_bytes is None else text_bytes // _BYTES_PER_TOKEN
    if budget is not None and (of_text is None or budget <= of_text):
        return Need(bytes=budget * TOKEN_BYTES, why=f"{budget:,} tokens", certain=exact)
    return (
        None if of_text is None else Need(bytes=of_text * TOKEN_BYTES, why=f"the tokens of {shown(text_bytes or 0)} of text", certain=False)
    )


def file_bytes(patterns: Sequence[str]) -> int | None:
    """Of local files that are plain text; None where there are others, whose text is larger than they are."""
    from niels_cache_assets.sources.compressed import compression_of
    from niels_cache_assets.sources.files import find_files

    if any("://" in pattern for pattern in patterns):
        return None
    found = [file.url for file in find_files(patterns)]
    if any(compression_of(path) or path.endswith(".parquet") for path in found):
        return None
    return sum(os.path.getsize(path) for path in found)


def require_room(target: Path, need: Need | None, *, log: Callable[[str], None]) -> None:
    """Raise NielsCacheError where `target` surely does not fit beside the one that it replaces; tell `log` where it may not.

    What an unfinished build has already written counts as room.
    """
    if need is None:
        return
    free = _free_bytes(target)
    have = free + _resumable_bytes(target)
    if need.bytes <= have:
        return
    about = f"{need.why} take about {shown(need.bytes)}, and {shown(have)} are free"
    if need.certain:
        raise NielsCacheError(f"{target}: {about}; {_ADVICE[errno.ENOSPC]}, or ask for fewer tokens")
    log(f"warning: {target} may not fit on its disk: {about}")


def refusal(error: OSError, target: Path) -> str:
    """The path, what the system said and what to do, for an error of the disk while `target` was written."""
    where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else target
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = f"{reason} ({shown(_free_bytes(target))} are free there)"
    advice = _ADVICE.get(error.errno or 0)
    return f"{where}: {reason}; {advice}" if advice else f"{where}: {reason}"


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """An OSError of the block names `path`, where it names none: a system call on an open file does not know its name."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def shown(count: int) -> str:
    """Bytes as people read them."""
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def _free_bytes(target: Path) -> int:
    existing = next(folder for folder in (target, *target.absolute().parents) if folder.exists())
    return shutil.disk_usage(existing).free


def _resumable_bytes(target: Path) -> int:
    from niels_cache_assets.streaming.directories import partial_directory  # which needs this module

    partial = partial_directory(target)
    if not (partial / JOURNAL_NAME).exists():
        return 0
    count = 0
    for folder, _, names in os.walk(partial):
        for name in names:
            with suppress(OSError):  # gone: another process may be at work there
                count += os.path.getsize(os.path.join(folder, name))
    return count
