"""Whole files of a cache: listing a folder, and the sha256 of many files at once.

Hashing takes most of the time, and it releases the GIL. Each core reads one file at a time, and the largest files come first. A thread
reads its file in blocks into one buffer. A `BlockConsumer` is a function that gets the same blocks, so each file is read only once, and
memory stays constant. This module does not check the content of files. It needs neither torch nor numpy.
"""

import hashlib
import mmap
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.safe_open import open_regular

BLOCK_BYTES = 1 << 21  # large enough for few Python calls, and so small that a block is still in the CPU cache after hashing

BlockConsumer = Callable[[memoryview], None]
OnBytesRead = Callable[[int], None]


class FolderListing(NamedTuple):
    """The entries below a folder, by relative path, sorted.

    Attributes:
        sizes: The bytes of every regular file.
        irregular: One clause about each entry that is neither a regular file nor a folder, or cannot be read.
        skipped: Entries that were skipped because their name has a leading dot.
        empty: Folders without any entry.
    """

    sizes: dict[str, int]
    irregular: dict[str, str]
    skipped: list[str]
    empty: list[str]


def find_files(folder: Path) -> FolderListing:
    """Find the files below `folder`. Links are never followed.

    An entry with a leading dot belongs to a file manager or to a running build. Such an entry is skipped, with everything in it.
    """
    sizes: dict[str, int] = {}
    irregular: dict[str, str] = {}
    skipped: list[str] = []
    empty: list[str] = []

    def record_error(error: OSError) -> None:
        irregular[Path(error.filename).relative_to(folder).as_posix()] = f"cannot be listed: {error.strerror or error}"

    for below, folders, names in os.walk(folder, onerror=record_error):
        if not folders and not names:
            empty.append(Path(below).relative_to(folder).as_posix())
        for name in [*names, *folders]:
            path = Path(below, name)
            relative = path.relative_to(folder).as_posix()
            if name.startswith("."):
                skipped.append(relative)
                continue
            try:
                found = path.lstat()
            except OSError as error:
                irregular[relative] = f"cannot be read: {error.strerror or error}"
                continue
            if stat.S_ISREG(found.st_mode):
                sizes[relative] = found.st_size
            elif stat.S_ISLNK(found.st_mode):
                irregular[relative] = "is a link, which is not followed; put the file itself there"
            elif not stat.S_ISDIR(found.st_mode):
                irregular[relative] = "is not a regular file"
        folders[:] = [name for name in folders if not name.startswith(".")]
    return FolderListing(dict(sorted(sizes.items())), dict(sorted(irregular.items())), sorted(skipped), sorted(empty))


def hash_files(
    files: Mapping[Path, BlockConsumer | None],
    *,
    sizes: Mapping[Path, int] | None = None,
    threads: int | None = None,
    on_bytes: OnBytesRead | None = None,
) -> dict[Path, str | NielsCacheError]:
    """Return the sha256 of each file, or the error that prevents reading it. Several files are read at the same time.

    If a `BlockConsumer` raises an exception, all reading ends.

    Args:
        files: For each path, the `BlockConsumer` (a function that gets the blocks of this file), or None.
        sizes: The bytes of the files. If given, the largest files are read first, so that no single core finishes late.
        threads: How many files to read at the same time. None means one for each core that this process may use.
        on_bytes: Called with the size of each block, by one thread at a time.

    Raises:
        NielsCacheError: If `threads` is below 1.
    """
    if threads is not None and threads < 1:
        raise NielsCacheError(f"threads={threads}: must be at least 1")
    order = sorted(files, key=lambda path: -(sizes or {}).get(path, 0))
    stopped, lock, buffers = threading.Event(), threading.Lock(), threading.local()

    def read(path: Path) -> str | NielsCacheError:
        if not hasattr(buffers, "block"):
            buffers.block = memoryview(mmap.mmap(-1, BLOCK_BYTES))  # page-aligned memory: the system copies into it twice as fast
        block, consume, digest = buffers.block, files[path], hashlib.sha256()
        try:
            with os.fdopen(open_regular(path), "rb") as file:  # buffered, so that only the last block is short
                while not stopped.is_set() and (count := file.readinto(block)):
                    digest.update(block[:count])
                    if consume is not None:
                        consume(block[:count])
                    if on_bytes is not None:
                        with lock:
                            on_bytes(count)
        except NielsCacheError as error:  # the path is not a regular file any more
            return error
        except OSError as error:
            return NielsCacheError(f"{path}: cannot be read: {error.strerror or error}")
        return digest.hexdigest()

    with ThreadPoolExecutor(max_workers=threads or available_threads()) as pool:
        try:
            return dict(zip(order, pool.map(read, order), strict=True))
        finally:
            stopped.set()  # so that all threads stop after an interrupt
            pool.shutdown(wait=True, cancel_futures=True)


def available_threads() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def mapped(file: BinaryIO) -> Iterator[memoryview]:
    """Yield the bytes of an open file without a copy."""
    size = os.fstat(file.fileno()).st_size
    if not size:  # an empty file cannot be mapped
        yield memoryview(b"")
        return
    content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        yield content
    finally:
        with suppress(BufferError):  # after an error, its traceback may still hold a slice; then the map ends with the slice
            content.release()
