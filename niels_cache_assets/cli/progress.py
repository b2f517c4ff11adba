"""The progress of a command, shown as bars on a terminal, otherwise as a line every ten seconds. In a notebook, one line changes.

    build_listener      builds: a bar for each data set, or a line at its start, every ten seconds, and at its end
    transfer_progress   bytes that are read or copied     transfer_steps   the same, for several steps
    array_progress      entries of arrays that are built

The last three also end their block with `InterruptRequested` on SIGINT or SIGTERM.

Showing the memory use costs one read of /proc or one system call.
"""

import os
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from niels_cache_assets.base.defaults import PROGRESS_SECONDS
from niels_cache_assets.base.processes import stop_on_signals
from niels_cache_assets.base.wording import DEBUG, file_size
from niels_cache_assets.cli.console import diagnostics, is_quiet, print_log_line, warnings
from niels_cache_assets.defs.launch_events import LaunchListener, LaunchResult
from niels_cache_assets.facts.progress import BuildProgress, SpeedMeter, Throttle, describe

_WARNING = "WARNING"

OnProgress = Callable[[int, int], None]
OnStep = Callable[[str, int, int], None]


@contextmanager
def build_listener(console: Console) -> Iterator[LaunchListener]:
    """Yield the listener (the receiver of progress) that suits this console, or the quiet listener with --quiet."""
    if is_quiet():
        yield QuietListener()
        return
    if not _shows_bars(console):
        yield LineListener(console)
        return
    listener = BarListener(console)
    with listener.bars:
        yield listener


def _shows_bars(console: Console) -> bool:
    """Return whether the console shows bars, which move the cursor up. The terminal of `!niels-cache` in a notebook does not."""
    return console.is_terminal and "JPY_PARENT_PID" not in os.environ  # Jupyter sets it for the commands of a notebook


def _throttle(console: Console) -> Throttle:
    return Throttle(monotonic(), 0.5 if console.is_terminal else PROGRESS_SECONDS)


def _print_line(console: Console, line: str, *, end: str = "\n") -> None:
    """Print a line. In a notebook, the next line replaces one whose `end` is a carriage return."""
    if console.is_terminal:
        console.out(f"{line:<100}", end=end)
    else:
        print_log_line(console, line)


class _MemoryColumn(TextColumn):
    """A column with the memory of this process, beside each unfinished bar. Builds run in this process."""

    def __init__(self) -> None:
        super().__init__("", style="dim")

    def render(self, task: Task) -> Text:
        return Text("" if task.finished else memory_now() or "", style="dim")


class BarListener(LaunchListener):
    """A listener that shows bars of Rich. A bar pulses while the share is unknown."""

    def __init__(self, console: Console) -> None:
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
        self._tasks: dict[str, tuple[TaskID, SpeedMeter]] = {}

    def started(self, name: str, family: str) -> None:
        if name in self._tasks:  # a part that was passed over before
            self.bars.remove_task(self._tasks[name][0])
        self._tasks[name] = (self.bars.add_task(name, total=None, detail="working"), SpeedMeter())

    def progressed(self, name: str, progress: BuildProgress) -> None:
        task, meter = self._tasks[name]
        detail = describe(progress, meter.estimate(progress, monotonic()), with_share=False)  # the bar shows the share
        if progress.share is None:
            self.bars.update(task, detail=detail)
        else:
            self.bars.update(task, total=1.0, completed=progress.share, detail=detail)

    def logged(self, name: str, message: str) -> None:
        if not message.startswith(DEBUG):
            self.bars.console.print(f"{name}: {message}", style="yellow" if message.startswith(_WARNING) else "dim", markup=False)

    def finished(self, result: LaunchResult) -> None:
        if result.name not in self._tasks:
            return  # this build never started; the table at the end has the reason
        task, _ = self._tasks[result.name]
        if result.state == "failed":
            self.bars.update(task, detail="[red]failed[/red]")
            self.bars.stop_task(task)
        else:
            self.bars.update(task, total=1.0, completed=1.0, detail=result.state.replace("_", " "))


class QuietListener(LaunchListener):
    """A listener that prints only warnings. The table at the end lists failures."""

    def logged(self, name: str, message: str) -> None:
        if message.startswith(_WARNING):
            print_log_line(warnings(), f"{name}: {message}")


class LineListener(LaunchListener):
    """A listener that prints plain lines, for logs, CI and notebooks."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._running: dict[str, tuple[SpeedMeter, Throttle]] = {}

    def started(self, name: str, family: str) -> None:
        self._running[name] = SpeedMeter(), _throttle(self._console)
        self._print(name, "started")

    def progressed(self, name: str, progress: BuildProgress) -> None:
        now, (meter, throttle) = monotonic(), self._running[name]
        estimate = meter.estimate(progress, now)
        if throttle.is_due(now):
            self._print(name, describe(progress, estimate, with_share=True), end="\r")

    def logged(self, name: str, message: str) -> None:
        if not message.startswith(DEBUG):
            self._print(name, message)

    def finished(self, result: LaunchResult) -> None:
        took = "" if result.state == "skipped" else f" in {result.seconds:.1f} s"
        why = f": {result.message}" if took and result.message and result.state != "failed" else ""  # the last lines give these reasons
        self._print(result.name, f"{result.state.replace('_', ' ')}{took}{why}")

    def _print(self, name: str, message: str, *, end: str = "\n") -> None:
        _print_line(self._console, f"{name}: {message}", end=end)


@contextmanager
def transfer_progress(doing: str) -> Iterator[OnProgress]:
    """Yield a function to call with the number of finished bytes and of all bytes. `doing` labels the line, such as `exporting notes`."""
    with transfer_steps(doing) as on_step:
        yield partial(on_step, doing)


def transfer_steps(first: str) -> AbstractContextManager[OnStep]:
    """Return a context manager that yields a function to call with a step and its number of finished bytes and of all bytes.

    `first` is the first step, such as `exporting notes`.
    """

    def amount(done: int, total: int) -> str:
        return f"{done / max(total, 1):.0%}, {file_size(done)} of {file_size(total)}"

    return _steps(first, (DownloadColumn(), TransferSpeedColumn()), amount)


def array_progress() -> AbstractContextManager[OnStep]:
    """Return a context manager that yields a function to call with the name of an array, and its number of finished and of all entries."""
    return _steps("opening", (MofNCompleteColumn(),), lambda done, total: f"{done:,} of {total:,}")


@contextmanager
def _steps(first: str, columns: Iterable[ProgressColumn], amount: Callable[[int, int], str]) -> Iterator[OnStep]:
    with stop_on_signals():
        console = diagnostics()
        if not _shows_bars(console):
            throttle = _throttle(console)

            def print_line(step: str, done: int, total: int) -> None:
                if throttle.is_due(monotonic()):
                    _print_line(console, f"{step}: {amount(done, total)}", end="\r")

            yield print_line
            if console.is_terminal:
                _print_line(console, "", end="\r")
            return
        parts = (TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn())
        with Progress(*parts, console=console, transient=True) as bar:
            task, shown = bar.add_task(first, total=None), first

            def update(step: str, done: int, total: int) -> None:
                nonlocal shown
                if step != shown:
                    bar.reset(task, total=total, description=step)
                    shown = step
                bar.update(task, completed=done, total=total)

            yield update


def peak_memory() -> str:
    """Return `at most 512 MB of memory`: the peak of this process, or of its largest child process if that is higher."""
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes on macOS, in KiB on Linux
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return f"at most {file_size(peak * unit)} of memory"


def memory_now() -> str | None:
    """Return the memory of this process, such as `512 MB`, or None without /proc, which only Linux has."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return file_size(int(file.read().split()[1]) * resource.getpagesize())
    except OSError:
        return None
