"""What is shown while builds run: a bar per data set on a terminal, else a line at the start, every ten seconds, and at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from niels_cache_assets.cli.console import is_quiet, warnings
from niels_cache_assets.cli.memory import memory_now
from niels_cache_assets.defaults import PROGRESS_SECONDS
from niels_cache_assets.progress import Pace
from niels_cache_assets.wording import abbreviated

if TYPE_CHECKING:
    from niels_cache_assets import build_cache
    from niels_cache_assets.corpus.prepare import CorpusProgress
    from niels_cache_assets.defs.launcher import LaunchListener, LaunchResult

_WARNING = "WARNING"

Clock = Callable[[], float]


@contextmanager
def build_listener(console: Console) -> Iterator[LaunchListener]:
    """The listener that fits the console and --quiet."""
    if is_quiet():
        yield QuietListener()
        return
    if not console.is_terminal:
        yield LineListener(console)
        return
    listener = BarListener(console)
    with listener.bars:
        yield listener


def describe(progress: build_cache.Progress, pace: Pace, now: float) -> str:
    """`1,234 documents, 5.6M tokens, 1.2M tokens/s, 0:42 left`; the last where the share is known."""
    rate, seconds_left = pace.estimate(progress, now)
    parts = [f"{progress.documents:,} documents", f"{abbreviated(progress.tokens)} tokens"]
    if rate is not None:
        parts.append(f"{abbreviated(rate)} tokens/s")
    if seconds_left is not None:
        parts.append(f"{_duration(seconds_left)} left")
    return ", ".join(parts)


def describe_corpus(progress: CorpusProgress) -> str:
    """`1,234 documents, 1,100 kept, 5.6M characters`."""
    return f"{progress.documents:,} documents, {progress.kept:,} kept, {abbreviated(progress.characters)} characters"


def _duration(seconds: float) -> str:
    """0:07, 12:34, 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def outcome_line(result: LaunchResult) -> str:
    """`built in 4.2 s`; for a failure its message, which the table at the end repeats."""
    state = result.state.replace("_", " ")
    if result.state == "skipped":
        return state
    return f"{state} in {result.seconds:.1f} s" + (f": {result.message}" if result.message else "")


class _MemoryColumn(TextColumn):
    """What the process takes, beside each bar that still moves: builds run in this one."""

    def __init__(self) -> None:
        super().__init__("", style="dim")

    def render(self, task: Task) -> Text:
        return Text("" if task.finished else memory_now() or "", style="dim")


class BarListener:
    """Rich bars. A share that is not known yet makes the bar pulse."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self.bars = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(show_speed=False),
            TextColumn("{task.fields[detail]}"),
            _MemoryColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._clock = clock
        self._tasks: dict[str, tuple[TaskID, Pace]] = {}

    def started(self, name: str, family: str) -> None:
        self._tasks[name] = (self.bars.add_task(name, total=None, detail="working"), Pace())

    def progressed(self, name: str, progress: build_cache.Progress) -> None:
        task, pace = self._tasks[name]
        detail = describe(progress, pace, self._clock())
        if progress.share is None:
            self.bars.update(task, detail=detail)
        else:
            self.bars.update(task, total=1.0, completed=progress.share, detail=detail)

    def prepared(self, name: str, progress: CorpusProgress) -> None:
        task, _ = self._tasks[name]
        self.bars.update(task, detail=describe_corpus(progress))

    def logged(self, name: str, message: str) -> None:
        self.bars.console.print(f"{name}: {message}", style="yellow" if message.startswith(_WARNING) else "dim", markup=False)

    def finished(self, result: LaunchResult) -> None:
        if result.name not in self._tasks:
            return  # never started: the table at the end says why
        task, _ = self._tasks[result.name]
        if result.state == "failed":
            self.bars.update(task, detail="[red]failed[/red]")
            self.bars.stop_task(task)
        else:
            self.bars.update(task, total=1.0, completed=1.0, detail=result.state.replace("_", " "))


class QuietListener:
    """Warnings alone; what failed stands in the table at the end."""

    def started(self, name: str, family: str) -> None: ...

    def progressed(self, name: str, progress: build_cache.Progress) -> None: ...

    def prepared(self, name: str, progress: CorpusProgress) -> None: ...

    def logged(self, name: str, message: str) -> None:
        if message.startswith(_WARNING):
            warnings().print(f"{name}: {message}", soft_wrap=True)

    def finished(self, result: LaunchResult) -> None: ...


class LineListener:
    """Plain lines, for logs and CI."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._paces: dict[str, Pace] = {}
        self._printed: dict[str, float] = {}

    def started(self, name: str, family: str) -> None:
        self._paces[name] = Pace()
        self._printed[name] = self._clock()
        self._print(name, "started")

    def progressed(self, name: str, progress: build_cache.Progress) -> None:
        now = self._clock()
        if self._is_time(name, now):
            share = "" if progress.share is None else f"{progress.share:.0%}, "
            self._print(name, share + describe(progress, self._paces[name], now))

    def prepared(self, name: str, progress: CorpusProgress) -> None:
        if self._is_time(name, self._clock()):
            self._print(name, describe_corpus(progress))

    def logged(self, name: str, message: str) -> None:
        self._print(name, message)

    def finished(self, result: LaunchResult) -> None:
        self._print(result.name, outcome_line(result))

    def _is_time(self, name: str, now: float) -> bool:
        """For another line about it."""
        if now - self._printed[name] < PROGRESS_SECONDS:
            return False
        self._printed[name] = now
        return True

    def _print(self, name: str, message: str) -> None:
        self._console.print(f"{name}: {message}", soft_wrap=True)
