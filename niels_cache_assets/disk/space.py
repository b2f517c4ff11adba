"""Checks of the free disk space before a build, and messages for disk errors.

Before a build begins, its size is compared with the free space. If the size is certain and too large, the build is rejected. Sizes are
certain for an export, an import and the search for duplicates, and for a token budget that an existing corpus certainly fills. An estimate
from source files, or a token budget for a source of unknown length, only gives a warning. If the size is unknown, there is no message. A
check costs one call of statvfs.
"""

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal as file_size

from niels_cache_assets.disk.journal import partial_directory
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.reading import find_files

BYTES_PER_TOKEN = 4  # bytes of text for one token, roughly
_MAX_BYTES_PER_TOKEN = 16  # bytes of text for one token, at most: no trained piece is longer
_COMPRESSED = 0.4  # size of a corpus on disk as a share of its text, roughly
_PUNCH_HOLE = 3  # with FALLOC_FL_KEEP_SIZE
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ADVICE = {
    errno.ENOSPC: "make room, or choose another cache directory",
    errno.EDQUOT: "raise the quota, make room, or choose another cache directory",
    errno.EROFS: "choose a cache directory on a disk that can be written",
    errno.EACCES: "make it writable for you, or choose another cache directory",
    errno.EIO: "the disk may be failing; check the system's log",
}


@dataclass(frozen=True, kw_only=True)
class SpaceNeed:
    """The disk space that a build needs.

    Attributes:
        bytes: The size of the build.
        reason: The reason for this size, for messages.
        certain: Whether the build certainly takes this many bytes.
        is_from_budget: Whether the size comes from a token budget, so that the user can ask for fewer tokens.
    """

    bytes: int
    reason: str
    certain: bool = True
    is_from_budget: bool = False


def pretrain_need(
    *, token_bytes: int, train_tokens: int | None = None, val_tokens: int | None = None, text_bytes: int | None = None, exact: bool = False
) -> SpaceNeed | None:
    """Return the disk space that a pretrain cache needs, or None if it is unknown.

    Args:
        token_bytes: The size of a token in bytes.
        train_tokens: The budget of train. None means the whole source.
        val_tokens: The budget of val. None means the whole source.
        text_bytes: The size of the source's text in bytes, or None if unknown.
        exact: Whether `text_bytes` is exact. Otherwise it is only an upper bound.
    """
    budget = None if train_tokens is None else train_tokens + (val_tokens or 0)
    of_text = None if text_bytes is None else text_bytes // BYTES_PER_TOKEN
    if budget is not None and (of_text is None or budget <= of_text):
        certain = exact and of_text is not None and budget <= (text_bytes or 0) // _MAX_BYTES_PER_TOKEN
        return SpaceNeed(bytes=budget * token_bytes, reason=f"{budget:,} tokens", certain=certain, is_from_budget=True)
    if text_bytes is None or of_text is None:
        return None
    return SpaceNeed(bytes=of_text * token_bytes, reason=f"the tokens of {file_size(text_bytes)} of text", certain=False)


def sft_need(text_bytes: int | None, *, token_bytes: int) -> SpaceNeed | None:
    """Return the disk space that an SFT cache needs, or None if it is unknown.

    Tokens count twice, because for a time they are both in a temporary file (the spool) and in the splits.

    Args:
        text_bytes: The size of the source's text in bytes, or None if unknown.
        token_bytes: The size of a token in bytes.
    """
    if text_bytes is None:
        return None
    tokens = text_bytes // BYTES_PER_TOKEN
    return SpaceNeed(
        bytes=2 * tokens * token_bytes,
        reason=f"the tokens of {file_size(text_bytes)} of text, twice while they are dealt out,",
        certain=False,
    )


def corpus_need(text_bytes: int | None) -> SpaceNeed | None:
    """Return the disk space that a corpus needs, or None if it is unknown. Documents of a corpus are compressed.

    Signatures are not included, because their number is unknown.
    """
    if text_bytes is None:
        return None
    return SpaceNeed(
        bytes=int(text_bytes * _COMPRESSED), reason=f"the documents of {file_size(text_bytes)} of text, compressed,", certain=False
    )


def require_free_space(target: Path, need: SpaceNeed | None, *, log: Callable[[str], None] = lambda line: None) -> None:
    """Check that `target` fits on the disk next to the directory that it replaces. Log a warning if it may not fit.

    The bytes of an unfinished build count as free, because that build is resumed or removed.

    Raises:
        NielsCacheError: If `target` certainly does not fit.
    """
    if need is None:
        return
    free = free_bytes(target)
    available = free + bytes_below(partial_directory(target))
    if need.bytes <= available:
        return
    about = f"{need.reason} take about {file_size(need.bytes)}, and {file_size(available)} are free"
    if need.certain:
        fewer = ", or ask for fewer tokens" if need.is_from_budget else ""
        raise NielsCacheError(f"{target}: {about}; {_ADVICE[errno.ENOSPC]}{fewer}")
    log(f"warning: {target} may not fit on its disk: {about}")


@contextmanager
def explain_disk_full(need: SpaceNeed | None) -> Iterator[None]:
    """Add the needed disk space, if known, to the error if the block fails because the disk is full."""
    try:
        yield
    except NielsCacheError as error:
        cause = error.__cause__
        if need is None or not isinstance(cause, OSError) or cause.errno not in _FULL:
            raise
        raise NielsCacheError(f"{error}; {need.reason} take about {file_size(need.bytes)} in all") from cause


def disk_error_message(error: OSError, target: Path) -> str:
    """Return a message for a disk error while `target` was written: the path, the system's reason, and advice."""
    where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else target
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        reason = f"{reason} ({', '.join([*getattr(error, '__notes__', []), f'{file_size(free_bytes(where))} are free there'])})"
    advice = _ADVICE.get(error.errno or 0)
    return f"{where}: {reason}; {advice}" if advice else f"{where}: {reason}"


@contextmanager
def name_path(path: Path | str, *, writes: int | None = None) -> Iterator[None]:
    """Add `path` to an OSError of the block that does not name a file.

    A system call on an open file does not know the name of the file.

    Args:
        path: The file.
        writes: The number of bytes that the block writes, for the message.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        if writes is not None:
            error.add_note(f"writing {file_size(writes)} more failed")
        raise


def free_blocks(path: Path, size: int) -> None:
    """Give the first `size` bytes of a file back to the disk, if its file system can. They read as zeros from then on."""
    if (fallocate := getattr(ctypes.CDLL(None), "fallocate", None)) is not None:
        with open(path, "r+b") as file:
            fallocate(file.fileno(), _PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(size))


def free_bytes(target: Path) -> int:
    """Return the free bytes on the disk of a path. The path need not exist; a symbolic link stands for its target."""
    real = Path(os.path.realpath(target))
    existing = next(folder for folder in (real, *real.parents) if folder.exists())
    return shutil.disk_usage(existing).free


def bytes_below(folder: Path) -> int:
    """Return the total size of all files in the folder in bytes, or 0 if it does not exist."""
    return sum(find_files(folder).sizes.values())
