"""`map` over threads or worker processes: in order, handed out ahead of the results, bounded in number and, for long items, in characters.

To encode a text takes some forty times its size, so of items with long texts fewer are in flight.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import TypeVar

from niels_cache_assets.processes import when_closed
from niels_cache_runtime.errors import NielsCacheError

LONG_CHARACTERS = 2_000_000  # twice a usual chunk: one text in it is long by itself
MOST_LONG_CHARACTERS = 16_000_000
_IN_FLIGHT_PER_WORKER = 2  # one that is worked on, one that waits, so that no worker ever waits for the caller

Item = TypeVar("Item")
Result = TypeVar("Result")


def no_size(item: object) -> int:
    """The size of items that are all short."""
    return 0


def results_in_order(
    submit: Callable[[Item], Future[Result]], items: Iterable[Item], *, most: int, size_of: Callable[[Item], int]
) -> Generator[Result]:
    """The results of all items, in their order, with up to `most` of them in flight.

    `size_of`: characters of an item. Of items that are long, no more are in flight than have 16 million characters together, or one; as
    long as one has more than that, not even the next item is read.
    """
    waiting: deque[tuple[Future[Result], int]] = deque()
    held = 0  # characters of the long items in flight

    def next_result() -> Result:
        nonlocal held
        future, size = waiting.popleft()
        held -= size
        return future.result()

    for item in items:
        size = size_of(item)
        size = size if size > LONG_CHARACTERS else 0
        while size and held and held + size > MOST_LONG_CHARACTERS:
            yield next_result()
        waiting.append((submit(item), size))
        held += size
        del item  # not held here while it is worked on, and the next is read
        while len(waiting) > most or held > MOST_LONG_CHARACTERS:
            yield next_result()
    while waiting:
        yield next_result()


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int, size_of: Callable[[Item], int] = no_size
) -> Generator[Result]:
    """`map` on a thread pool, bounded in flight, in order. Leaving early (an exception, an interrupt) cancels what is queued.

    `size_of`: characters of an item (`results_in_order`).
    """
    executor = ThreadPoolExecutor(threads, thread_name_prefix="encode")
    try:
        yield from results_in_order(
            lambda item: executor.submit(function, item), items, most=_IN_FLIGHT_PER_WORKER * threads, size_of=size_of
        )
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def map_in_processes(
    function: Callable[[Item], Result], items: Iterable[Item], *, processes: int, doing: str, size_of: Callable[[Item], int] = no_size
) -> Generator[Result]:
    """`function` of every item, in order. `doing` is what the message says that a killed worker was at; `size_of`: characters of an item
    (`results_in_order`).

    What `function` raises is raised here; a worker that dies is a NielsCacheError. Whoever leaves early (an error, an interrupt, a closed
    generator) leaves no worker behind: they end when their end of a pipe closes, which the system does even for a killed caller.

    Processes are started afresh (spawn): a fork of a process with threads (Dagster's, Arrow's) may deadlock. So what is sent must pickle,
    and starting costs the imports of one process each. One process means none: the work is done where it is asked for.
    """
    if processes == 1:
        for item in items:
            yield function(item)
        return
    context = multiprocessing.get_context("spawn")
    watched, held = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with, initargs=(watched,))
    try:
        most = _IN_FLIGHT_PER_WORKER * processes
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
    when_closed(watched, lambda: os._exit(1))
