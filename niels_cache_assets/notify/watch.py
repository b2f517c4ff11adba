"""The watch over one build. It tells about a failure, about a time without progress, and about the end.

A line names the machine, the data set or part, and the reason:

    niels-cache on gpu7: web/part-00017 failed: pages.jsonl: row 12 is not JSON

An interrupt is not a failure, because somebody asked for it. The same is true if another process builds the same or has taken over.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from niels_cache_assets.config.running import Event, NotifySettings
from niels_cache_assets.notify.sending import messenger
from niels_cache_assets.parts.lease import LeaseLost, Stopped
from niels_cache_assets.sources.errors import DEBUG, in_one_line
from niels_cache_runtime.errors import panics_as_errors
from niels_cache_runtime.format.commit import Busy
from niels_cache_runtime.format.layout import FAMILIES

OnProgress = Callable[[Any], None]

_LONGEST_LINE = 500  # characters
_WARNING = "WARNING: "


class Watch:
    """The watch over the build of an artifact. `log` of the build is wrapped, because its last line may be the reason of a standstill."""

    def __init__(self, settings: NotifySettings, key: str, log: Callable[[str], Any]) -> None:
        self._settings, self._key, self._log = settings, key, log
        self._last_line = ""
        self._last_progress = time.monotonic()
        self._is_told = False

    def log(self, message: str) -> None:
        """Pass a line to the log of the build."""
        if not message.startswith(DEBUG):
            self._last_line = message.removeprefix(_WARNING)
        self._log(message)

    def _progressed(self) -> None:
        self._last_progress, self._is_told = time.monotonic(), False

    def failed(self, reason: str) -> None:
        """Tell that the build has failed."""
        self._tell("failure", f"failed: {reason}")

    def done(self, meta: Any) -> None:
        """Tell that a data set is built. meta: its meta.json. Other kinds of artifacts are not told, because there may be thousands."""
        if self._key.partition("/")[0] in FAMILIES:
            self._tell("done", f"is done: {meta['train_tokens']:,} tokens of train, {meta['val_tokens']:,} of val")

    @contextmanager
    def standstill(self, on_progress: OnProgress | None) -> Iterator[OnProgress | None]:
        """Tell during this `with` block if there is no progress for `stall_minutes`. Tell once, and again only after progress.

        Yield the function to call with the progress. It passes the progress to `on_progress`.
        """
        if not self._settings.tells("stall"):
            yield on_progress
            return
        seconds, ended = self._settings.stall_minutes * 60, threading.Event()
        self._progressed()

        def progressed(progress: Any) -> None:
            self._progressed()
            if on_progress is not None:
                on_progress(progress)

        def wait() -> None:
            left = seconds
            while not ended.wait(left):
                left = self._last_progress + seconds - time.monotonic()
                if left <= 0:
                    left = seconds
                    if not self._is_told:
                        self._is_told = True
                        last = f"; the last line of its log: {self._last_line}" if self._last_line else ""
                        self._send("stall", f"has made no progress in {self._settings.stall_minutes:g} minutes{last}")

        watcher = threading.Thread(target=wait, name="no progress", daemon=True)
        watcher.start()
        try:
            yield progressed
        finally:
            ended.set()
            watcher.join()

    def _tell(self, event: Event, what: str) -> None:
        """Send a line, and wait a few seconds for it, because this process may end now."""
        self._send(event, what)
        if self._settings.tells(event):
            messenger(self._settings).settle(self._log)

    def _send(self, event: Event, what: str) -> None:
        if self._settings.tells(event):
            line = " ".join(f"niels-cache on {os.uname().nodename}: {shown_name(self._key)} {what}".split())
            messenger(self._settings).send(line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…")


@contextmanager
def watched(settings: NotifySettings, key: str, log: Callable[[str], Any]) -> Iterator[Watch]:
    """Watch a build inside this `with` block. Tell if the block fails, also by a panic of Rust. key: the key of the artifact."""
    watch = Watch(settings, key, log)
    try:
        with panics_as_errors():
            yield watch
    except (Busy, LeaseLost, Stopped):
        raise
    except Exception as error:
        watch.failed(in_one_line(error))
        raise


def shown_name(key: str) -> str:
    """Return an artifact's key for people: `web`, `web/part-00017`, `corpus of web`, `tokenizer`."""
    kind, _, name = key.partition("/")
    if kind in (*FAMILIES, "part"):
        return name
    return f"{kind.replace('_', ' ')} of {name}" if name else kind
