"""Parts in child processes: one for the step of a part, and several at a time for `build-all`.

`build-all` runs Dagster in its main thread, one run after the other. So it starts the children ahead of the runs. The run of a part then
finds the outcome of its child and records it.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Log, Outcome
from niels_cache_assets.artifacts.notify import notifying
from niels_cache_assets.artifacts.parts.free_parts import FreePartsFirst
from niels_cache_assets.artifacts.stored import in_store, read_finished
from niels_cache_assets.cluster.child import BuildInChild, IsStopping, OnProgress, build_in_child
from niels_cache_assets.defs.launch_events import LaunchListener
from niels_cache_assets.defs.part_slots import HostSlot
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import BusyError


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
        return build_in_child(
            part, partial(slot.take, is_stopping), waits=waits, on_progress=report, log=watch.log, is_stopping=is_stopping
        )


def build_in_children(
    parts: Sequence[BuildInChild],
    *,
    at_once: int,
    home: Path,
    listener: LaunchListener,
    started: dict[str, float],
    on_end: Callable[[BuildInChild, Outcome | NielsCacheError], object],
) -> None:
    """Build parts in children, `at_once` at a time, in the order of FreePartsFirst. If an exception ends this, all children are stopped.

    Args:
        parts: The parts.
        at_once: The number of children.
        home: The Dagster home, which holds the slots of the machines.
        listener: Receives what the children report, in this thread.
        started: Receives the time at which each part was started, by key.
        on_end: Called in this thread with the outcome or the error of each part.
    """
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    stopping = threading.Event()
    pending = FreePartsFirst(parts)
    left = {part.key: part for part in parts}

    def report(part: BuildInChild, receive: Callable[[str, Any], None], value: Any) -> None:
        if part.key not in started:
            started[part.key] = time.monotonic()
            listener.started(part.key, "parts")
        receive(part.key, value)

    def end(key: str, outcome: Outcome | NielsCacheError) -> None:
        on_end(left.pop(key), outcome)

    def fail_all(error: Exception) -> None:
        for key in sorted(left):
            end(key, _failure(key, error))

    def work() -> None:
        try:
            for part, waits in pending:
                if stopping.is_set():
                    break
                build(part, waits)
        except Exception as error:  # of the folder of leases, in which `pending` looks
            calls.put(partial(fail_all, error))

    def build(part: BuildInChild, waits: bool) -> None:
        outcome: Outcome | NielsCacheError
        try:
            outcome = build_part_in_child(
                part,
                home=home,
                on_progress=lambda progress: calls.put(partial(report, part, listener.progressed, progress)),
                log=lambda line: calls.put(partial(report, part, listener.logged, line)),
                is_stopping=stopping.is_set,
                waits=waits,
            )
        except KeyboardInterrupt:  # the caller has stopped
            return
        except BusyError:
            pending.defer(part)
            return
        except NielsCacheError as error:
            outcome = error
        except Exception as error:
            outcome = _failure(part.key, error)
        calls.put(partial(report, part, end, outcome))

    with ThreadPoolExecutor(at_once, thread_name_prefix="parts") as pool:
        try:
            for _ in range(at_once):
                pool.submit(work)
            while left:
                calls.get()()
        finally:
            stopping.set()
            pool.shutdown(wait=True, cancel_futures=True)


def _failure(key: str, error: Exception) -> NielsCacheError:
    return NielsCacheError(f"{key}: {type(error).__name__}: {error}")
