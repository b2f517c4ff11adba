"""Work on many files at once, with a shared progress. The first error ends the work on all files."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

OnBytesDone = Callable[[int, int], None]  # bytes done, bytes in total
Item = TypeVar("Item")
Result = TypeVar("Result")
THREADS = 4  # more threads gain nothing on one machine, and each may hold a shard


class TransferAborted(Exception):
    """The failure of another thread, because of which this thread must end, too."""


class Tally:
    """The bytes that are done, over all threads. `add` raises TransferAborted if the work of another thread has failed."""

    def __init__(self, total: int, progress: OnBytesDone | None) -> None:
        self._done, self.total, self._progress = 0, total, progress
        self._lock, self._stopped = threading.Lock(), threading.Event()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._progress is not None:
                self._progress(self._done, self.total)
        if self._stopped.is_set():
            raise TransferAborted

    def stop(self) -> None:
        self._stopped.set()

    def wait(self, seconds: float) -> None:
        """Wait. Raise TransferAborted as soon as the work of another thread fails."""
        if self._stopped.wait(seconds):
            raise TransferAborted


def run_in_threads(work: Callable[[Item], Result], items: Iterable[Item], *, tally: Tally) -> list[Result]:
    """Call `work` for each item, on several threads, in order, and return its results.

    The first error is raised after all threads have ended.
    """
    with ThreadPoolExecutor(max_workers=THREADS) as pool:
        try:
            futures = [pool.submit(work, item) for item in items]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            errors = [error for future in done if (error := future.exception()) is not None]
            for error in sorted(errors, key=lambda error: isinstance(error, TransferAborted)):
                raise error
            return [future.result() for future in futures]
        except BaseException:
            tally.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
