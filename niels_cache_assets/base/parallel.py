"""Variants of `map` over threads or worker processes, with results in order and a limited number of items in flight.

An item is in flight from the start of its work until its result is yielded. Encoding a text takes about forty times its size in memory.
Therefore long items in flight are also limited by their characters.
"""

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import TypeVar

from niels_cache_assets.base.processes import when_closed
from niels_cache_runtime.errors import NielsCacheError

LONG_CHARACTERS = 2_000_000  # an item with more characters is long; a usual chunk has half as many
MAX_LONG_CHARACTERS = 16_000_000
_IN_FLIGHT_PER_WORKER = 2  # one running, one waiting, so that no worker waits for the caller

Item = TypeVar("Item")
Result = TypeVar("Result")


def results_in_order(
    submit: Callable[[Item], Future[Result]], items: Iterable[Item], *, most: int, size_of: Callable[[Item], int]
) -> Generator[Result]:
    """Yield the results of all items, in order, with up to `most` items in flight.

    All long items in flight together have at most 16 million characters. An item that is longer than this limit is in flight alone among
    the long items, and the next item is not read until it is done. If `items` fails, its error is raised after the results of the items
    before it.

    Args:
        submit: Starts the work on an item.
        items: The items.
        most: The maximum number of items in flight.
        size_of: Returns the number of characters of an item.
    """
    waiting: deque[tuple[Future[Result], int]] = deque()
    characters = 0  # of the long items in flight

    def next_result() -> Result:
        nonlocal characters
        future, size = waiting.popleft()
        characters -= size
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
        while size and characters and characters + size > MAX_LONG_CHARACTERS:
            yield next_result()
        waiting.append((submit(item), size))
        characters += size
        del item  # so that it is not kept in memory while the next one is read
        while len(waiting) > most or characters > MAX_LONG_CHARACTERS:
            yield next_result()
    while waiting:
        yield next_result()
    if error is not None:
        raise error


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int, size_of: Callable[[Item], int]
) -> Generator[Result]:
    """Yield `function` of every item, in order. The calls run on a thread pool, with a limited number of items in flight.

    If the caller stops early, queued items are cancelled.

    Args:
        function: Called with each item, on several threads.
        items: The items.
        threads: The number of threads.
        size_of: Returns the number of characters of an item (see `results_in_order`).
    """
    executor = ThreadPoolExecutor(threads, thread_name_prefix="encode")
    try:
        yield from results_in_order(
            lambda item: executor.submit(function, item), items, most=_IN_FLIGHT_PER_WORKER * threads, size_of=size_of
        )
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def map_in_processes(
    function: Callable[[Item], Result], items: Iterable[Item], *, processes: int, doing: str, size_of: Callable[[Item], int] = lambda _: 0
) -> Generator[Result]:
    """Yield `function` of every item, in order. The calls run in worker processes.

    If the caller stops early (an error, an interrupt, a closed generator), no worker remains: each worker ends when the caller's end of a
    pipe closes. The operating system closes that end even if the caller is killed.

    Each worker has a connection of its own, which ends with the worker. A pool of concurrent.futures has one pipe for all results. If a
    worker of such a pool ends while it sends a result, the caller waits forever for the rest of the result.

    Processes are spawned, because a fork of a process with threads (Dagster's, Arrow's) may deadlock. So arguments must be picklable, and
    each process imports its modules itself.

    Args:
        function: Called with each item, in a worker. Its exceptions are raised here.
        items: The items.
        processes: The number of workers. If it is 1, no worker is started, and the caller does the work.
        doing: A name for the work, for the message about a killed worker.
        size_of: Returns the number of characters of an item (see `results_in_order`). The default counts every item as short.

    Raises:
        NielsCacheError: If a worker dies.
    """
    if processes == 1:
        for item in items:
            yield function(item)
        return
    context = multiprocessing.get_context("spawn")
    watched, own_end = context.Pipe(duplex=False)
    free: SimpleQueue[Connection] = SimpleQueue()  # the connections to workers without work
    threads = ThreadPoolExecutor(processes, thread_name_prefix="worker")

    def run_in_worker(item: Item) -> Result:
        worker = free.get()
        try:
            worker.send(item)
            error, result = worker.recv()
        except (EOFError, OSError) as gone:
            raise NielsCacheError(
                f"{doing}: a worker process was killed (out of memory?), or could not start (a script needs "
                "`if __name__ == '__main__':`); run it again with fewer processes, or with 1 to start no worker"
            ) from gone
        finally:
            free.put(worker)  # a worker that has ended too: its next item raises the same error
        if error is not None:
            raise error
        return result

    workers = list[BaseProcess]()

    def submit(item: Item) -> Future[Result]:
        if len(workers) < processes:  # a few items need only a few workers
            here, there = context.Pipe()
            worker = context.Process(target=_serve_items, args=(function, there, watched))
            # The worker inherits the mask, so that Ctrl-C does not end it while it begins.
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                worker.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            workers.append(worker)
            there.close()  # so that the connection ends with the worker
            free.put(here)
        return threads.submit(run_in_worker, item)

    try:
        yield from results_in_order(submit, items, most=_IN_FLIGHT_PER_WORKER * processes, size_of=size_of)
        for _ in workers:
            free.get().close()
        for worker in workers:
            worker.join()
    finally:
        own_end.close()
        watched.close()
        threads.shutdown(wait=False, cancel_futures=True)


def _serve_items(function: Callable[[Item], Result], caller: Connection, watched: Connection) -> None:
    """Answer each item of the caller with (None, result) or (error, None), until the caller closes the connection.

    Interrupts are ignored. The process ends at once when `watched` closes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    when_closed(watched, lambda: os._exit(1))
    with suppress(EOFError):
        while True:
            item = caller.recv()
            try:
                caller.send((None, function(item)))
            except Exception as error:
                error.add_note(traceback.format_exc())
                caller.send((error, None))
