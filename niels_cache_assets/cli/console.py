"""How the command line prints: results on stdout, progress and errors on stderr, and the few number formats that all commands share.

Rich leaves colours out where NO_COLOR is set or the output is not a terminal. How much is said (--quiet, --verbose) holds for the command
that runs in this context.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PROGRAM = "niels-cache"
SHORT_SHA256 = 12
COUNTS = ("train_tokens", "val_tokens", "train_examples", "val_examples", "vocab_size")  # of a meta.json, where it has them

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


def new_table(*columns: str, right: frozenset[str] = frozenset(), shrinking: str | None = None) -> Table:
    """A table with these columns; `right` are aligned so, `shrinking` is the one that gives way first on a narrow terminal."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        gives_way = column == shrinking
        justify: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(
            column, justify=justify, no_wrap=not gives_way, overflow="ellipsis", min_width=_SHRUNK_WIDTH if gives_way else None
        )
    return table


def counted(number: int, unit: str) -> str:
    """`1 token`, `12,345 tokens`."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


def file_size(number: int) -> str:
    from rich.filesize import decimal

    return decimal(number)


def total_bytes(meta: Mapping[str, Any]) -> int:
    """Size of all files that a meta.json lists."""
    return sum(entry["bytes"] for entry in meta.get("files", {}).values())


def split_counts(meta: Mapping[str, Any]) -> tuple[str, str]:
    """What a cache holds, for its train and val cells: tokens of a pretrain cache, examples of an SFT cache, pieces of a tokenizer."""
    if meta["kind"] == "tokenizer":
        return counted(meta["vocab_size"], "piece"), "-"
    unit = "token" if meta["kind"] == "pretrain" else "example"
    return counted(meta[f"train_{unit}s"], unit), f"{meta[f'val_{unit}s']:,}"


def content_hash(meta: Mapping[str, Any]) -> str:
    """sha256 of what a cache holds: of the model for a tokenizer, of tokens and offsets for a data set."""
    return str(meta["sha256"] if meta["kind"] == "tokenizer" else meta["content_sha256"])
