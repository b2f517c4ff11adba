"""Entries of metadata in forms that the UI can show: tables, code, pictures, commands. Dagster's database stores them, so they are small.

No entry contains text of a document, because it would stay in the database after the document is taken down. Instead, an entry has the
command that reads the text from the cache.
"""

import base64
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.base.beside import load_beside

MAX_TABLE_ROWS = 100
NARROW = 62  # characters that fit beside the name of an entry on a screen of 1280 pixels; a sha256 has 64
_LEVELS = " ▁▂▃▄▅▆▇█"
_FULL = len(_LEVELS) - 1
_ROWS = 3  # of text in the height of a histogram
_INLINE = 1000  # from this number of characters on, the UI shows Markdown in its own window


def table(rows: Sequence[Mapping[str, Any]], **columns: str) -> dg.TableMetadataValue:
    """Return the first rows as a table, whose last row says how many more there are. The files and the command line have all rows.

    Args:
        rows: The rows.
        **columns: The type of each column; by default the keys and the types of the values in the first row.
    """
    columns = columns or {name: {int: "int", float: "float"}.get(type(value), "string") for name, value in (rows or [{}])[0].items()}
    schema = dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()])
    shown = [*rows[:MAX_TABLE_ROWS]]
    if more := len(rows) - len(shown):
        shown.append({next(iter(columns)): f"and {more:,} more"})
    records = [dg.TableRecord({name: row.get(name, "") for name in columns}) for row in shown]
    return dg.MetadataValue.table(records, schema=schema)


def without_empty(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are not None and no empty table, of which the UI would show only the heading."""
    has_no_row = {key for key, value in metadata.items() if isinstance(value, dg.TableMetadataValue) and not value.records}
    return {key: value for key, value in metadata.items() if value is not None and key not in has_no_row}


def code_block(text: str, language: str = "text") -> str:
    """Return the text as a Markdown code block.

    The fence is longer than any run of backticks in the text, so the text cannot close the block.
    """
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def in_own_window(markdown: str) -> str:
    """Return the Markdown, padded so that the UI shows it in its own window, because the table of entries would cut wide text."""
    return markdown.ljust(_INLINE)


def json_entry(values: Mapping[str, Any]) -> dg.MarkdownMetadataValue:
    """Return settings and similar values as JSON that the UI shows in its own window."""
    return dg.MetadataValue.md(in_own_window(code_block(json.dumps(values, indent=2, ensure_ascii=False, default=str), "json")))


def code_entry(text: str) -> dg.MarkdownMetadataValue:
    """Return Python code as an entry."""
    block = code_block(text, "python")
    is_narrow = max(map(len, text.splitlines())) <= NARROW
    return dg.MetadataValue.md(block if is_narrow else in_own_window(block))


def command_entry(*arguments: str, root: Path) -> dg.MarkdownMetadataValue:
    """Return a command of niels-cache that prints what the metadata does not contain.

    Args:
        *arguments: Arguments of the command.
        root: The cache directory.
    """
    lines = [shlex.join(["niels-cache", *arguments]), shlex.join(["--cache-dir", str(root.absolute())])]
    is_narrow = sum(map(len, lines)) < NARROW
    return dg.MetadataValue.md(code_block((" " if is_narrow else " \\\n  ").join(lines), "bash"))


def histograms(pictures: Sequence[Any]) -> dg.MarkdownMetadataValue:
    """Return the pictures with columns as text, as many as the UI shows at once. It shows images only after a click."""
    shown = ""
    for each in pictures:
        if each.kind == "columns" and each.values:
            heights = [math.log1p(value) if each.is_logarithmic else value for value in each.values]
            scale, width = _ROWS * _FULL / (max(heights) or 1), max(1, NARROW // 2 // len(heights))
            rows = [
                "".join(_LEVELS[max(0, min(_FULL, math.ceil(scale * one) - _FULL * row))] * width for one in heights)
                for row in reversed(range(_ROWS))
            ]
            block = "\n".join([each.title, *rows, f"{each.names[0]} ... {each.names[-1]}; at most {max(each.values):,}"])
            longer = f"{shown}\n\n{block}".lstrip("\n")
            shown = longer if len(code_block(longer)) < _INLINE else shown
    return dg.MetadataValue.md(code_block(shown))


def images(pictures: Sequence[Any], of: str) -> str:
    """Return Markdown with the pictures of `of` as PNG, because the UI shows no SVG or HTML."""
    as_png = load_beside("pages", "drawing").as_png
    return "\n\n".join(
        f"![{of}: {each.title}](data:image/png;base64,{base64.b64encode(as_png(each)).decode('ascii')})" for each in pictures
    )
