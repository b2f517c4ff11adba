"""The tables that programs print."""

from __future__ import annotations


def rows_of(printed: str) -> list[list[str]]:
    """Return the cells of each row of a printed Markdown table, with the row of names."""
    return [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("| ")]
