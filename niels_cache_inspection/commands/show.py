"""The command `show`, which prints the meta.json of a cache as tables.

`show NAME` prints that of one cache, then its corpus and its duplicates, and meta.json must name the same data set. `show PATH` prints that
of one folder, which may have any name. `show ADDRESS` prints that of a published cache. All output comes from meta.json. No data file is
opened or hashed; only `verify` does that.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from niels_cache_assets.base.wording import file_size, format_count
from niels_cache_assets.cli.command import CACHES, Command, option
from niels_cache_assets.cli.console import PROGRAM, display, new_table, print_facts
from niels_cache_assets.corpus.layout import corpus_dir
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from rich.table import Table

    from niels_cache_assets.project.registry import Registry
    from niels_cache_runtime.format.meta import Meta

_NOT_FACTS = frozenset(
    {"files", "dropped", "schema_version", "forms", "built", "kind", "dataset_name", "overlap"}
    | {"train_tokens", "val_tokens", "train_examples", "val_examples"}
)
_NOT_CORPUS_FACTS = _NOT_FACTS | {"documents", "characters", "bytes", "lengths", "dropped_by_source"}


COMMAND = Command(
    options=(
        option("name", "NAME", "a data set, `tokenizer`, the path of a folder with a meta.json, or the ADDRESS of a published cache"),
    ),
    usage="NAME ",
    examples="""\
  niels-cache show wikitext
  niels-cache show tokenizer --cache-dir cache/quickstart
  niels-cache show s3://bucket/caches/wikitext""",
    offers={"name": CACHES},
)


class ShownCache(NamedTuple):
    """A cache to show, with its folder or address."""

    name: str
    kind: str
    where: Path | str
    meta: Meta


def run(arguments: argparse.Namespace) -> None:
    """Print the tables."""
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_runtime.remote.store import is_address

    name, corpus = arguments.name, None
    if is_address(name):
        cache: ShownCache | None = _published(name)
    else:
        registry, root = open_registry(arguments)
        if "/" in name:  # a path, because names of data sets have no slash
            cache = _folder(Path(name))
        else:
            cache, corpus = _named(registry, root, name)
    name = cache.name if cache else name
    found = {"directory": cache.where, "meta": cache.meta} if cache else None
    if print_facts(arguments, {"name": name, "cache": found, "corpus": corpus}):
        return
    title = f"{name}  ({cache.kind}, {cache.where})" if cache else f"{name}  (a corpus, no cache yet)"
    display(title, style="bold")
    if cache is not None:
        _print_cache(cache.meta)
    if corpus is None:
        return
    from niels_cache_assets.artifacts.corpus_report import funnel

    display(f"\n{name}  (corpus, {corpus['directory']})", style="bold")
    numbers = ("documents", "size", "tokens, about")
    table = new_table("stage", *numbers, right=numbers)
    for stage in funnel(corpus["meta"], corpus["duplicates"], corpus["cuts"]):
        table.add_row(stage["stage"], f"{stage['documents']:,}", file_size(stage["bytes"]), f"{stage['estimated_tokens']:,}")
    _section(table)
    _print_dropped(corpus["meta"])
    _print_facts(corpus["meta"], without=_NOT_CORPUS_FACTS)
    _print_files(corpus["meta"])


def _named(registry: Registry, root: Path, name: str) -> tuple[ShownCache | None, dict[str, Any] | None]:
    """Return the cache and the corpus of a data set, one of which may be missing. The corpus has counts of its duplicates and cuts."""
    from niels_cache_assets.cli.context import find_cache, find_caches
    from niels_cache_assets.inspection.corpora import cut_counts, duplicate_counts, find_corpus
    from niels_cache_runtime.format.layout import META_NAME

    corpus, known = None, find_caches(registry, root)
    if (corpus_dir(root, name) / META_NAME).exists():
        directory, meta = find_corpus(registry, root, name)
        counts = {"duplicates": duplicate_counts(root, name, meta), "cuts": cut_counts(registry, root, name)}
        corpus = {"directory": directory, "meta": meta, **counts}
        if name not in known or not known[name].exists:
            return None, corpus
    location = find_cache(registry, root, name)
    return ShownCache(name, location.kind, location.directory, location.meta()), corpus


def _folder(directory: Path) -> ShownCache:
    from niels_cache_runtime.format.layout import META_NAME
    from niels_cache_runtime.format.meta import foreign_family, is_foreign, load_meta

    path = directory / META_NAME
    if not path.exists():
        raise _no_dataset(directory)
    meta = load_meta(path)
    kind = foreign_family(meta) if is_foreign(meta) else meta.get("kind")
    return ShownCache(meta.get("dataset_name") or directory.absolute().name, str(kind), directory, meta)


def _published(address: str) -> ShownCache:
    """Read the meta.json of a published cache, which takes two requests."""
    from niels_cache_runtime.remote.record import read_published
    from niels_cache_runtime.remote.store import open_store

    store = open_store(address)
    published = read_published(store)
    return ShownCache(published.name, published.family, store.address, published.meta)


def _no_dataset(path: Path) -> NielsCacheError:
    from niels_cache_runtime.format.layout import META_NAME
    from niels_cache_runtime.format.path_kind import describe

    found = describe(path)
    problem, advice = found.clause, "give the folder of a data set, or its name"
    if found.kind == "root":
        advice = f"type {PROGRAM} status --cache-dir {shlex.quote(str(path))}"
    elif found.dataset is not None:
        advice = f"type {PROGRAM} show {shlex.quote(str(found.dataset))}"
    elif found.kind == "nothing":
        problem = f"holds no {META_NAME}"
    return NielsCacheError(f"{path}: {problem}; {advice}")


def _print_cache(meta: Meta) -> None:
    from niels_cache_assets.facts.contents import budget_shortfall, counts_per_split
    from niels_cache_assets.facts.disjoint import SplitOverlap
    from niels_cache_runtime.format.meta import UNVERIFIABLE, is_foreign

    if is_foreign(meta):
        display(UNVERIFIABLE, style="yellow")
    if not meta.get("built", True):
        display("disabled: meta.json records that this data set was switched off, so nothing was built")
    _print_splits(meta)
    overlap = SplitOverlap.recorded(meta)
    for line in (budget_shortfall(meta), overlap and overlap.describe()):
        if line:
            display(f"\n{line}", style="yellow")
    _print_dropped(meta)
    _print_facts(meta, without=frozenset({*_NOT_FACTS, *counts_per_split(meta)}))
    _print_files(meta)


def _print_splits(meta: Meta) -> None:
    """Print one row per split, with a column for each count that meta.json has per split."""
    from niels_cache_assets.facts.contents import counts_per_split
    from niels_cache_runtime.format.layout import SPLITS

    by_split = counts_per_split(meta)
    if not by_split:
        return
    table = new_table("split", *by_split, right=by_split)
    for split in SPLITS:
        table.add_row(split, *(f"{values[split]:,}" for values in by_split.values()))
    _section(table)


def _print_dropped(meta: Meta) -> None:
    from niels_cache_assets.base.reasons import explain
    from niels_cache_assets.facts.drops import DropSummary, summarize_drops

    dropped: Mapping[str, int] = meta.get("dropped") or {}
    if dropped:
        table = new_table("dropped because", "count", "meaning", right=["count"], shrinking=["meaning"])
        for reason, count in sorted(dropped.items(), key=lambda item: -item[1]):
            table.add_row(reason, f"{count:,}", explain(reason))
        _section(table)
    summary = summarize_drops(meta)
    if summary != DropSummary():
        display()
    for line in summary.warnings:
        display(line, style="yellow")
    if summary.requested:
        display(summary.requested)


def _print_facts(meta: Meta, *, without: frozenset[str]) -> None:
    table = new_table("key", "value", shrinking=["value"])
    for key, value in meta.items():
        if key not in without and value not in ({}, None):
            table.add_row(key, _cell(value))
    _section(table)


def _print_files(meta: Meta) -> None:
    from niels_cache_assets.facts.contents import total_bytes

    files: dict[str, dict[str, Any]] = meta.get("files", {})
    if not files:
        return
    table = new_table("file", "size", "sha256", right=["size"], shrinking=["file", "sha256"])
    for path, entry in files.items():
        table.add_row(path, file_size(entry["bytes"]), entry["sha256"])
    _section(table, f"{format_count(len(files), 'file')}, {file_size(total_bytes(files))}")


def _section(table: Table, title: str = "") -> None:
    display()
    if title:
        display(title, style="bold")
    display(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)}" for key, item in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
