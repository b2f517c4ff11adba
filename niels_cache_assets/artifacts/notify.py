"""The watch over one build, which runs the command in [notify] after a failure, after STALL_MINUTES without progress, and at the end.

The command gets one JSON object on stdin, with the keys `event` (failure, stall or done), `host`, `name` and `text`, one line for people:

    niels-cache on gpu7: web/part-00017 failed: pages.jsonl: row 12 is not JSON

An interrupt is not a failure, because it was requested. Nor is it a failure if another process builds the same artifact or has taken it
over. A message never changes the result of a build. The build waits for the command, but not longer than a few seconds. If it fails, the
log gets a warning without its arguments, which may be secrets.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

from niels_cache_assets.base.wording import DEBUG
from niels_cache_assets.parts.lease import LeaseLostError, StopRequested
from niels_cache_assets.project.running import NotifySettings
from niels_cache_assets.sources.errors import describe_error
from niels_cache_runtime.errors import panics_as_errors
from niels_cache_runtime.format.commit import BusyError
from niels_cache_runtime.format.layout import FAMILIES

OnProgress = Callable[[Any], None]

STALL_MINUTES = 30.0
_SECONDS = 5.0  # the longest time for a message
_LONGEST_LINE = 500  # characters
_WARNING = "WARNING: "


class BuildNotifier:
    """The watch over the build of an artifact. It wraps the `log` of the build, because its last line may explain a stall."""

    def __init__(self, settings: NotifySettings, key: str, log: Callable[[str], Any]) -> None:
        self._command, self._key, self._log = settings.command, key, log
        self._last_line = ""

    def log(self, message: str) -> None:
        """Pass a line to the log of the build."""
        if not message.startswith(DEBUG):
            self._last_line = message.removeprefix(_WARNING)
        self._log(message)

    def notify_completed(self, meta: Any) -> None:
        """Notify that a data set is built. Nothing is sent for other kinds of artifacts, because there may be thousands.

        Args:
            meta: The meta.json of the data set.
        """
        if self._key.partition("/")[0] in FAMILIES:
            self.send("done", f"is done: {meta['train_tokens']:,} tokens of train, {meta['val_tokens']:,} of val")

    @contextmanager
    def notify_on_stall(self, on_progress: OnProgress | None) -> Iterator[OnProgress | None]:
        """Notify during this `with` block if there is no progress for STALL_MINUTES, once for each stall.

        Yields:
            A function to call with the progress, which passes it to `on_progress`. Without a command, `on_progress` itself.
        """
        if not self._command:
            yield on_progress
            return
        seconds, last, ended = STALL_MINUTES * 60, time.monotonic(), threading.Event()

        def report(progress: Any) -> None:
            nonlocal last
            last = time.monotonic()
            if on_progress is not None:
                on_progress(progress)

        def watch() -> None:
            left, notified_at = seconds, 0.0
            while not ended.wait(left):
                left = last + seconds - time.monotonic()
                if left <= 0:
                    left = seconds
                    if notified_at != last:
                        notified_at = last
                        line = f"; the last line of its log: {self._last_line}" if self._last_line else ""
                        self.send("stall", f"has made no progress in {STALL_MINUTES:g} minutes{line}")

        watcher = threading.Thread(target=watch, name="no progress", daemon=True)
        watcher.start()
        try:
            yield report
        finally:
            ended.set()
            watcher.join()

    def send(self, event: Literal["failure", "stall", "done"], what: str) -> None:
        """Run the command with a message, and wait a few seconds for it, because this process may end now. This never raises."""
        if not self._command:
            return
        host, (kind, _, name) = os.uname().nodename, self._key.partition("/")
        if kind not in (*FAMILIES, "part"):  # `corpus of web`, or `tokenizer`
            name = f"{kind.replace('_', ' ')} of {name}" if name else kind
        line = " ".join(f"niels-cache on {host}: {name} {what}".split())
        text = line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"
        message = json.dumps({"event": event, "host": host, "name": name, "text": text}, ensure_ascii=False)
        try:
            problem = _run(self._command, f"{message}\n".encode(errors="replace"))  # a file name may not be valid UTF-8
        except Exception as error:  # a message never ends a build
            problem = f"{type(error).__name__} {getattr(error, 'strerror', None) or ''}".rstrip()
        if problem is not None:
            self._log(
                f"{_WARNING}[notify]: {os.path.basename(self._command[0])}: {problem}; the message was not sent, and the build goes on"
            )


def _run(command: Sequence[str], message: bytes) -> str | None:
    """Run the command with a message on stdin, and return its problem, or None."""
    devnull = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=devnull, stderr=devnull, start_new_session=True)
    try:
        process.communicate(message, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"took longer than {_SECONDS:g} seconds and was ended"
    return f"ended with {process.returncode}" if process.returncode else None


@contextmanager
def notifying(settings: NotifySettings, key: str, log: Callable[[str], Any]) -> Iterator[BuildNotifier]:
    """Watch a build inside this `with` block, and notify if the block fails, including by a panic of Rust.

    Args:
        settings: The table [notify].
        key: The key of the artifact.
        log: Called with each line of the log.
    """
    watch = BuildNotifier(settings, key, log)
    try:
        with panics_as_errors():
            yield watch
    except (BusyError, LeaseLostError, StopRequested):
        raise
    except Exception as error:
        watch.send("failure", f"failed: {describe_error(error)}")
        raise
