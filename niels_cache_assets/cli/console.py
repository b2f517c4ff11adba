"""The output of the command line: results on stdout, progress and errors on stderr. The look of tables is defined here.

Rich prints no colours if NO_COLOR is set or the output is not a terminal. While the command runs, a context variable stores the choice of
--quiet or --verbose.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from dataclasses import is_dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

PROGRAM = "niels-cache"
DIFFERENCE_STYLE = "underline yellow"
ELLIPSIS = "…"

Verbosity = Literal["quiet", "normal", "verbose"]

_verbosity: ContextVar[Verbosity] = ContextVar("verbosity", default="normal")
_kept: list[IO[str]] = []  # of commands that run, stdout as they found it
_SHRUNK_WIDTH = 6
_PIPE_WIDTH = 240  # for a file or pipe, which has no width; tables are only as wide as their content


def print_error(message: str) -> None:
    """Print one line on stderr, in which line breaks of the message become spaces.

    If stderr has no reader or is on a full disk, the line is dropped.
    """
    with ignore_output_errors(sys.stderr):
        print(f"{PROGRAM}: {' '.join(message.split())}", file=sys.stderr, flush=True)


@contextmanager
def ignore_output_errors(stream: IO[str]) -> Iterator[None]:
    """Send everything that follows to /dev/null if the stream has lost its reader in the block, or is on a full disk."""
    try:
        yield
    except OSError:
        redirect_to_null(stream)


def redirect_to_null(stream: IO[str]) -> None:
    """Send everything that follows to /dev/null. Otherwise the interpreter complains when it flushes at exit."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def print_log_line(console: Console, line: str, *, style: str | None = None) -> None:
    """Print a line on stderr. A command continues if its log is on a full disk, and ends if its log is a pipe without a reader."""
    try:
        console.print(line, style=style)
    except BrokenPipeError:
        raise
    except OSError:
        redirect_to_null(console.file)


@contextmanager
def keep_for_results() -> Iterator[None]:
    """Keep stdout for the results of the command: what other code prints in the block, such as a user's, goes to stderr."""
    _kept.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _kept.pop()


def stdout() -> IO[str]:
    """Return the stream for results."""
    return _kept[-1] if _kept else sys.stdout


def print_json(value: Any) -> None:
    """Print JSON on stdout: ASCII, indented by two spaces. Paths become strings, NumPy arrays lists, and dataclasses tables."""
    print(json.dumps(value, indent=2, default=_plain), file=stdout())


def print_facts(arguments: argparse.Namespace, facts: Mapping[str, Any]) -> bool:
    """Print facts as JSON if --json is given, and return whether they were printed; otherwise the command prints its table."""
    if arguments.json:
        print_json(facts)
    return bool(arguments.json)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return vars(value)
    return value.tolist() if hasattr(value, "tolist") else os.fspath(value)


@contextmanager
def set_verbosity(verbosity: Verbosity) -> Iterator[None]:
    """Set how much the command prints on stderr inside this `with` block."""
    token = _verbosity.set(verbosity)
    try:
        yield
    finally:
        _verbosity.reset(token)


def is_quiet() -> bool:
    """Return whether --quiet is set."""
    return _verbosity.get() == "quiet"


def print_if_verbose(message: str) -> None:
    """Print a line on stderr if --verbose is set."""
    if _verbosity.get() == "verbose":
        print_log_line(diagnostics(), message, style="dim")


def output() -> Console:
    """Return a console for stdout.

    The console highlights nothing by itself, ignores markup in names, and escapes characters that stdout cannot encode.
    """
    stream = stdout()
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")
    return _console(stderr=False, quiet=False)


def display(*objects: Any, **options: Any) -> None:
    """Print texts or tables on stdout. It makes a new console, which takes about as long as printing a line."""
    output().print(*objects, **options)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return a text of these parts. A pair is a text and its style."""
    from rich.text import Text

    return Text.assemble(*parts)


def mark(text: str, style: str) -> tuple[str, str]:
    """Return a part of a `styled` text that stands out: by its style on a terminal, otherwise in [[ ]]."""
    return text if output().is_terminal else f"[[{text}]]", style


def diagnostics() -> Console:
    """Return a console for progress on stderr, which prints nothing with --quiet."""
    return _console(stderr=True, quiet=is_quiet())


def warnings() -> Console:
    """Return a console for stderr that prints even with --quiet."""
    return _console(stderr=True, quiet=False)


def _console(*, stderr: bool, quiet: bool) -> Console:
    from rich.console import Console
    from rich.text import Text

    class LineConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            is_text = all(isinstance(each, str | Text) for each in objects)  # a line may be wider than the terminal; a table is not
            options.setdefault("soft_wrap", is_text)
            super().print(*objects, **options)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # main() handles this error; Rich would exit with 1, and 1 means a failed build here

    file = None if stderr else stdout()
    is_terminal = (file or sys.stderr).isatty()
    return LineConsole(
        quiet=quiet, stderr=stderr, file=file, highlight=False, markup=False, emoji=False, width=None if is_terminal else _PIPE_WIDTH
    )


def new_table(*columns: str, right: Collection[str] = (), shrinking: Collection[str] = ()) -> Table:
    """Return a table. `right` columns are right-aligned. On a narrow terminal, only `shrinking` columns fold."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        shrinks = column in shrinking
        justify: Literal["left", "right"] = "right" if column in right else "left"
        overflow: Literal["fold", "ellipsis"] = "fold" if shrinks else "ellipsis"
        table.add_column(column, justify=justify, no_wrap=not shrinks, overflow=overflow, min_width=_SHRUNK_WIDTH if shrinks else None)
    return table


def title_of(title: str | None, file: str, row: int) -> str:
    """Return `Title (articles.jsonl, row 12)`, or only the file and row if the document has no title. Control characters are escaped."""
    from niels_cache_assets.tokenizer.decoding import spell_controls

    location = f"{file}, row {row:,}"
    return spell_controls(f"{title} ({location})" if title else location)


def excerpt(text: str, characters: int) -> str:
    """Return the beginning of a text, cut at `characters`. Line breaks are kept; several blank lines become one."""
    from niels_cache_assets.tokenizer.decoding import spell_controls

    shown = re.sub(r"\n\s*\n", "\n\n", spell_controls(text[: characters + 1]).strip())
    return shown if len(text) <= characters else shown[:characters].rstrip() + f" {ELLIPSIS}"
