"""Room on the disk: how much a build will take, held against what is free before it begins, and what is said when a disk refuses.

A size that is known (an export, an import, the bands of duplicates, a budget of tokens that a corpus which is there surely fills) refuses
a build that cannot end. A budget of a source of unknown length, which may end before, and an estimate from the size of source files only
warn. Where nothing is known nothing is said. Costs one statvfs.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal as file_size

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_BYTES

_BYTES_PER_TOKEN = 4  # of text, roughly
_MOST_BYTES_PER_TOKEN = 16  # of text: longer pieces are not trained, so that it surely has a token for so many
_COMPRESSED = 0.4  # of text, roughly, in the files of a corpus
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ADVICE = {
    errno.ENOSPC: "make room, or choose another cache directory",
    errno.EDQUOT: "raise the quota, make room, or choose another cache directory",
    errno.EROFS: "choose a cache directory on a disk that can be written",
    errno.EACCES: "make it writable for you, or choose another cache directory",
    errno.EIO: "the disk may be failing: look at the system's log",
}


@dataclass(frozen=True, kw_only=True)
class Need:
    """`bytes` that a build takes, and `why`. `certain`: whether it takes them for sure. `fewer`: a budget of tokens asks for so many."""

    bytes: int
    why: str
    certain: bool
    fewer: bool = False


def pretrain_need(*, train_tokens: int | None, val_tokens: int | None, text_bytes: int | None, exact: bool) -> Need | None:
    """Of a pretrain cache: budgets (None: all of the source) and the bytes of the source's text (None: not known), `exact` or at most.

    None where nothing is known.
    """
    budget = None if train_tokens is None else train_tokens + (val_tokens or 0)
    of_text = None if text_bytes is None else text_bytes // _BYTES_PER_TOKEN
    if budget is not None and (of_text is None or budget <= of_text):
        certain = exact and of_text is not None and budget <= (text_bytes or 0) // _MOST_BYTES_PER_TOKEN
        return Need(bytes=budget * TOKEN_BYTES, why=f"{budget:,} tokens", certain=certain, fewer=True)
    if text_bytes is None or of_text is None:
        return None
    return Need(bytes=of_text * TOKEN_BYTES, why=f"the tokens of {file_size(text_bytes)} of text", certain=False)


def sft_need(text_bytes: int | None) -> Need | None:
    """Of an SFT cache: tokens lie in a spool while they are dealt to the splits."""
    if text_bytes is None:
        return None
    tokens = text_bytes // _BYTES_PER_TOKEN
    return Need(
        bytes=2 * tokens * TOKEN_BYTES, why=f"the tokens of {file_size(text_bytes)} of text, twice while they are dealt out,", certain=False
    )


def corpus_need(text_bytes: int | None) -> Need | None:
    """Of a corpus, whose documents are compressed; signatures, as many as there are documents, are not known."""
    if text_bytes is None:
        return None
    return Need(bytes=int(text_bytes * _COMPRESSED), why=f"the documents of {file_size(text_bytes)} of text, compressed,", certain=False)


def require_room(target: Path, need: Need | None, *, log: Callable[[str], None]) -> None:
    """Raise NielsCacheError where `target` surely does not fit beside the one that it replaces; tell `log` where it may not.

    What an unfinished build has written counts as room: it is gone on with, or goes.
    """
    from niels_cache_assets.disk.journal import partial_directory  # which needs this module

    if need is None:
        return
    free = free_bytes(target)
    have = free + bytes_below(partial_directory(target))
    if need.bytes <= have:
        return
    about = f"{need.why} take about {file_size(need.bytes)}, and {file_size(have)} are free"
    if need.certain:
        fewer = ", or ask for fewer tokens" if need.fewer else ""
        raise NielsCacheError(f"{target}: {about}; {_ADVICE[errno.ENOSPC]}{fewer}")
    log(f"warning: {target} may not fit on its disk: {about}")


@contextmanager
def telling(need: Need | None) -> Iterator[None]:
    """The block builds what takes so much: where it ends because a disk is full, the error says how much that is, if it is known."""
    try:
        yield
    except NielsCacheError as error:
        cause = error.__cause__
        if need is None or not isinstance(cause, OSError) or cause.errno not in _FULL:
            raise
        raise NielsCacheError(f"{error}; {need.why} take about {file_size(need.bytes)} in all") from cause


def refusal(error: OSError, target: Path) -> str:
    """The path, what the system said and what to do, for an error of the disk while `target` was written."""
    where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else target
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        reason = f"{reason} ({', '.join([*getattr(error, '__notes__', []), f'{file_size(free_bytes(where))} are free there'])})"
    advice = _ADVICE.get(error.errno or 0)
    return f"{where}: {reason}; {advice}" if advice else f"{where}: {reason}"


@contextmanager
def naming(path: Path | str, *, writes: int | None = None) -> Iterator[None]:
    """An OSError of the block names `path`, where it names none: a system call on an open file does not know its name.

    `writes`: the bytes that the block puts there, which a refusal tells.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        if writes is not None:
            error.add_note(f"writing {file_size(writes)} more failed")
        raise


def free_bytes(target: Path) -> int:
    existing = next(folder for folder in (target, *target.absolute().parents) if folder.exists())
    return shutil.disk_usage(existing).free


def bytes_below(folder: Path) -> int:
    """Of all files in it; 0 where it is not there."""
    count = 0
    for below, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # gone: another process may be at work there
                count += os.path.getsize(os.path.join(below, name))
    return count
