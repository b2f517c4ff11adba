"""The text form of sizes, of aligned lines, and of tables for notebooks. This module opens no file."""

from collections.abc import Iterable, Sequence
from html import escape


def in_bytes(count: int) -> str:
    """Return a number of bytes as text with a decimal unit, such as `1.5 GB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def in_lines(title: str, rows: Sequence[tuple[str, str, str]]) -> str:
    """Return aligned lines below a title.

    Args:
        title: The first line.
        rows: For each line, the text to type after the cache's name, the contents of train or an error, and the contents of val.
    """
    width = max((len(name) for name, _, _ in rows), default=0)
    return "\n".join([title, *(f"  {name:{width}}  {train}{f'; val: {val}' if val else ''}" for name, train, val in rows)])


def as_html(title: str, rows: Iterable[Sequence[object]] = (), *, code: str = "") -> str:
    """Return a title for a notebook, with a table or code below it. Every text is escaped."""
    lines = ["".join(f'<td style="text-align: left">{escape(str(cell))}</td>' for cell in row) for row in rows]
    table = f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>" if lines else ""
    return f"<p>{escape(title)}</p>{table}{f'<pre><code>{escape(code)}</code></pre>' if code else ''}"
