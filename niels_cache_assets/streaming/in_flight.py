"""`map` over threads or worker processes. Results come in order; the items in flight are limited in number and, if long, in characters.

Encoding a text takes about forty times its size in memory. Therefore fewer items are in flight if their texts are long.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import TypeVar

from niels_cache_assets.processes import when_closed
from niels_cache_runtime.errors import NielsCacheError

LONG_CHARACTERS = 2_000_000  # twice a usual chunk, so one of its texts is long
MOST_LONG_CHARACTERS = 16_000_000
_IN_FLIGHT_PER_WORKER = 2  # one running, one waiting, so that no worker waits for the caller

Item = TypeVar("Item")
Result = TypeVar("Result")


def no_size(item: object) -> int:
    """Return 0: the size of items that are all short."""
    return 0


def results_in_order(
    submit: Callable[[Item], Future[Result]], items: Iterable[Item], *, most: int, size_of: Callable[[Item], int]
) -> Generator[Result]:
    """Yield the results of all items, in order, with up to `most` items in flight.

    `size_of`: returns the characters of an item. Long items in flight have at most 16 million characters together, or there is only one.
    While one has more than that, the next item is not read. If `items` fails, the error is raised after the results of the items before it.
    """
    waiting: deque[tuple[Future[Result], int]] = deque()
    held = 0  # characters of the long items in flight

    def next_result() -> Result:
        nonlocal held
        future, size = waiting.popleft()
        held -= size
        return future.result()

    error: Exception | None = None

    def read() -> Iterator[Item]:
        nonlocal error
        try:
            yield from items
        except Exception as failure:
            error = failure

    for item in read():
        size = size_of(item)
        size = size if size > LONG_CHARACTERS else 0
        while size and held and held + size > MOST_LONG_CHARACTERS:
            yield next_result()
        waiting.append((submit(item), size))
        held += size
        del item  # so that it is not kept in memory while the next one is read
        while len(waiting) > most or held > MOST_LONG_CHARACTERS:
            yield next_result()
    while waiting:
        yield next_result()
    if error is not None:
        raise error


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int, size_of: Callable[[Item], int] = no_size
) -> Generator[Result]:
    """Map on a thread pool, in order, with a limited number of items in flight. If the caller stops early, queued items are cancelled.

    `size_of`: returns the characters of an item (`results_in_order`).
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
    """Yield `function` of every item, in order. `doing`: the work that the message about a killed worker names. `size_of`: returns the
    characters of an item (`results_in_order`).

    An exception of `function` is raised here. A worker that dies raises NielsCacheError. If the caller stops early (an error, an interrupt,
    a closed generator), no worker remains: workers end when their end of a pipe closes. The system closes it even for a killed caller.

    Processes are spawned, because a fork of a process with threads (Dagster's, Arrow's) may deadlock. So arguments must be picklable, and
    each process imports its modules. With one process, no worker is started, and the work is done in the caller.
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
            "run it again with fewer processes, or with 1 to start no worker"
        ) from error
    finally:
        held.close()
        watched.close()
        executor.shutdown(wait=False, cancel_futures=True)


def _end_with(watched: Connection) -> None:
    """Ignore interrupts in a worker, and end it when the caller closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    when_closed(watched, lambda: os._exit(1))
