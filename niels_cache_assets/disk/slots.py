"""Slots that processes of one machine share.

A slot is a lock on a file, so the kernel releases it when the process that holds it ends.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from niels_cache_runtime.format.commit import Busy, Writer, writer_lock


def take_place(held: ExitStack, folder: Path, names: Iterable[str], *, doing: str) -> str | list[Writer]:
    """Take the first free slot with one of these names, and hold it until `held` closes.

    Args:
        held: The stack that releases the slot.
        folder: The folder of the lock files. It is created if needed.
        names: The names of the slots.
        doing: What this process is doing, as other processes report it.

    Returns:
        The name of the slot, or the holders of all slots if none is free.

    Raises:
        NielsCacheError: If the file system has no locks.
        OSError: If the folder cannot be written.
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
