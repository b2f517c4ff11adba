"""The reasons of dropped documents, for the output of `clean` and `rejected`. This module prints counts, and examples with the measured
value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from niels_cache_assets.cli.command import refuse
from niels_cache_assets.cli.console import excerpt, new_table, title_of
from niels_cache_assets.show.wording import share_of

if TYPE_CHECKING:
    from rich.console import Console

Example = Mapping[str, Any]  # a row of corpus.layout.REJECTED


def check_reason(reason: str, known: Iterable[str]) -> None:
    """Raise NielsCacheError for an unknown reason, and suggest the nearest reason. A reason without documents is valid."""
    from niels_cache_assets.cleaning.filters import REASONS

    choices = list(dict.fromkeys([*known, *REASONS]))
    if reason not in choices:
        refuse("--reason", "no reason", reason, choices)


def examples_by_reason(rows: Iterable[Example]) -> dict[str, list[Example]]:
    """Return the examples grouped by reason, in order."""
    examples: dict[str, list[Example]] = {}
    for row in rows:
        examples.setdefault(row["reason"], []).append(row)
    return examples


def print_reasons(console: Console, *, kept: int, by_cleaning: Mapping[str, int], by_source: Mapping[str, int]) -> None:
    """Print the number of kept documents, and the number of dropped documents for each reason.

    `by_source`: the number of documents for each reason that the source dropped while reading, before the cleaning chain.
    """
    given = kept + sum(by_cleaning.values()) + sum(by_source.values())
    table = new_table("", "documents", "share", right=frozenset({"documents", "share"}))
    table.add_row("kept", f"{kept:,}", share_of(kept, given), style="bold")
    named = [*by_cleaning.items(), *((f"{reason} (when read)", count) for reason, count in by_source.items())]
    for reason, count in sorted(named, key=lambda item: (-item[1], item[0])):
        table.add_row(reason, f"{count:,}", share_of(count, given))
    console.print(table)


def print_examples(console: Console, examples: Mapping[str, Sequence[Example]], *, count: int, reason: str | None = None) -> None:
    """Print `count` examples of each reason, or only of `reason`, with the measured value. They are spread evenly over all examples."""
    from niels_cache_assets.cleaning.counting import EXCERPT_CHARACTERS  # an example has no more text than this

    for row in chosen_examples(examples, count=count, reason=reason):
        console.print(f"\n--- {_heading(row)}", style="bold", soft_wrap=True)
        console.print(excerpt(row["excerpt"], EXCERPT_CHARACTERS))


def chosen_examples(examples: Mapping[str, Sequence[Example]], *, count: int, reason: str | None = None) -> list[Example]:
    """Return `count` examples of each reason, or only of `reason`, ordered by reason."""
    return [row for name in sorted(examples) if reason in (None, name) for row in spread(examples[name], count)]


def spread(rows: Sequence[Example], count: int) -> list[Example]:
    """Return `count` of the rows at even distances. The choice is always the same."""
    count = min(count, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]


def _heading(row: Example) -> str:
    """Return a heading such as `list_page 0.734: Title (articles.jsonl, row 12)`."""
    from niels_cache_assets.tokenizer.decoding import spell_controls

    title = spell_controls(row["title"]) if row["title"] else None
    value = "" if row["value"] is None else f" {row['value']:.4g}"
    return f"{row['reason']}{value}: {title_of(title, row['file'], row['row'])}"
