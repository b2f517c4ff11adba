"""`show NAME`: one cache's meta.json as tables. Everything comes from that file; nothing is hashed or opened (that is `verify`)."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console

from niels_cache_assets.cli.console import counted, file_size, new_table, output, total_bytes
from niels_cache_assets.cli.context import find_place, open_registry
from niels_cache_runtime.formats import META_NAME, SPLITS
from niels_cache_runtime.meta import Meta

# Shown by a table of their own, or only there for the file itself.
_NOT_FACTS = frozenset(
    {"files", "dropped", "schema_version", "built", "kind", "dataset_name"}
    | {f"{split}_{unit}" for split in SPLITS for unit in ("tokens", "examples")}
)


def run(arguments: argparse.Namespace) -> int:
    registry, root = open_registry(arguments)
    place = find_place(registry, root, arguments.name)
    meta = place.meta()
    console = output()
    console.print(f"{place.name}  ({place.kind}, {place.directory / META_NAME})", style="bold", soft_wrap=True)
    if not meta.get("built", True):
        console.print("disabled: this directory says that nothing was built")
    _print_splits(console, meta)
    _print_dropped(console, meta)
    _print_facts(console, meta)
    _print_files(console, meta)
    return 0


def _print_splits(console: Console, meta: Meta) -> None:
    """One row per split; the columns are whatever meta.json counts per split."""
    by_split = _per_split(meta)
    if not by_split:
        return
    table = new_table("split", *by_split, right=frozenset(by_split))
    for split in SPLITS:
        table.add_row(split, *(f"{values[split]:,}" for values in by_split.values()))
    _section(console, None, table)


def _per_split(meta: Meta) -> dict[str, dict[str, int]]:
    """Counts by what they count: `train_tokens` and `val_tokens`, or a table `documents` = {train, val}."""
    counts: dict[str, dict[str, int]] = {}
    for key, value in meta.items():
        unit = key.removeprefix("train_")
        if unit != key and isinstance(value, int) and f"val_{unit}" in meta:
            counts[unit] = {split: meta[f"{split}_{unit}"] for split in SPLITS}
        elif isinstance(value, dict) and set(value) == set(SPLITS) and all(isinstance(count, int) for count in value.values()):
            counts[key] = value
    return counts


def _print_dropped(console: Console, meta: Meta) -> None:
    dropped: dict[str, int] = meta.get("dropped") or {}
    if not dropped:
        return
    table = new_table("dropped because", "count", right=frozenset({"count"}))
    for reason, count in sorted(dropped.items(), key=lambda item: -item[1]):
        table.add_row(reason, f"{count:,}")
    _section(console, None, table)


def _print_facts(console: Console, meta: Meta) -> None:
    table = new_table("key", "value")
    shown = _per_split(meta)
    for key, value in meta.items():
        if key not in _NOT_FACTS and key not in shown and value not in ({}, None):
            table.add_row(key, _cell(value))
    _section(console, None, table)


def _print_files(console: Console, meta: Meta) -> None:
    files: dict[str, dict[str, Any]] = meta.get("files", {})
    if not files:
        return
    table = new_table("file", "size", "sha256", right=frozenset({"size"}))
    for path, entry in files.items():
        table.add_row(path, file_size(entry["bytes"]), entry["sha256"])
    _section(console, f"{counted(len(files), 'file')}, {file_size(total_bytes(meta))}", table)


def _section(console: Console, title: str | None, table: Any) -> None:
    console.print()
    if title:
        console.print(title, style="bold")
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)}" for key, item in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
