"""The shards that a process keeps mapped (rule 6 of `room`), and the thread that gives them back when another process needs their room.

The thread looks once per second. A process can yield no batch for a long time, for example while it waits for the evaluation of another
rank. If that rank needs room, the shards must go meanwhile.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.remote.needs import Whole

_LOOK_AGAIN_SECONDS = 1.0

Leave = Callable[[bool], Collection[str]]


class Kept(NamedTuple):
    """The arguments of the last `LocalCopy.need` that kept shards mapped, and the value of `Ledger.woken` at that time."""

    leave: Sequence[weakref.WeakMethod[Leave]]
    splits: Mapping[str, Whole]
    woken: int


class Keeper:
    """The kept shards of a process. kept: None without any.

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
