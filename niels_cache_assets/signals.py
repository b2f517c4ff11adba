"""Signals that have to wait."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_afterwards() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the block has ended.

    By handlers, because a mask of this thread holds nothing back: any other thread takes the signal, and Python handles it in this one.
    The wakeup descriptor is set aside as well, so that whoever reads it does not end the process for a handler that does not come.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread
        return
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    wakeup = signal.set_wakeup_fd(-1)
    handlers = {number: signal.signal(number, note) for number in map(int, _SIGNALS) if signal.getsignal(number) is not None}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        for number in received[:1]:
            signal.raise_signal(number)
