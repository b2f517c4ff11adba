"""Variants of `map` over threads or worker processes, with results in order and a limited number of items in flight.

An item is in flight from the start of its work until its result is yielded. Encoding a text takes about forty times its size in memory.
Therefore long items in flight are also limited by their characters.
"""

import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import struct
import sys
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import accumulate
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from niels_cache_assets.base.processes import when_closed
from niels_cache_runtime.errors import NielsCacheError

LONG_CHARACTERS = 2_000_000  # an item with more characters is long; a usual chunk has half as many
MAX_LONG_CHARACTERS = 16_000_000
_POLL_SECONDS = 0.1  # between two looks at the call of a watched worker
_END_SECONDS = 5.0  # for watched workers to end by themselves, because the code of a user may have started threads that do not
_SPAWN = multiprocessing.get_context("spawn")
_MARK = struct.Struct("dqqq")
_HASH_SEED = "PYTHONHASHSEED"
_SHARED_BYTES = 4_000_000  # for items, and for results: more than usual chunks have
_Block = ctypes.c_char * _SHARED_BYTES
_ALIGNMENT = 64  # of buffers, as Arrow recommends
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


class WatchedWork(Protocol):
    """Work on items whose worker calls code of a user, which may hang or end the process. The caller knows the current call of each worker.

    Before each call, the work marks its numbers `place` and `step`, and the most seconds that it may take (0: no limit).
    """

    def __call__(self, item: Any, mark: "CallMark") -> Any: ...

    def skip_call(self, item: Any, place: int, step: int, *, has_ended: bool) -> Any:
        """Return the item to work on again without a call that took too long.

        Raises:
            NielsCacheError: If this is not possible, or if the worker has ended by itself (`has_ended`). The message describes the call.
        """
        ...


class CallMark:
    """The mark of the current call of a worker, in memory that it shares with the caller. A mark takes about 0.2 microseconds."""

    def __init__(self, shared: Any) -> None:
        self._memory = memoryview(shared).cast("B")
        self._calls = 0

    def __call__(self, place: int, step: int, seconds: float) -> None:
        self._calls += 1
        _MARK.pack_into(self._memory, 0, seconds, self._calls, place, step)

    def read(self) -> tuple[float, int, int, int]:
        """Return the seconds, the number of marks so far, and the numbers of the call."""
        return _MARK.unpack_from(self._memory)


class _Channel:
    """One end of the connection between the caller and a worker, on which objects cross.

    What pickle can leave out of an object, its arrays and Arrow columns, crosses in memory that both processes have, if it fits, and all
    else in the pipe. The memory has no name, so nothing is left of it when both have ended, in whatever way. The columns of an item are
    views of it, and must be gone before the next item.
    """

    def __init__(self, connection: Connection, shared: Any, *, is_caller: bool) -> None:
        self._connection = connection
        self._out, self._in = (_Block.from_buffer(shared, start) for start in (0, _SHARED_BYTES)[:: 1 if is_caller else -1])
        self._keep: Callable[[memoryview], Any] = bytes if is_caller else memoryview  # results stay longer than the next item
        self._received: Callable[[], Any] = lambda: None
        self.may_share = True

    def send(self, item: Any) -> None:
        buffers = list[pickle.PickleBuffer]()
        content, memory = pickle.dumps(item, 5, buffer_callback=buffers.append), memoryview(self._out).cast("B")
        parts = [each.raw() for each in buffers]
        ends = [0, *accumulate(-(-len(part) // _ALIGNMENT) * _ALIGNMENT for part in parts)]
        if not self.may_share or ends[-1] > _SHARED_BYTES:
            content, parts = pickle.dumps(item, 5), []
        places = [(start, start + len(part)) for start, part in zip(ends, parts, strict=False)]
        for (start, stop), part in zip(places, parts, strict=True):
            memory[start:stop] = part
        self._connection.send(places)
        self._connection.send_bytes(content)

    def receive(self) -> Any:
        block = _Block.from_buffer(self._in)  # which lives as long as a view
        self._received, memory = weakref.ref(block), memoryview(block).cast("B").toreadonly()
        parts = [self._keep(memory[start:stop]) for start, stop in self._connection.recv()]
        return pickle.loads(self._connection.recv_bytes(), buffers=parts)

    def is_in_use(self) -> bool:
        """Return whether there is a view of the object that was received last."""
        if self._received() is not None:
            gc.collect()
        return self._received() is not None


class _Worker:
    """A worker process, and the caller's end of its connection."""

    def __init__(self, function: Callable[..., Any], watched: Connection, *, is_watched: bool) -> None:
        self._function, self._watched = function, watched
        self._shared = _SPAWN.RawArray("b", 2 * _SHARED_BYTES), _SPAWN.RawArray("b", _MARK.size) if is_watched else None
        self.start()

    def start(self) -> None:
        self.connection, there = _SPAWN.Pipe()
        memory, mark = self._shared
        self.channel = _Channel(self.connection, memory, is_caller=True)
        self.mark = None if mark is None else CallMark(mark)
        if self.mark is not None:
            self.mark(0, 0, 0)  # what a worker before this one has left
        self.process = _SPAWN.Process(target=_serve_items, args=(self._function, there, self._watched, *self._shared))
        # The worker inherits the mask, so that Ctrl-C does not end it while it begins.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        # The code of a user must not depend on the hashes of strings, and shows if it does only if they differ.
        seed = None if self.mark is None else os.environ.pop(_HASH_SEED, None)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            if seed is not None:
                os.environ[_HASH_SEED] = seed
        there.close()  # so that the connection ends with the worker

    def restart(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.start()

    def overdue_call(self) -> tuple[int, int] | None:
        """Wait for an answer. If a call takes too long instead, return its numbers, which the worker may change at any time."""
        seen, since = None, 0.0
        while self.mark is not None and not self.connection.poll(_POLL_SECONDS):
            mark, now = self.mark.read(), time.monotonic()
            if mark != seen:
                seen, since = mark, now
            elif mark[0] and now - since > mark[0]:
                return mark[2:]
        return None


def map_in_processes(
    function: Callable[[Item], Result] | WatchedWork,
    items: Iterable[Item],
    *,
    processes: int,
    doing: str,
    size_of: Callable[[Item], int] = lambda _: 0,
    is_watched: bool = False,
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
        processes: The number of workers. If it is 1 and the work is not watched, no worker is started, and the caller does the work.
        doing: A name for the work, for the message about a killed worker.
        size_of: Returns the number of characters of an item (see `results_in_order`). The default counts every item as short.
        is_watched: Whether `function` is WatchedWork. If a call takes too long, its worker is killed, and another one starts.

    Raises:
        NielsCacheError: If a worker dies.
    """
    if processes == 1 and not is_watched:
        for item in items:
            yield function(item)  # type: ignore[call-arg]
        return
    watched, own_end = _SPAWN.Pipe(duplex=False)
    free: SimpleQueue[_Worker] = SimpleQueue()  # the workers without work
    threads = ThreadPoolExecutor(processes, thread_name_prefix="worker")

    def run_in_worker(item: Item) -> Result:
        worker = free.get()
        try:
            worker.channel.send(item)
            while (call := worker.overdue_call()) is not None:
                worker.restart()
                item = function.skip_call(item, *call, has_ended=False)  # type: ignore[union-attr]
                worker.channel.send(item)
            error, result, is_in_use = worker.channel.receive()
            worker.channel.may_share &= not is_in_use  # then for good
        except (EOFError, OSError) as gone:
            if worker.mark is not None and (mark := worker.mark.read())[0]:
                function.skip_call(item, *mark[2:], has_ended=True)  # type: ignore[union-attr]
            raise NielsCacheError(
                f"{doing}: a worker process was killed (out of memory?), or could not start (a script needs "
                "`if __name__ == '__main__':`); run it again with fewer processes, or with 1 to start no worker"
            ) from gone
        finally:
            free.put(worker)  # a worker that has ended too: its next item raises the same error
        if error is not None:
            raise error
        return result

    workers = list[_Worker]()

    def submit(item: Item) -> Future[Result]:
        if len(workers) < processes:  # a few items need only a few workers
            workers.append(_Worker(function, watched, is_watched=is_watched))
            free.put(workers[-1])
        return threads.submit(run_in_worker, item)

    try:
        yield from results_in_order(submit, items, most=_IN_FLIGHT_PER_WORKER * processes, size_of=size_of)
        for _ in workers:
            free.get().connection.close()
        end = time.monotonic() + _END_SECONDS
        for worker in workers:
            worker.process.join(max(0, end - time.monotonic()) if is_watched else None)
    finally:
        own_end.close()
        watched.close()
        for worker in workers if is_watched else ():
            worker.process.kill()  # the code of a user may not let other threads run
        threads.shutdown(wait=False, cancel_futures=True)


def _serve_items(function: Callable[..., Result], caller: Connection, watched: Connection, shared: Any, mark: Any) -> None:
    """Answer each item of the caller with a result or an error, until the caller closes the connection.

    Interrupts are ignored, and what the work prints goes to stderr. The process ends at once when `watched` closes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    when_closed(watched, lambda: os._exit(1))
    work = function if mark is None else partial(function, mark=CallMark(mark))
    channel = _Channel(caller, shared, is_caller=False)
    with suppress(EOFError):
        while True:
            item = channel.receive()
            try:
                result = work(item)
                del item
                channel.send((None, result, channel.is_in_use()))
            except Exception as error:
                error.add_note(traceback.format_exc())
                channel.send((error, None, True))
