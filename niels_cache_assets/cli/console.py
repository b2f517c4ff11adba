"""How the command line prints: results on stdout, progress and errors on stderr, and the form of tables.

Rich leaves colours out where NO_COLOR is set or the output is not a terminal. How much is said (--quiet, --verbose) holds for the command
that runs in this context.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PROGRAM = "niels-cache"
DIFFERENCE_STYLE = "underline yellow"
ELLIPSIS = "…"

Loudness = Literal["quiet", "normal", "verbose"]

_loudness: ContextVar[Loudness] = ContextVar("loudness", default="normal")
_SHRUNK_WIDTH = 6
_PIPE_WIDTH = 240  # a file or pipe has no width: tables are only as wide as what they hold


def print_error(message: str) -> None:
    """One line on stderr, whatever line breaks a library put into its message."""
    print(f"{PROGRAM}: {' '.join(message.split())}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """On stdout, for programs: ASCII, two blanks deep. Paths become text, numbers of NumPy's numbers."""
    print(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else os.fspath(value)


@contextmanager
def speaking(loudness: Loudness) -> Iterator[None]:
    """How much the command in the block says on stderr."""
    token = _loudness.set(loudness)
    try:
        yield
    finally:
        _loudness.reset(token)


def is_quiet() -> bool:
    return _loudness.get() == "quiet"


def explain(message: str) -> None:
    """A line on stderr for those who asked for --verbose."""
    if _loudness.get() == "verbose":
        diagnostics().print(message, style="dim", soft_wrap=True)


def output() -> Console:
    """stdout; numbers and paths are not highlighted on their own, markup in names is not interpreted. What it cannot encode is escaped."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    return _console(stderr=False, quiet=False)


def diagnostics() -> Console:
    """stderr, for progress: nowhere with --quiet."""
    return _console(stderr=True, quiet=is_quiet())


def warnings() -> Console:
    """stderr, for what is said even with --quiet."""
    return _console(stderr=True, quiet=False)


def _console(*, stderr: bool, quiet: bool) -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # main's to handle; Rich would exit with 1, which here means that a build failed

    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return PipeConsole(
        quiet=quiet, stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False, width=None if is_terminal else _PIPE_WIDTH
    )


def new_table(*columns: str, right: frozenset[str] = frozenset(), shrinking: Collection[str] = ()) -> Table:
    """A table with these columns. `right` are aligned so. On a narrow terminal `shrinking` fold; the others keep all."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        gives_way = column in shrinking
        justify: Literal["left", "right"] = "right" if column in right else "left"
        overflow: Literal["fold", "ellipsis"] = "fold" if gives_way else "ellipsis"
        table.add_column(column, justify=justify, no_wrap=not gives_way, overflow=overflow, min_width=_SHRUNK_WIDTH if gives_way else None)
    return table


def title_of(title: str | None, file: str, row: int) -> str:
    """Return `Title (articles.jsonl, row 12)`, or the place alone of a document without a title."""
    place = f"{file}, row {row:,}"
    return f"{title} ({place})" if title else place


def excerpt(text: str, characters: int) -> str:
    """The beginning of a text, on its own lines, cut at `characters`; runs of blank lines become one."""
    from niels_cache_assets.tokenizer.decoding import spell_controls

    shown = re.sub(r"\n\s*\n", "\n\n", spell_controls(text[: characters + 1]).strip())
    return shown if len(text) <= characters else shown[:characters].rstrip() + f" {ELLIPSIS}"
