"""Ctrl-C and SIGTERM during a build: stop within two seconds, and say which signal it was.

Dagster puts its own handlers in place while a step runs, and turns both signals into one exception. What arrived is therefore read from
Python's wakeup descriptor, which every signal writes to, whoever handles it.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_SECONDS = 1.7


class Interrupted(KeyboardInterrupt):
    """The user (SIGINT) or the system (SIGTERM) asked to stop."""

    SIGINT_EXIT_CODE = 128 + signal.SIGINT

    def __init__(self, number: int) -> None:
        super().__init__(f"{_NAMES[number]}; finished caches are as they were; start it again to finish")
        self.exit_code = 128 + number


_NAMES = {int(signal.SIGINT): "interrupted", int(signal.SIGTERM): "terminated"}


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Leave the block by `Interrupted` on SIGINT or SIGTERM, however the code inside dealt with the signal.

    Where that takes longer than `GRACE_SECONDS` (a call into C that does not return, such as a slow read) the process ends there and then.
    That is as safe as a kill: caches are exchanged in one step, and the next build goes on from what a partial one has recorded.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    received: list[int] = []
    finished = threading.Event()
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)

    def watch() -> None:
        for number in iter(lambda: os.read(read_end, 1), b""):
            if number[0] in _NAMES:
                received.append(number[0])
                if not finished.wait(GRACE_SECONDS):
                    os.write(2, f"niels-cache: {Interrupted(number[0])}\n".encode())
                    os._exit(128 + number[0])

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    # SQLAlchemy would log a signal that comes while it closes a connection, with its traceback; it raises it as well.
    pool = logging.getLogger("sqlalchemy.pool")
    old_level = pool.level
    pool.setLevel(logging.CRITICAL)
    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    old_handlers = {number: signal.signal(number, stop) for number in _NAMES}
    old_descriptor = signal.set_wakeup_fd(write_end)
    watcher.start()
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
    finally:
        finished.set()
        signal.set_wakeup_fd(old_descriptor)
        os.close(write_end)  # ends the watcher
        watcher.join()
        os.close(read_end)
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
        pool.setLevel(old_level)
    if received:
        raise Interrupted(received[0]) from failure
    if failure is not None:
        raise failure
