"""`map` over worker processes: in order, bounded in flight, gone at once when the caller leaves.

Processes are started afresh (spawn): a fork of a process with threads (Dagster's, Arrow's) may deadlock. So what is sent must pickle, and
starting costs the imports of one process each. One process means none: the work is done where it is asked for.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import TypeVar

from niels_cache_assets.streaming.in_flight import no_size, results_in_order
from niels_cache_runtime.errors import NielsCacheError

Item = TypeVar("Item")
Result = TypeVar("Result")

_IN_FLIGHT_PER_PROCESS = 2  # one that is worked on, one that waits, so that no worker ever waits for the caller


def map_in_processes(
    function: Callable[[Item], Result], items: Iterable[Item], *, processes: int, doing: str, size_of: Callable[[Item], int] = no_size
) -> Generator[Result]:
    """`function` of every item, in order. `doing` is what the message says that a killed worker was at; `size_of`: characters of an item
    (`results_in_order`).

    What `function` raises is raised here; a worker that dies is a NielsCacheError. Whoever leaves early (an error, an interrupt, a closed
    generator) leaves no worker behind: they end when their end of a pipe closes, which the system does even for a killed caller.
    """
    if processes == 1:
        for item in items:
            yield function(item)
        return
    context = multiprocessing.get_context("spawn")
    watched, held = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with, initargs=(watched,))
    try:
        most = _IN_FLIGHT_PER_PROCESS * processes
        yield from results_in_order(lambda item: executor.submit(function, item), items, most=most, size_of=size_of)
        executor.shutdown()
    except BrokenProcessPool as error:
        raise NielsCacheError(
            f"{doing}: a worker process was killed (out of memory?), or could not start (a script needs `if __name__ == '__main__':`); "
            "run it again with fewer processes, or 1 to work without any"
        ) from error
    finally:
        held.close()
        watched.close()
        executor.shutdown(wait=False, cancel_futures=True)


def _end_with(watched: Connection) -> None:
    """In a worker: leave interrupts to the caller, and end when the caller closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        try:
            watched.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=wait, name="end with the caller", daemon=True).start()
