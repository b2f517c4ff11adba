"""Patience with the network: how long a request that fails is asked again, and what is said meanwhile.

`patience` sets it for what runs inside, `Tries` counts one request's failures and waits between them, ever longer, or ends them with
SourceUnavailable. `transport.install` gives the hub's library, and fsspec for http(s) addresses, a transport that works so. The library
has one HTTP client for the whole process, so the patience is the process's too. What an answer must look like is not known here.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from niels_cache_assets.config import defaults
from niels_cache_assets.sources.errors import SourceUnavailable, shown
from niels_cache_runtime.errors import NielsCacheError

PATIENCE_VARIABLE = "NIELS_CACHE_NETWORK_PATIENCE"
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0  # seconds; doubled from the one to the other
UNWATCHED_PATIENCE = 1.0  # seconds, of a thread that would hold up who interrupts the main one
BRIEFLY = 10.0

P = ParamSpec("P")
R = TypeVar("R")


class _Patience:
    def __init__(self, seconds: float | None, log: Callable[[str], None]) -> None:
        self._set_seconds = seconds
        self._thread = threading.current_thread()
        self.log = log
        self.ended: tuple[int, float] | None = None  # failures, and since when, of requests given up; none has been answered since
        self.signals: socket.socket | None = None  # what came since `watched` began

    @property
    def seconds(self) -> float:
        return _seconds(defaults.NETWORK_PATIENCE) if self._set_seconds is None else self._set_seconds

    def in_this_thread(self) -> float:
        return self.seconds if self.signals or self._is_interruptible() else min(self.seconds, UNWATCHED_PATIENCE)

    def wait(self, seconds: float) -> bool:
        """False where the process is interrupted meanwhile. In the main thread its handlers see to that themselves."""
        signals = self.signals  # None where others look for signals, and when nobody waits for this thread any more: an interrupt left it
        if self._is_interruptible() or signals is None:
            time.sleep(seconds if self._is_interruptible() else min(seconds, UNWATCHED_PATIENCE))
            return True
        until = time.monotonic() + seconds
        try:
            while (left := until - time.monotonic()) > 0 and select.select([signals], [], [], left)[0]:
                if {signal.SIGINT, signal.SIGTERM} & set(signals.recv(1 << 16, socket.MSG_PEEK)):
                    return False
                time.sleep(0.1)  # another signal; it stays, because other threads look as well
        except (OSError, ValueError):  # it is closed
            return False
        return True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Let other threads see signals: libraries read in threads of their own, and wait for them where they are interrupted."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.signals, told = socket.socketpair()
        self.signals.setblocking(False)
        told.setblocking(False)
        with self.signals, told:
            before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
            if before != -1:  # another's
                signal.set_wakeup_fd(before)
                self.signals = None
            try:
                yield
            finally:
                if before == -1:
                    signal.set_wakeup_fd(-1)
                self.signals = None

    def _is_interruptible(self) -> bool:
        """Whether nobody waits in vain for this thread: it is the main one, or what it works for is not in the main one either."""
        return threading.current_thread() is threading.main_thread() or self._thread is not threading.main_thread()


def _jitter() -> float:
    """From 0.5 to 1.5, another in each process, so that they do not come back all at once. It decides waits and nothing else.

    Of the clock: a generator of torch would have to be imported first, which may take longer than the wait.
    """
    return 0.5 + zlib.crc32(f"{os.getpid()} {time.monotonic_ns()}".encode()) / 2**32


def _silent(message: str) -> None: ...


def _seconds(configured: float) -> float:
    """The environment variable, else what is configured."""
    value = os.environ.get(PATIENCE_VARIABLE)
    try:
        seconds = float(value or configured)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise NielsCacheError(f"{PATIENCE_VARIABLE}={value!r} is no number of seconds; set it to one, for example 600, or unset it")
    return seconds


_patience = _Patience(None, _silent)


@contextmanager
def _set(new: _Patience) -> Iterator[None]:
    """For one thread at a time: where two overlap, the one that ends last leaves what the other had set."""
    global _patience
    outer, _patience = _patience, new
    try:
        yield
    finally:
        _patience = outer


@contextmanager
def patience(seconds: float, log: Callable[[str], None] = _silent) -> Iterator[None]:
    """Requests of the process are asked again for so long; `log` gets a line at each wait. The environment variable goes before."""
    new = _Patience(_seconds(seconds), log)
    with new.watched(), _set(new):
        yield


@contextmanager
def briefly(only: bool = True, *, seconds: float = BRIEFLY) -> Iterator[None]:
    """Ask for ten seconds at most, or `seconds`, if `only`: where there is something to go on with when no answer comes."""
    new = _Patience(min(_patience.seconds, seconds), _patience.log)
    new.signals = _patience.signals
    with _set(new if only else _patience):
        yield


def patient(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with the patience of the registry that is its first argument, and with its keyword argument `log`."""

    @wraps(function)
    def with_patience(*args: P.args, **kwargs: P.kwargs) -> R:
        registry: Any = args[0]
        log: Any = kwargs.get("log") or _silent
        with patience(registry.build.network_patience, log):
            return function(*args, **kwargs)

    return with_patience


class Tries:
    """The failures of one request since it last got anywhere."""

    def __init__(self, url: str) -> None:
        self._url = shown(url)
        self._failures = 0
        self._since = 0.0

    def failed(self, problem: str, retry_after: float | None = None) -> None:
        """Wait until it is time to ask again, at least the seconds that the server names; SourceUnavailable where patience ends before."""
        now = time.monotonic()
        if not self._failures:
            self._failures, self._since = _patience.ended or (0, now)
        self._failures += 1
        left = self._since + _patience.in_this_thread() - now
        if _patience.ended or left <= 0 or (retry_after or 0) > left:
            _patience.ended = self._failures, self._since
            tries = f"{self._failures} tries in {now - self._since:.0f} s" if self._failures > 1 else "one try"
            later = f", and asks to wait {retry_after:.0f} s" if retry_after else ""
            raise SourceUnavailable(f"{self._url}: {problem}, {tries}{later}")
        wait = max(retry_after or 0.0, min(FIRST_WAIT * 2 ** min(self._failures - 1, 20), LONGEST_WAIT) * _jitter())
        wait = min(wait, left)
        if self._failures > 1 or wait > 2:
            _patience.log(f"{self._url}: {problem}; asking again in {wait:.1f} s, giving up in {left:.0f} s")
        if not _patience.wait(wait):
            raise KeyboardInterrupt  # a library hands it to the main thread, which may not have seen its own yet

    def progressed(self) -> None:
        """The request was answered, or enough of its body came."""
        self._failures = 0
        _patience.ended = None
