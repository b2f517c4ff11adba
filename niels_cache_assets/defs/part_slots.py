"""Slots for the parts of data sets: how many parts are built at a time in one Dagster home, and on which machine.

Dagster itself limits the number of parts, by the limit of the pool `parts`; `PoolClaims` in private.py fixes its wait for a slot. The name
of a machine, for `{host}` in [cluster], is a lock on a file in the home, because Dagster does not say which slot of a pool a step has.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from niels_cache_assets.disk.slots import take_slot
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.format.reading import available_threads

if TYPE_CHECKING:
    import dagster as dg

_FOLDER = ".hosts"
_POLL_SECONDS = 1.0


def has_shared_steps(registry: Registry) -> bool:
    """Return whether several processes can share a step: the parts of a data set or of a corpus, or the ranges of the search."""
    return bool(registry.in_parts() or registry.corpora_in_parts() or registry.search_ranges)


def limit_parts(instance: "dg.DagsterInstance", registry: Registry, *, if_new: bool = False) -> None:
    """Set the limit of the pool `parts` to the number that [cluster] gives. Do nothing if nothing is in parts.

    A pool that [dagster] names may hold other work as well, so its limit is set only if it has none.

    Args:
        instance: The instance with the pool.
        registry: The configuration.
        if_new: Whether to keep a limit that is already set; by default no.
    """
    from sqlalchemy.exc import IntegrityError

    from niels_cache_assets.defs.keys import names_of

    storage, pool = instance.event_log_storage, names_of(registry).parts_pool
    if has_shared_steps(registry) and storage.supports_global_concurrency_limits:
        limit = registry.cluster.parts_at_once(available_threads())
        info = storage.get_concurrency_info(pool)
        is_set = info.limit is not None and not info.using_default_limit
        if not is_set or (info.limit != limit and not if_new and "parts" not in registry.dagster.pools):
            try:
                storage.set_concurrency_slots(pool, limit)
            except IntegrityError:  # another home with the same database has created the pool since Dagster looked for it
                storage.set_concurrency_slots(pool, limit)


class HostSlot(ExitStack):
    """A machine for one step, which holds it from `take` to the next `take`, or to the end of the `with` block."""

    def __init__(self, folder: Path, hosts: tuple[str, ...], *, doing: str, log: Callable[[str], None]) -> None:
        super().__init__()
        self._folder, self._doing, self._log = folder / _FOLDER, doing, log
        self._slots = {f"{number}-{host}".replace("/", "-"): host for number, host in enumerate(hosts)}
        self._last: str | None = None

    def take(self, is_stopping: Callable[[], bool] = lambda: False) -> str | None:
        """Give back the machine that is held, and wait for a free one, if possible another one. Return None if [cluster] names none.

        Raises:
            KeyboardInterrupt: If `is_stopping` is true during the wait.
        """
        if not self._slots:
            return None
        self.close()
        order = sorted(self._slots, key=lambda name: name == self._last)  # a machine that has just failed comes last
        has_logged = False
        while not isinstance(found := take_slot(self, self._folder, order, doing=self._doing), str):
            if not has_logged:
                self._log(f"waiting for a machine: {', '.join(sorted({writer.command or 'another process' for writer in found}))}")
                has_logged = True
            if is_stopping():
                raise KeyboardInterrupt
            time.sleep(_POLL_SECONDS)
        self._last = found
        return self._slots[found]
