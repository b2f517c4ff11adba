"""Retries of failed network requests: for how long they continue, and the log lines meanwhile.

`retry_for` sets this time for the code in its `with` block. It is at most BRIEF_RETRY_SECONDS for a host that has never answered this
process, because its name may be wrong. `RequestRetries` counts the failures of one request. It waits after each failure, for a longer time
each, and finally raises SourceUnavailableError. `transport.install` makes the hub's library, and fsspec for http(s) addresses, retry in
this way.

The hub's library has one HTTP client for the whole process, so the setting also applies to the whole process.
"""

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
from urllib.parse import urlsplit

from niels_cache_assets.base import defaults
from niels_cache_assets.base.processes import are_signals_read
from niels_cache_assets.sources.errors import SourceUnavailableError, without_credentials
from niels_cache_runtime.errors import NielsCacheError

RETRY_VARIABLE = "NIELS_CACHE_NETWORK_PATIENCE"
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0  # seconds; each wait doubles, from FIRST_WAIT up to LONGEST_WAIT
UNATTENDED_RETRY_SECONDS = 1.0  # seconds of retries in a thread that would delay an interrupt of the main thread
BRIEF_RETRY_SECONDS = 10.0


class _RetryPolicy:
    """The retry settings of the process.

    Attributes:
        log: Receives a line at each wait.
        is_known: Whether the hosts are known to exist. Otherwise only those that have answered are.
        ended: The number of failures and the start time of requests that were given up, or None after an answer.
        signals: A socket with the signals since `watch_signals` began, or None.
    """

    def __init__(self, seconds: float | None, log: Callable[[str], None], is_known: bool = False) -> None:
        self._set_seconds = seconds
        self.is_known = is_known or RETRY_VARIABLE in os.environ
        self._thread = threading.current_thread()
        self.log = log
        self.ended: tuple[int, float] | None = None
        self.signals: socket.socket | None = None

    @property
    def seconds(self) -> float:
        return _seconds(defaults.NETWORK_RETRY_SECONDS) if self._set_seconds is None else self._set_seconds

    def seconds_in_this_thread(self) -> float:
        """Return the time in seconds for which this thread retries. It is short if the thread would delay an interrupt."""
        return self.seconds if self.signals or self._is_interruptible() else min(self.seconds, UNATTENDED_RETRY_SECONDS)

    def wait(self, seconds: float) -> bool:
        """Wait, and return False if the process is interrupted meanwhile. In the main thread, signal handlers handle an interrupt."""
        signals = self.signals  # None if other code handles signals, or if an interrupt has ended the wait for this thread
        if self._is_interruptible() or signals is None:
            time.sleep(seconds if self._is_interruptible() else min(seconds, UNATTENDED_RETRY_SECONDS))
            return True
        until = time.monotonic() + seconds
        try:
            while (left := until - time.monotonic()) > 0 and select.select([signals], [], [], left)[0]:
                if {signal.SIGINT, signal.SIGTERM} & set(signals.recv(1 << 16, socket.MSG_PEEK)):
                    return False
                time.sleep(0.1)  # a signal that is not an interrupt; it stays in the socket for the threads that also wait
        except (OSError, ValueError):  # the socket is closed
            return False
        return True

    @contextmanager
    def watch_signals(self) -> Iterator[None]:
        """Let other threads see signals.

        Libraries read in their own threads, and an interrupted process waits for these threads.
        """
        if threading.current_thread() is not threading.main_thread() or are_signals_read():
            yield
            return
        self.signals, writer = socket.socketpair()
        self.signals.setblocking(False)
        writer.setblocking(False)
        with self.signals, writer:
            before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
            if before != -1:  # set by other code
                signal.set_wakeup_fd(before)
                self.signals = None
            try:
                yield
            finally:
                if before == -1:
                    signal.set_wakeup_fd(-1)
                self.signals = None

    def _is_interruptible(self) -> bool:
        """Return whether an interrupt need not wait for this thread: it is the main thread, or another thread set the retry time."""
        return threading.current_thread() is threading.main_thread() or self._thread is not threading.main_thread()


def _ignore(message: str) -> None: ...


def _seconds(configured: float) -> float:
    """Return the seconds in the environment variable RETRY_VARIABLE, or the configured seconds if it is not set.

    Raises:
        NielsCacheError: If the variable is not a number of seconds.
    """
    value = os.environ.get(RETRY_VARIABLE)
    try:
        seconds = float(value or configured)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise NielsCacheError(f"{RETRY_VARIABLE}={value!r} is not a number of seconds; set it to a number, for example 600, or unset it")
    return seconds


_policy = _RetryPolicy(None, _ignore)
ANSWERED: set[str] = set()  # hosts that have answered this process, so that requests to them are worth the whole time of retries


@contextmanager
def _set(new: _RetryPolicy) -> Iterator[None]:
    """Use other retry settings for the code inside.

    If two threads do this at the same time, the thread that ends last restores the settings from its start.
    """
    global _policy
    outer, _policy = _policy, new
    try:
        yield
    finally:
        _policy = outer


@contextmanager
def retry_for(seconds: float, log: Callable[[str], None] = _ignore, *, is_known: bool = False) -> Iterator[None]:
    """Retry failed requests of the process for a time.

    Args:
        seconds: The time in seconds. The environment variable takes precedence.
        log: Receives a line at each wait.
        is_known: Whether the hosts have answered another process, so that their names are right.
    """
    new = _RetryPolicy(_seconds(seconds), log, is_known)
    with new.watch_signals(), _set(new):
        yield


@contextmanager
def retry_at_most(only: bool = True, *, seconds: float = BRIEF_RETRY_SECONDS) -> Iterator[None]:
    """Retry for a short time only, for requests that are optional for the caller.

    Args:
        only: Whether to change the time. If False, it stays as it is.
        seconds: The maximum time in seconds.
    """
    new = _RetryPolicy(min(_policy.seconds, seconds), _policy.log, _policy.is_known)
    new.signals = _policy.signals
    with _set(new if only else _policy):
        yield


class RequestRetries:
    """The failures of one request since its last progress."""

    def __init__(self, url: str) -> None:
        self._url = without_credentials(url)
        self._failures = 0
        self._since = 0.0

    def wait_after_failure(self, problem: str, retry_after: float | None = None) -> None:
        """Wait until the next try.

        Args:
            problem: The failure, for the message.
            retry_after: The seconds that the server asks to wait, which are the minimum wait.

        Raises:
            SourceUnavailableError: If the time for retries ends before the next try.
            KeyboardInterrupt: If the process is interrupted during the wait.
        """
        now = time.monotonic()
        if not self._failures:
            self._failures, self._since = _policy.ended or (0, now)
        self._failures += 1
        seconds = _policy.seconds_in_this_thread()
        if not _policy.is_known and urlsplit(self._url).netloc not in ANSWERED:
            seconds = min(seconds, BRIEF_RETRY_SECONDS)
        left = self._since + seconds - now
        if _policy.ended or left <= 0 or (retry_after or 0) > left:
            _policy.ended = self._failures, self._since
            tries = f"{self._failures} tries in {now - self._since:.0f} s" if self._failures > 1 else "one try"
            later = f", and asks to wait {retry_after:.0f} s" if retry_after else ""
            raise SourceUnavailableError(f"{self._url}: {problem}, {tries}{later}")
        # From 0.5 to 1.5, so that processes do not all retry at once. Importing torch for a random number may take longer than the wait.
        jitter = 0.5 + zlib.crc32(f"{os.getpid()} {time.monotonic_ns()}".encode()) / 2**32
        wait = max(retry_after or 0.0, min(FIRST_WAIT * 2 ** min(self._failures - 1, 20), LONGEST_WAIT) * jitter)
        wait = min(wait, left)
        if self._failures > 1 or wait > 2:
            _policy.log(f"{self._url}: {problem}; asking again in {wait:.1f} s, giving up in {left:.0f} s")
        if not _policy.wait(wait):
            raise KeyboardInterrupt  # a library passes this error to the main thread, which may not have seen its own interrupt yet

    def reset(self) -> None:
        """Reset the failures, because the request was answered or enough of its body arrived."""
        self._failures = 0
        _policy.ended = None
