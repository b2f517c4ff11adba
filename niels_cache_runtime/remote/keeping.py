"""The shards that a process has mapped, and the thread that gives them back when another process needs their room (rule 4 of `room`).

The thread looks once per second. A process can yield no batch for a long time, for example while it waits for the evaluation of another
rank. If that rank needs room, the shards must go meanwhile.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple, Protocol

from niels_cache_runtime.errors import NielsCacheError

_LOOK_AGAIN_SECONDS = 1.0


class Owner(Protocol):
    """An object that maps files of the copy, such as a source of a loader.

    Its methods are called while `LocalCopy.reading` is held, or in a forked child.
    """

    def leave(self) -> Collection[str]:
        """Unmap what is not in use, and return it."""

    def leave_all(self) -> Collection[str]:
        """Unmap everything, and return it."""

    def forget(self) -> None:
        """Unmap everything, and read without a feed. The copy need not know."""


class Kept(NamedTuple):
    """The record of a process that has mapped shards.

    again: unmaps what is in the way. woken: the value of `Ledger.woken` at the last record or look.
    """

    again: weakref.WeakMethod[Callable[[], None]]
    woken: int


class Keeper:
    """The mapped shards of a process. kept: None without any.

    give_way: a method that gives them back if they are in the way, and returns `is_needed`. The thread calls it, and ends with the object
    of this method.
    """

    def __init__(self, give_way: Callable[[], bool]) -> None:
        self.kept: Kept | None = None
        self._give_way = weakref.WeakMethod(give_way)
        self._is_watched = False

    def keep(self, kept: Kept | None) -> None:
        """Set what is kept, and let the thread watch it. The caller holds the lock under which `give_way` calls `is_needed`."""
        self.kept = kept
        if kept is not None and not self._is_watched:
            threading.Thread(target=_watch, args=[self._give_way], name="local copy", daemon=True).start()
            self._is_watched = True

    def look(self, woken: int) -> None:
        """Let the process unmap what is in the way, unless no other process has needed anything since the last look.

        woken: `Ledger.woken` of now. After an error, the next look tries again.
        """
        kept = self.kept
        if kept is None or woken == kept.woken:
            return
        if (again := kept.again()) is not None:
            again()
        if self.kept is kept:  # nothing had to be recorded
            self.kept = kept._replace(woken=woken)

    def is_needed(self) -> bool:
        """Return whether the thread must go on. If not, it ends, and `keep` starts another one."""
        self._is_watched = self.kept is not None
        return self._is_watched


def _watch(give_way: weakref.WeakMethod[Callable[[], bool]]) -> None:
    is_needed = True
    while is_needed:
        time.sleep(_LOOK_AGAIN_SECONDS)
        call = give_way()
        if call is None:
            return
        with suppress(NielsCacheError, OSError):  # a full disk, or somebody has removed the folder: the next look may succeed
            is_needed = call()
        del call
