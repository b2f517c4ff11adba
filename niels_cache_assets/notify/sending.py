"""The delivery of lines of text to a webhook and to a command.

Each line is sent on a thread of its own. A process waits `PATIENCE_SECONDS` for all of its lines together, then it goes on without them.
If a line cannot be sent, the log of the build gets one warning. The warning never shows the address or the arguments, which may be secrets.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from urllib.parse import urlsplit

from niels_cache_assets.config.running import TEXT, NotifySettings

PATIENCE_SECONDS = 5.0  # the longest time that a process waits for its lines, all together
_SECONDS = 10.0  # the longest time for one line
_MOST_LINES = 16  # lines that are being sent at the same time; further ones are dropped


@lru_cache
def _messenger(settings: NotifySettings, process: int) -> Messenger:
    return Messenger(settings)


def messenger(settings: NotifySettings) -> Messenger:
    """Return the messenger of this process for these settings."""
    return _messenger(settings, os.getpid())  # threads and locks do not survive a fork


class Messenger:
    """The lines that one process sends, and its patience."""

    def __init__(self, settings: NotifySettings) -> None:
        self._settings = settings
        self._sending: list[threading.Thread] = []
        self._patience = PATIENCE_SECONDS
        self._problem: str | None = None  # of the first line that was not sent
        self._has_warned = False

    def send(self, line: str) -> None:
        """Begin to send a line. Never waits and never fails."""
        self._sending = [thread for thread in self._sending if thread.is_alive()]
        if len(self._sending) >= _MOST_LINES:
            self._problem = self._problem or "too many messages wait for an answer"
            return
        thread = threading.Thread(target=self._deliver, args=(line,), name="notify", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left, or the interpreter is ending
            self._problem = self._problem or "no thread can be started"
            return
        self._sending.append(thread)

    def settle(self, log: Callable[[str], object]) -> None:
        """Wait for the lines that are being sent, as long as the patience of this process lasts. Warn once if a line was not sent."""
        for thread in self._sending:
            began = time.monotonic()
            thread.join(max(0.0, self._patience))
            self._patience -= time.monotonic() - began
        late = any(thread.is_alive() for thread in self._sending)
        problem = self._problem or ("there is no answer yet" if late else None)
        if problem is not None and not self._has_warned:
            self._has_warned = True
            log(f"WARNING: [notify]: a message was not sent: {problem}; the build is not affected")

    def _deliver(self, line: str) -> None:
        for deliver in (self._to_the_webhook, self._to_the_command):
            try:
                deliver(line)
            except Exception as error:  # any error of a network or a program; a message never ends a build
                self._problem = self._problem or (str(error) if isinstance(error, _NotSentError) else type(error).__name__)

    def _to_the_webhook(self, line: str) -> None:
        try:
            address = self._settings.address()
        except ValueError as error:  # its text shows no address
            raise _NotSentError(f"webhook: {error}") from None
        if address is None:
            return
        where = f"the webhook at {urlsplit(address).hostname}"
        body = json.dumps({"text": line}).encode()
        request = urllib.request.Request(address, data=body, headers={"Content-Type": "application/json", "User-Agent": "niels-cache"})
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS):  # nothing of the answer is read
                pass
        except urllib.error.HTTPError as error:
            error.close()
            raise _NotSentError(f"{where} answers {error.code}") from None
        except TimeoutError:
            raise _NotSentError(f"{where} does not answer") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise _NotSentError(f"{where}: {getattr(reason, 'strerror', None) or type(reason).__name__}") from None

    def _to_the_command(self, line: str) -> None:
        if not self._settings.command:
            return
        program, *arguments = (word.replace(TEXT, line) for word in self._settings.command)
        name = os.path.basename(program)
        try:
            process = subprocess.Popen(
                [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise _NotSentError(f"the command {name}: {error.strerror}") from None
        try:
            process.communicate(f"{line}\n".encode(), timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise _NotSentError(f"the command {name} took longer than {_SECONDS:.0f} seconds and was ended") from None
        if process.returncode:
            raise _NotSentError(f"the command {name} ended with {process.returncode}")


class _NotSentError(Exception):
    """A line that was not sent. The text shows no secret."""
