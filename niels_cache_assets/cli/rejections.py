"""`rejected NAME`: what cleaning took out of a corpus, by reason, with the examples that were kept. `clean` prints in the same way."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from niels_cache_assets.cli.console import counted, new_table, output
from niels_cache_assets.cli.context import open_registry
from niels_cache_assets.cli.corpora import find_corpus, share_of
from niels_cache_assets.cli.decoding import spell_controls
from niels_cache_assets.cli.overrides import WHERE
from niels_cache_assets.cli.pairs import excerpt
from niels_cache_assets.corpus.layout import REJECTED, REJECTED_NAME
from niels_cache_assets.corpus.reading import open_documents
from niels_cache_assets.registry import refuse_choice
from niels_cache_runtime.errors import NielsCacheError

Example = Mapping[str, Any]  # a row of corpus.layout.REJECTED

EXCERPT_CHARACTERS = 500


def run(arguments: argparse.Namespace) -> int:
    registry, root = open_registry(arguments)
    if arguments.count < 0:
        raise NielsCacheError(f"{WHERE}: -n must be at least 0")
    directory, meta = find_corpus(registry, root, arguments.name)
    dropped: dict[str, int] = meta["dropped"]
    if arguments.reason is not None and arguments.reason not in dropped:
        check_reason(arguments.reason, dropped)
    with open_documents(directory / REJECTED_NAME) as parquet:
        examples = examples_by_reason(parquet.read(columns=list(REJECTED)).to_pylist())
    console = output()
    documents = meta["documents"]
    read = documents["read"]
    console.print(f"{arguments.name}: {counted(read, 'document')} read, {documents['kept']:,} kept", style="bold", soft_wrap=True)
    if arguments.reason is None:
        print_reasons(console, kept=documents["kept"], read=read, dropped=dropped, by_source=meta["dropped_by_source"])
    else:
        count = dropped.get(arguments.reason, 0)
        console.print(f"{arguments.reason}: {counted(count, 'document')}, {share_of(count, read)} of those read", soft_wrap=True)
    print_examples(console, examples, count=arguments.count, reason=arguments.reason)
    return 0


def check_reason(reason: str, known: Iterable[str]) -> None:
    """An unknown reason is an error with the nearest one; one that took nothing is fine."""
    from niels_cache_assets.cleaning.filters import REASONS

    choices = list(dict.fromkeys([*known, *REASONS]))
    if reason not in choices:
        refuse_choice(f"{WHERE}: --reason", "no reason", reason, choices)


def examples_by_reason(rows: Iterable[Example]) -> dict[str, list[Example]]:
    examples: dict[str, list[Example]] = {}
    for row in rows:
        examples.setdefault(row["reason"], []).append(row)
    return examples


def print_reasons(console: Console, *, kept: int, read: int, dropped: Mapping[str, int], by_source: Collection[str]) -> None:
    """The counter report: what is kept, and every reason by its count. `by_source` were dropped while reading, before the chain."""
    table = new_table("", "documents", "share", right=frozenset({"documents", "share"}))
    table.add_row("kept", f"{kept:,}", share_of(kept, read), style="bold")
    for reason, count in sorted(dropped.items(), key=lambda item: (-item[1], item[0])):
        if reason not in by_source:
            table.add_row(reason, f"{count:,}", share_of(count, read))
    for reason in sorted(by_source):
        table.add_row(f"{reason} (when read)", f"{dropped[reason]:,}", "-", style="dim")
    console.print(table)


def print_examples(console: Console, examples: Mapping[str, Sequence[Example]], *, count: int, reason: str | None = None) -> None:
    """`count` examples of each reason, or of one, spread over those there are."""
    for name, rows in sorted(examples.items(), key=lambda item: item[0]):
        if reason is not None and name != reason:
            continue
        shown = spread(rows, count)
        for row in shown:
            console.print(f"\n--- {_heading(row)}", style="bold", soft_wrap=True)
            console.print(excerpt(row["excerpt"], EXCERPT_CHARACTERS))


def spread(rows: Sequence[Example], count: int) -> list[Example]:
    """`count` of the rows, at even distances: the same ones every time."""
    count = min(count, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]


def _heading(row: Example) -> str:
    """`list_page 0.734: Title (articles.jsonl, row 12)`."""
    value = "" if row["value"] is None else f" {row['value']:.4g}"
    place = f"{row['file']}, row {row['row']:,}"
    return f"{row['reason']}{value}: {spell_controls(row['title'])} ({place})" if row["title"] else f"{row['reason']}{value}: {place}"
