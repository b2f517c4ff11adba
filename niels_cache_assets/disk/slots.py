"""Slots that processes of one machine share.

A slot is a lock on a file, so the kernel releases it when the process that holds it ends.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from niels_cache_runtime.format.commit import BusyError, LockOwner, hold_lock


def take_slot(stack: ExitStack, folder: Path, names: Iterable[str], *, doing: str) -> str | list[LockOwner]:
    """Take the first free slot with one of these names, and hold it until `stack` closes.

    Args:
        stack: The stack that releases the slot.
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
            stack.enter_context(hold_lock(folder / name, doing=doing, retry_seconds=0.0))
        except BusyError as busy:
            holders.append(busy.writer)
        else:
            return name
    return holders
