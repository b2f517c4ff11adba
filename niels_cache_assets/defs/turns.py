"""Streams of one Dagster home take turns: at most so many builds read a source at a time as the pool `source_stream` has places.

A place is a lock on a file in the home, which the kernel frees when its process ends. It is asked for inside the op, once the op knows that
it must build: cache hits and switched-off data sets do not wait. Dagster itself gives a pool's place before an op can look, and does not
take it back from a killed process, so no op here is in that pool; only its limit is read, each time that a place is asked for.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import dagster as dg

from niels_cache_assets.defs.keys import STREAM_POOL
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import UNKNOWN, Busy, writer_lock

_FOLDER = ".streams"
_POLL_SECONDS = 1.0
_NO_PLACE = f"waiting: the pool {STREAM_POOL} has no place (its limit is 0)"


class StreamPlace:
    """The place of one op, from the first `take` to the end of the block. `log` is told for whose build it waits."""

    def __init__(self, context: dg.AssetExecutionContext, name: str, *, log: Callable[[str], None]) -> None:
        self._context, self._name, self._log = context, name, log
        self._held, self._stack = False, ExitStack()

    def __enter__(self) -> "StreamPlace":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._held = False
        self._stack.close()

    def take(self) -> bool:
        """Wait for a place, unless it is held already. Return whether it had to wait: what was decided before may not hold any more."""
        if self._held or self._context.instance.is_ephemeral:  # what is only in memory is this process's
            return False
        told = ""
        while (waiting := self._try()) is not None:
            if waiting != told:
                self._log(waiting)
                told = waiting
            time.sleep(_POLL_SECONDS)
        self._held = True
        return bool(told)

    def _try(self) -> str | None:
        """None if there was a place, else for what this waits."""
        limit = stream_limit(self._context.instance)
        if limit is None:
            return None
        folder = Path(self._context.instance.root_directory) / _FOLDER
        doing = f"{self._name} (run {self._context.run.run_id[:8]})"
        holders = []
        try:
            folder.mkdir(exist_ok=True)
            for number in range(limit):
                try:
                    self._stack.enter_context(writer_lock(folder / str(number), doing=doing, patience=0.0))
                except Busy as busy:
                    holders.append("another data set" if busy.writer == UNKNOWN else busy.writer.command)
                else:
                    return None
        except (NielsCacheError, OSError) as error:  # a home without locks, or read-only beside a database elsewhere
            self._log(f"WARNING: streams of this Dagster home do not take turns: {error}")
            return None
        return f"waiting for the build of {', '.join(holders)}" if holders else _NO_PLACE


def stream_limit(instance: dg.DagsterInstance) -> int | None:
    """How many streams there may be at a time: the pool's own limit if it has one, else the default of dagster.yaml; None: any number."""
    storage = instance.event_log_storage
    if storage.supports_global_concurrency_limits:
        pool = storage.get_concurrency_info(STREAM_POOL)
        if pool.limit is not None and not pool.using_default_limit:
            return pool.limit
    return instance.global_op_concurrency_default_limit
