"""Parts in child processes: one for the step of a part, and several at a time for `build-all`.

`build-all` runs Dagster in its main thread, one run after the other. So it starts the children ahead of the runs. The run of a part then
finds the outcome of its child and records it.
"""

import queue
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from niels_cache_assets.artifacts.base import Log, Outcome
from niels_cache_assets.artifacts.notify import notifying
from niels_cache_assets.artifacts.parts.free_parts import FreePartsFirst
from niels_cache_assets.artifacts.stored import in_store, read_finished
from niels_cache_assets.cluster.child import BuildInChild, IsStopping, OnProgress, PartCommand, build_in_child
from niels_cache_assets.defs.part_slots import HostSlot
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import BusyError


class ChildEvent(NamedTuple):
    """An event of one of several builds: its progress, a line of its log, or its end.

    Attributes:
        key: Key of the part.
        progress: Its progress, or None.
        line: A line of its log, or None.
        end: Its outcome or its error, or None if it has not ended.
    """

    key: str
    progress: Any = None
    line: str | None = None
    end: Outcome | NielsCacheError | None = None


def build_part_in_child(
    part: BuildInChild,
    *,
    home: Path,
    on_progress: OnProgress,
    log: Log,
    is_stopping: IsStopping = lambda: False,
    waits: bool = True,
) -> Outcome:
    """Build a part in a child process, unless it exists already.

    Args:
        part: The part.
        home: The Dagster home, which holds the slots of the machines.
        on_progress: Called with the progress.
        log: Called with the lines of the log.
        is_stopping: Returns whether to stop; by default never.
        waits: Whether to wait for another build of the part; by default yes. Otherwise BusyError is raised.

    Raises:
        NielsCacheError: If the build fails, after a message by [notify].
        KeyboardInterrupt: If `is_stopping` returns True.
    """
    try:
        meta = part.current() if in_store(part) is part else read_finished(part)
    except NielsCacheError:  # the part does not exist yet
        pass
    else:
        return Outcome(key=part.key, state="cache_hit", meta=meta, directory=part.directory)
    with (
        notifying(part.registry.notify, part.key, log) as watch,
        HostSlot(home, part.registry.cluster.hosts, doing=part.key, log=watch.log) as slot,
        watch.notify_on_stall(on_progress) as report,
    ):
        assert report is not None

        def command() -> PartCommand:
            host = slot.take(is_stopping)
            return PartCommand(part=part, host=host, waits=waits)

        return build_in_child(part, command, on_progress=report, log=watch.log, is_stopping=is_stopping)


def build_in_children(parts: Sequence[BuildInChild], *, at_once: int, home: Path) -> Generator[ChildEvent]:
    """Build parts in children, `at_once` at a time, and yield what they report, in this thread.

    The last event of each part is its end. The order is that of FreePartsFirst. If the caller stops reading, all children are stopped.
    """
    events: queue.SimpleQueue[ChildEvent | Exception] = queue.SimpleQueue()
    stopping = threading.Event()
    pending = FreePartsFirst(parts)

    def work() -> None:
        try:
            while not stopping.is_set() and (next_part := pending.take()) is not None:
                build(*next_part)
        except Exception as error:  # of the folder of leases, in which `take` looks
            events.put(error)

    def build(part: BuildInChild, waits: bool) -> None:
        end: Outcome | NielsCacheError
        try:
            end = build_part_in_child(
                part,
                home=home,
                on_progress=lambda progress: events.put(ChildEvent(part.key, progress=progress)),
                log=lambda line: events.put(ChildEvent(part.key, line=line)),
                is_stopping=stopping.is_set,
                waits=waits,
            )
        except KeyboardInterrupt:  # the caller has stopped reading
            return
        except BusyError:
            pending.defer(part)
            return
        except NielsCacheError as error:
            end = error
        except Exception as error:
            end = _failure(part.key, error)
        events.put(ChildEvent(part.key, end=end))

    with ThreadPoolExecutor(at_once, thread_name_prefix="parts") as pool:
        try:
            for _ in range(at_once):
                pool.submit(work)
            left = {part.key for part in parts}
            while left:
                event = events.get()
                if isinstance(event, Exception):  # no part can be chosen any more
                    yield from (ChildEvent(key, end=_failure(key, event)) for key in sorted(left))
                    return
                if event.end is not None:
                    left.remove(event.key)
                yield event
        finally:
            stopping.set()
            pool.shutdown(wait=True, cancel_futures=True)


def _failure(key: str, error: Exception) -> NielsCacheError:
    return NielsCacheError(f"{key}: {type(error).__name__}: {error}")
