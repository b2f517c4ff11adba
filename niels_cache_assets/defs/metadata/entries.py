"""Entries of metadata in forms that the UI can show (tables, code, pictures, samples). The entries are small, because Dagster's database
stores them.

Samples show the text of a cache, with visible special tokens and marked targets. In an example, a line that the model learns to produce
begins with + (green in the UI). A line that is only context begins with a blank.
"""

import base64
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.show.samples import Sample, pick_samples, targets_of
from niels_cache_assets.show.targets import ExampleTargets
from niels_cache_assets.tokenizer.decoding import as_text
from niels_cache_assets.tokenizer.kinds import TextTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Family, Split, Tokens
from niels_cache_runtime.format.meta import Meta

MAX_TABLE_ROWS = 100
COLUMNS = 110  # width of the UI's window for Markdown
NARROW = 62  # characters that fit beside the name of an entry on a screen of 1280 pixels; a sha256 has 64
_INLINE = 1000  # from this number of characters on, the UI shows Markdown in its own window


def table(rows: Sequence[Mapping[str, Any]], **columns: str) -> dg.TableMetadataValue:
    """Return the first rows as a table with these columns and types. The files and the command line have all rows."""
    schema = dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows[:MAX_TABLE_ROWS]], schema=schema)


def without_empty(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are not None and not an empty table. The UI would show only the heading of an empty table."""
    has_no_row = {key for key, value in metadata.items() if isinstance(value, dg.TableMetadataValue) and not value.records}
    return {key: value for key, value in metadata.items() if value is not None and key not in has_no_row}


def fenced(text: str, language: str = "text") -> str:
    """Return the text as a Markdown code block. The fence is longer than any run of backticks in the text, so the text cannot close the
    block.
    """
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def behind_a_click(markdown: str) -> str:
    """Return the Markdown, padded so that the UI shows it in its own window. The table of entries would cut wide text."""
    return markdown.ljust(_INLINE)


def json_entry(values: Mapping[str, Any]) -> dg.MarkdownMetadataValue:
    """Return settings and similar values as JSON that the UI shows in its own window."""
    return dg.MetadataValue.md(behind_a_click(fenced(json.dumps(values, indent=2, ensure_ascii=False, default=str), "json")))


def code_entry(text: str) -> dg.MarkdownMetadataValue:
    block = fenced(text, "python")
    is_narrow = max(map(len, text.splitlines())) <= NARROW
    return dg.MetadataValue.md(block if is_narrow else behind_a_click(block))


def picture(title: str, png: bytes) -> str:
    """Return Markdown with an image. The UI shows PNG images, but no SVG or HTML."""
    return f"![{title}](data:image/png;base64,{base64.b64encode(png).decode('ascii')})"


def pictures(plots: Mapping[str, bytes]) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md("\n\n".join(picture(title, png) for title, png in plots.items()))


def samples(folder: Path, family: Family, split: Split, meta: Meta, tokenizer: TextTokenizer) -> str | None:
    """Return the beginnings of the first, a random, the longest and the shortest item of a split. Return None for an empty split.

    If the cache is damaged, return a line that says this. The checks run later and report the damage.
    """
    try:
        picked = pick_samples(folder, family, split, meta)
        targets = targets_of(folder, split, meta, tokenizer) if family == "sft" and picked else None
        return "\n\n".join(_shown(sample, targets, tokenizer) for sample in picked) or None
    except (NielsCacheError, OSError) as error:
        return f"cannot be shown: {error}"


def _shown(sample: Sample, targets: ExampleTargets | None, tokenizer: TextTokenizer) -> str:
    cut = f", the first {len(sample.tokens)} shown" if len(sample.tokens) < sample.length else ""
    title = f"**{sample.what}**: {sample.noun} {sample.number:,}, {sample.length:,} tokens{cut}"
    if targets is None:
        text = "\n".join(_wrapped(as_text(sample.tokens.tolist(), tokenizer)))
        return f"{title}\n\n{fenced(text)}"
    is_target = targets.of_example(sample.tokens, sample.number, sample.start)
    return f"{title}\n\n{fenced(_marked(sample.tokens, is_target.tolist(), tokenizer), 'diff')}"


def _marked(tokens: Tokens, is_target: list[bool], tokenizer: TextTokenizer) -> str:
    lines: list[str] = []
    for targeted, run in groupby(zip(tokens.tolist(), is_target, strict=True), key=lambda pair: pair[1]):
        text = as_text((token for token, _ in run), tokenizer)
        lines += [f"{'+' if targeted else ' '} {line}" for line in _wrapped(text)]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    """Return the text in lines, because the UI does not wrap code blocks."""
    wrap = textwrap.TextWrapper(COLUMNS, drop_whitespace=False, replace_whitespace=False, expand_tabs=False, break_on_hyphens=False)
    return [part for line in text.split("\n") for part in wrap.wrap(line) or [""]]
