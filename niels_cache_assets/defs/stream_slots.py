"""Slots for streams in one Dagster home. A stream is a build that reads a source, and the pool `source_stream` limits their number.

A slot is a lock on a file in the home. The kernel frees the lock when the process that holds it ends. An op takes a slot only after it
knows that it must build, so cache hits and switched-off data sets do not wait. Dagster itself would assign a slot before the op can check
this, and does not free the slot of a killed process. So no op here is in the pool. Only the limit of the pool is read, each time that a
slot is needed.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import dagster as dg

from niels_cache_assets.defs.keys import STREAM_POOL
from niels_cache_assets.disk.slots import take_slot
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import UNKNOWN

_FOLDER = ".streams"
_POLL_SECONDS = 1.0


class StreamSlot(ExitStack):
    """A slot for one op, which may read its source only while it holds a slot. The pool `source_stream` limits the number of slots.

    The op holds its slot from the first `take` to the end of the `with` block.

    Args:
        context: Context of the step.
        name: Name of the build.
        pool: Name of the pool.
        log: Called with the builds that the op waits for.
    """

    def __init__(self, context: dg.AssetExecutionContext, name: str, *, pool: str, log: Callable[[str], None]) -> None:
        super().__init__()
        self._context, self._name, self._pool, self._log = context, name, pool, log
        self._held = False

    def take(self) -> bool:
        """Wait for a slot, unless this op already holds one.

        Returns:
            Whether the op had to wait, so that earlier decisions may be outdated.
        """
        if self._held or self._context.instance.is_ephemeral:  # only this process can see an instance in memory
            return False
        logged = ""
        while (waiting := self._try()) is not None:
            if waiting != logged:
                self._log(waiting)
                logged = waiting
            time.sleep(_POLL_SECONDS)
        self._held = True
        return bool(logged)

    def _try(self) -> str | None:
        """Take a slot if one is free, and return None. Otherwise, return the reason for waiting."""
        limit = stream_limit(self._context.instance, self._pool)
        if limit is None:
            return None
        folder = Path(self._context.instance.root_directory) / _FOLDER
        if self._pool != STREAM_POOL:
            folder /= self._pool
        doing = f"{self._name} (run {self._context.run.run_id[:8]})"
        try:
            found = take_slot(self, folder, map(str, range(limit)), doing=doing)
        except (NielsCacheError, OSError) as error:  # a file system without locks, or a read-only home with its database elsewhere
            self._log(f"WARNING: the number of streams in this Dagster home is not limited: {error}")
            return None
        if isinstance(found, str):
            return None
        holders = ["another data set" if holder == UNKNOWN else holder.command for holder in found]
        return (
            f"waiting for the build of {', '.join(holders)}" if holders else f"waiting: the pool {self._pool} has no slots (its limit is 0)"
        )


def stream_limit(instance: dg.DagsterInstance, name: str) -> int | None:
    """Return the maximum number of streams, or None if there is no limit.

    The pool's own limit takes precedence over the default of dagster.yaml.
    """
    storage = instance.event_log_storage
    if storage.supports_global_concurrency_limits:
        pool = storage.get_concurrency_info(name)
        if pool.limit is not None and not pool.using_default_limit:
            return pool.limit
    return instance.global_op_concurrency_default_limit
