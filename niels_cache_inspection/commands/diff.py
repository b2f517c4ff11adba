"""The command `diff A B`, which prints the differences between two builds as tables. differences/ compares the builds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.wording import UNKNOWN, format_count, label
from niels_cache_assets.cli.command import DONE, FAILED, Command, integer_at_least, option
from niels_cache_assets.cli.console import DIFFERENCE_STYLE, display, mark, new_table, print_facts, styled
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.tokenizer.kinds import TextTokenizer
    from niels_cache_inspection.differences.documents import DocumentDifferences
    from niels_cache_inspection.differences.folders import DatasetDifferences, MetaDifference
    from niels_cache_inspection.differences.tokens import TokenPosition

SHOWN = 5

DIFFERENT = FAILED
_LONGEST_VALUE = 80  # a sha256 with its name is 71
_KINDS = {"a": "only in A", "b": "only in B", "moved": "in another split", "resized": "with another number of tokens"}
_UNRECORDED = (
    "the fingerprints differ, but every setting in meta.json is the same: a setting that meta.json does not record, "
    "the version of the code, or the corpus was different"
)


COMMAND = Command(
    options=(
        option("a", "A", "a cache root, or the folder of one data set"),
        option("b", "B", "another folder of the same kind"),
        option("-n", "N", f"documents to list of each kind (default: {SHOWN})", dest="count", type=integer_at_least(0), default=SHOWN),
    ),
    usage="A B ",
    description="""\
Compare two builds: show the settings that differ, the documents that only one build contains, and the
first token that differs, with its document and the surrounding text in both builds. Like diff(1), the
command exits with 0 if nothing differs, 1 if something differs, and 2 for wrong usage.

A and B are two cache roots, which are compared data set by data set, or two data sets of the same
family. A document is identified by its id, file and row at the source. Corpora, duplicates and indices
are not compared.""",
    examples="""\
  niels-cache diff cache old/cache
  niels-cache diff cache/pretrain/wikitext old/cache/pretrain/wikitext -n 20""",
    has_caches=False,
)


def run(arguments: argparse.Namespace) -> int:
    """Print the differences, and return DIFFERENT if there are any."""
    from niels_cache_assets.cli.progress import transfer_progress
    from niels_cache_inspection.differences.documents import SIDES
    from niels_cache_inspection.differences.folders import compare_pair, find_pairs

    a, b = Path(arguments.a), Path(arguments.b)
    pairs = find_pairs(a, b)
    found: list[DatasetDifferences] = []
    for name, (ours, theirs) in pairs.items():
        if ours is not None and theirs is not None:
            with transfer_progress(f"comparing {name}") as progress:
                found.append(compare_pair(name, ours, theirs, shown=arguments.count, progress=progress))
    alone = {side: [name for name, folders in pairs.items() if folders[other] is None] for side, other in (("a", 1), ("b", 0))}
    differ = any(alone.values()) or any(each.differ for each in found)
    facts = {
        "a": a,
        "b": b,
        "equal": not differ,
        "only_a": alone["a"],
        "only_b": alone["b"],
        "datasets": [_as_json(each) for each in found],
    }
    if print_facts(arguments, facts):
        return DIFFERENT if differ else DONE
    for letter, path in (("A", a), ("B", b)):
        display(f"{letter}  {path}")
    for side in SIDES:
        for name in alone[side]:
            display(f"\n{name}: only in {side.upper()}", style="yellow")
    for each in found:
        if each.differ:
            _print(each)
    if same := [each.name for each in found if not each.differ]:
        display(f"\nno difference: {', '.join(same)}")
    return DIFFERENT if differ else DONE


def _print(found: DatasetDifferences) -> None:
    display(f"\n{found.name}", style="bold")
    noun = "example" if found.name.startswith("sft/") else "document"
    if found.damage is not None:
        display(f"  cannot be compared: {found.damage}", style="yellow")
    _print_values("settings that differ", found.settings)
    if found.has_unrecorded_setting:
        display(f"  {_UNRECORDED}")
    _print_values("counts that differ", found.counts)
    if found.documents is not None and found.documents.differ:
        _print_documents(found.documents, noun)
    elif not (found.documents or found.damage) and found.tokens:
        display("  documents are not compared: one of the builds does not record their lineage")
    tokenizers = {side: _tokenizer_of(path) for side, path in (("a", found.a), ("b", found.b))}
    for split, tokens in found.tokens.items():
        if (difference := tokens["first_difference"]) is None:
            continue
        display(f"\n  first token of {split} that differs: number {difference.position:,} (from 0)")
        for side, position in (("a", difference.a), ("b", difference.b)):
            if position is None:
                display(f"    {side.upper()}: ends before it")
                continue
            display(f"    {side.upper()}: {_describe_position(position, noun)}")
            display(styled("       ", *_around(position, tokenizers[side])))


def _print_values(title: str, values: Sequence[MetaDifference]) -> None:
    if not values:
        return
    table = new_table(title, "A", "B", shrinking=["A", "B"])
    for each in values:
        table.add_row(label(each.key), _format_value(each.a), _format_value(each.b))
    display()
    display(table)


def _format_value(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:,}" if isinstance(value, int | float) else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _print_documents(found: DocumentDifferences, noun: str) -> None:
    from niels_cache_inspection.differences.documents import SIDES
    from niels_cache_runtime.format.layout import SPLITS

    display()
    table = new_table(f"{noun}s", *SPLITS, "not in the other", right=[*SPLITS, "not in the other"])
    for side in SIDES:
        table.add_row(side.upper(), *(f"{found.rows[side][split]:,}" for split in SPLITS), f"{found.counts[side]:,}")
    display(table)
    for kind, count in found.counts.items():
        first = found.first[kind]
        if count:
            display(f"  {format_count(count, noun)} {_KINDS[kind]}:")
        for row in first:
            place = f"{row['split']} {noun} {row['ordinal']:,}, {format_count(row['tokens'], 'token')}"
            display(f"    {row['file']} row {row['row']:,}, id {row['source_id']}: {place}")
        if count > len(first):
            display(f"    ... and {count - len(first):,} more")


def _describe_position(position: TokenPosition, noun: str) -> str:
    row = position.lineage
    source = f" ({row['file']} row {row['row']:,}, id {row['source_id']})" if row else ""
    inside = f"token {position.document_offset:,} of {position.document_tokens:,}"
    return f"{position.file} at {position.offset:,}: {noun} {position.document:,}{source}, {inside}"


def _around(position: TokenPosition, tokenizer: TextTokenizer | None) -> tuple[str, tuple[str, str], str]:
    """Return the surrounding text with the token marked, or token ids if the tokenizer is not known."""
    from niels_cache_assets.tokenizer.decoding import as_text

    parts = [position.before, [position.token], position.after]
    if tokenizer is None:
        before, token, after = (" ".join(map(str, part)) for part in parts)
        before, after = f"{before} ", f" {after}"
    else:
        before, token, after = (as_text(part, tokenizer, continues=bool(number)).replace("\n", "\\n") for number, part in enumerate(parts))
    return before, mark(token, DIFFERENCE_STYLE), after


def _tokenizer_of(folder: Path) -> TextTokenizer | None:
    """Return the tokenizer of the cache root if the data set was built with it."""
    from niels_cache_assets.tokenizer.decoding import open_tokenizer
    from niels_cache_runtime.format.layout import META_NAME
    from niels_cache_runtime.format.meta import read_meta

    root = folder.absolute().parent.parent
    try:
        tokenizer = open_tokenizer(root)
        used = read_meta(folder / META_NAME).get("tokenizer_sha256")
    except NielsCacheError:
        return None
    return tokenizer if tokenizer.model_sha256 == used else None


def _as_json(found: DatasetDifferences) -> dict[str, Any]:
    documents: dict[str, Any] | None = None
    if found.documents is not None:
        a, b, moved, resized = found.documents.counts.values()
        rows, first = found.documents.rows, found.documents.first
        documents = {"rows": rows, "only": {"a": a, "b": b}, "moved": moved, "resized": resized, "first": first}
    facts = {key: value for key, value in vars(found).items() if key not in ("a", "b")}
    return {**facts, "differ": found.differ, "documents": documents}
