"""Functions that format text and tables for `catalog`: sizes, lines for a terminal, a table for a notebook. This module opens no file."""

import html
from collections.abc import Sequence

_CELL = 'style="text-align:left"'  # no colours: the notebook's theme sets them


def in_bytes(count: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def in_lines(title: str, rows: Sequence[tuple[str, str, str]]) -> str:
    """Return aligned lines below a title. rows: (text to type after the cache's name, contents of train or an error, contents of val)."""
    width = max((len(name) for name, _, _ in rows), default=0)
    return "\n".join([title, *(f"  {name:{width}}  {train}{f'; val: {val}' if val else ''}" for name, train, val in rows)])


def html_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return an HTML table with every cell escaped."""
    head = "".join(f"<th {_CELL}>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td {_CELL}>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
