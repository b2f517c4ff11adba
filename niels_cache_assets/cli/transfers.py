"""What is shown while bytes are read or copied: a bar on a terminal, else a line every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from niels_cache_assets.cli.console import diagnostics
from niels_cache_assets.show.progress import Throttle
from niels_cache_assets.show.wording import file_size

OnProgress = Callable[[int, int], None]


@contextmanager
def transfer_progress(doing: str, clock: Callable[[], float] = time.monotonic) -> Iterator[OnProgress]:
    """Called with bytes done and bytes in all; `doing` is what the line says, such as `exporting notes`."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = diagnostics()
    if not console.is_terminal:
        throttle = Throttle(clock())

        def print_line(done: int, total: int) -> None:
            if throttle.is_due(clock()):
                console.print(f"{doing}: {done / max(total, 1):.0%}, {file_size(done)} of {file_size(total)}", soft_wrap=True)

        yield print_line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
