"""A queue of writes and a thread that runs them in order, while the caller prepares the next batch.

The caller thus does not wait for hashing, writing and fsync, and most of this work does not hold the interpreter lock. The queue is limited
in bytes and in number. After an error no later write runs, and the caller's next call raises the error.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

_MAX_BYTES = 16 << 20
_MAX_WRITES = 8


class WriteBehind:
    """A queue of writes and the thread that runs them.

    It is a context manager. At the end of the block, even after an error, it waits until every queued write has run.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._waiting: deque[tuple[Future[None], int]] = deque()
        self._bytes = 0
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True)

    def submit(self, write: Callable[[], None], *, size: int) -> None:
        """Queue a write of `size` bytes. Wait while the queue is full. The error of an earlier write is raised here."""
        while self._waiting and (self._waiting[0][0].done() or len(self._waiting) >= _MAX_WRITES or self._bytes + size > _MAX_BYTES):
            self._next()
        self._waiting.append((self._executor.submit(self._run, write), size))
        self._bytes += size

    def finish(self) -> None:
        """Wait for all queued writes. The first error of a write is raised here."""
        while self._waiting:
            self._next()

    def _next(self) -> None:
        future, size = self._waiting.popleft()
        self._bytes -= size
        future.result()

    def _run(self, write: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            write()
        except BaseException:
            self._failed = True
            raise
