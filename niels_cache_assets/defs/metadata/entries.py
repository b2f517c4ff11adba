"""Entries of metadata in the forms that the UI shows: tables, code, pictures. They are kept in Dagster's database, so they are small."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

MAX_TABLE_ROWS = 100
COLUMNS = 110  # of the UI's window for Markdown
NARROW = 62  # characters that an entry of metadata has beside its name on a screen of 1280 pixels, and a sha256 has 64
_INLINE = 1000  # characters of Markdown from which on the UI opens a window for it


def table(rows: Sequence[Mapping[str, Any]], **columns: str) -> dg.TableMetadataValue:
    """The first rows of a table with these columns and types; files and `niels-cache` have it whole."""
    schema = dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows[:MAX_TABLE_ROWS]], schema=schema)


def without_empty(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The entries but for those that are None, and tables without a row, of which the UI shows the head."""
    has_no_row = {key for key, value in metadata.items() if isinstance(value, dg.TableMetadataValue) and not value.records}
    return {key: value for key, value in metadata.items() if value is not None and key not in has_no_row}


def fenced(text: str, language: str = "text") -> str:
    """A Markdown code block that no run of backticks in the text can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def behind_a_click(markdown: str) -> str:
    """The same, so long that the UI opens it in a window of its own: a table of entries cuts what is wider than it."""
    return markdown.ljust(_INLINE)


def json_entry(values: Mapping[str, Any]) -> dg.MarkdownMetadataValue:
    """Settings and the like, in a window of their own."""
    return dg.MetadataValue.md(behind_a_click(fenced(json.dumps(values, indent=2, ensure_ascii=False, default=str), "json")))


def code_entry(text: str) -> dg.MarkdownMetadataValue:
    block = fenced(text, "python")
    is_narrow = max(map(len, text.splitlines())) <= NARROW
    return dg.MetadataValue.md(block if is_narrow else behind_a_click(block))


def picture(title: str, png: bytes) -> str:
    """Markdown: the UI shows such images, and no SVG or HTML."""
    return f"![{title}](data:image/png;base64,{base64.b64encode(png).decode('ascii')})"


def pictures(plots: Mapping[str, bytes]) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md("\n\n".join(picture(title, png) for title, png in plots.items()))
