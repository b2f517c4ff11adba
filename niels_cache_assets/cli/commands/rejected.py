"""`rejected NAME`: what cleaning took out of a corpus, by reason, with the examples that were kept. `clean` prints in the same way."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from niels_cache_assets.cli.console import new_table, output, print_json
from niels_cache_assets.cli.context import open_registry
from niels_cache_assets.cli.corpora import find_corpus
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.cli.overrides import WHERE
from niels_cache_assets.cli.pairs import excerpt
from niels_cache_assets.corpus.layout import REJECTED, REJECTED_NAME
from niels_cache_assets.corpus.reading import open_documents
from niels_cache_assets.corpus.report import documents_given
from niels_cache_assets.decoding import spell_controls
from niels_cache_assets.registry import refuse_choice
from niels_cache_assets.wording import counted, share_of
from niels_cache_runtime.errors import NielsCacheError

Example = Mapping[str, Any]  # a row of corpus.layout.REJECTED


def run(arguments: argparse.Namespace) -> int:
    registry, root = open_registry(arguments)
    if arguments.count < 0:
        raise NielsCacheError(f"{WHERE}: -n must be at least 0")
    directory, meta = find_corpus(registry, root, arguments.name)
    by_source: Counter[str] = Counter(meta["dropped_by_source"])
    dropped: Counter[str] = Counter(meta["dropped"])
    if arguments.reason is not None:
        check_reason(arguments.reason, dropped)
    with open_documents(directory / REJECTED_NAME) as parquet:
        examples = examples_by_reason(parquet.read(columns=list(REJECTED)).to_pylist())
    if arguments.json:
        print_json(
            {
                "name": arguments.name,
                "read": documents_given(meta),
                "kept": meta["documents"]["kept"],
                "dropped": dropped if arguments.reason is None else {arguments.reason: dropped[arguments.reason]},
                "examples": chosen_examples(examples, count=arguments.count, reason=arguments.reason),
            }
        )
        return DONE
    console = output()
    kept, given = meta["documents"]["kept"], documents_given(meta)
    console.print(f"{arguments.name}: {counted(given, 'document')} read, {kept:,} kept", style="bold", soft_wrap=True)
    if arguments.reason is None:
        print_reasons(console, kept=kept, by_cleaning=dropped - by_source, by_source=by_source)
    else:
        count = dropped[arguments.reason]
        console.print(f"{arguments.reason}: {counted(count, 'document')}, {share_of(count, given)} of those read", soft_wrap=True)
        if count and arguments.reason not in examples:
            console.print("it went when the source was read, of which no examples are kept", style="dim")
    print_examples(console, examples, count=arguments.count, reason=arguments.reason)
    return DONE


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


def print_reasons(console: Console, *, kept: int, by_cleaning: Mapping[str, int], by_source: Mapping[str, int]) -> None:
    """The counter report: what is kept, and every reason by its count; `by_source` were dropped when they were read, before the chain."""
    given = kept + sum(by_cleaning.values()) + sum(by_source.values())
    table = new_table("", "documents", "share", right=frozenset({"documents", "share"}))
    table.add_row("kept", f"{kept:,}", share_of(kept, given), style="bold")
    named = [*by_cleaning.items(), *((f"{reason} (when read)", count) for reason, count in by_source.items())]
    for reason, count in sorted(named, key=lambda item: (-item[1], item[0])):
        table.add_row(reason, f"{count:,}", share_of(count, given))
    console.print(table)


def print_examples(console: Console, examples: Mapping[str, Sequence[Example]], *, count: int, reason: str | None = None) -> None:
    """`count` examples of each reason, or of one, spread over those there are, with what was measured."""
    from niels_cache_assets.cleaning.counting import EXCERPT_CHARACTERS  # what is kept of a document: all of it is shown

    for row in chosen_examples(examples, count=count, reason=reason):
        console.print(f"\n--- {_heading(row)}", style="bold", soft_wrap=True)
        console.print(excerpt(row["excerpt"], EXCERPT_CHARACTERS))


def chosen_examples(examples: Mapping[str, Sequence[Example]], *, count: int, reason: str | None = None) -> list[Example]:
    """By reason, `count` of each or of that one."""
    return [row for name in sorted(examples) if reason in (None, name) for row in spread(examples[name], count)]


def spread(rows: Sequence[Example], count: int) -> list[Example]:
    """`count` of the rows, at even distances: the same ones every time."""
    count = min(count, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]


def _heading(row: Example) -> str:
    """`list_page 0.734: Title (articles.jsonl, row 12)`."""
    value = "" if row["value"] is None else f" {row['value']:.4g}"
    place = f"{row['file']}, row {row['row']:,}"
    return f"{row['reason']}{value}: {spell_controls(row['title'])} ({place})" if row["title"] else f"{row['reason']}{value}: {place}"
