"""Places that processes of one machine share. A place is a lock on a file, so the kernel frees it when the process that holds it ends."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from niels_cache_runtime.format.commit import Busy, Writer, writer_lock


def take_place(held: ExitStack, folder: Path, names: Iterable[str], *, doing: str) -> str | list[Writer]:
    """Take the first free place of these names, and hold it until `held` closes. Return its name.

    If all are taken, return their holders. doing: what the holders of other processes are shown. Raises NielsCacheError and OSError if the
    folder has no locks or cannot be written.
    """
    folder.mkdir(exist_ok=True)
    holders = []
    for name in names:
        try:
            held.enter_context(writer_lock(folder / name, doing=doing, patience=0.0))
        except Busy as busy:
            holders.append(busy.writer)
        else:
            return name
    return holders
