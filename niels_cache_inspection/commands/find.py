"""The command `find TEXT`, which prints where a text or tokens are in the caches of a root, and in published ones.

find/places.py searches. This module reads what to search for, and prints the result.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.wording import format_count
from niels_cache_assets.cli.command import DATA_SETS, WHERE, Command, integer_at_least, option, switch, whole_number
from niels_cache_assets.cli.console import display, mark, new_table, print_json, styled
from niels_cache_inspection.commands.trace import name_and_folder
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from rich.table import Table

    from niels_cache_assets.project.registry import Registry
    from niels_cache_inspection.find.places import Place, Search
    from niels_cache_inspection.find.steps import PlaceRead, RunSteps

_HIT_STYLE = "bold reverse"
_SHOWN_STEPS = 5  # of a place


def _ids(text: str) -> list[int]:
    return [whole_number(each) for each in text.replace(",", " ").split()]


COMMAND = Command(
    options=(
        option("text", "TEXT", "the text to find, in any tokenization", nargs="?"),
        option("--file", "FILE", "find the text of a file, without line breaks at its end"),
        option("--tokens", "IDS", "find consecutive tokens, such as '17 3 9'", type=_ids),
        switch("--exhaustive", "search all bytes of all tokens, also where certain tokens of the text lead to it"),
        option("--only", "NAME", "search only these data sets", nargs="+", default=[]),
        option(
            "--published",
            "ADDRESS",
            "also search published caches: those at these addresses, or without an address those below [publish] address",
            nargs="*",
        ),
        option("--state", "FILE", "show which steps read each shown place, by these saved loader states", nargs="+", dest="states"),
        option(
            "--source",
            "NAME=FOLDER",
            "new folder of a split that was moved after training, with --state",
            nargs="+",
            type=name_and_folder,
            action="extend",
            default=[],
            dest="sources",
        ),
        option("--limit", "N", "places to show; all are counted (default: 20)", type=integer_at_least(0), default=20),
    ),
    usage="TEXT ",
    description="""\
Find a text in all caches of the cache directory: how often it is there, and for each place the data set,
split, document, id, file and row at the source, and an excerpt. Parts of data sets are searched too. With
[build] store, the caches in the store are searched.

The text is compared with the bytes that the tokens stand for, because the tokens of a phrase differ with
what stands around it. Where some tokens of the text are certain in any context, they lead to the
candidates; otherwise all tokens are decoded. The column `searched by` says which way was used:

  candidates    by certain tokens; finds every place in tokens that the tokenizer made
  index         the same, from the index of the cache ([find] index in niels_cache.toml)
  scan          all tokens were decoded, or compared
  skipped       not searched, for the reason in the column `note`

With --state, the steps, ranks and rows of a run that read each place are shown, and the next one. Give
several states if a run was restarted or branched: what they say is joined.

Upper and lower case differ. A place never crosses the border of a document or message. Places may
overlap. Of a published cache, one or two token files are downloaded at a time.""",
    examples="""\
  niels-cache find "the mitochondria is the powerhouse"      every place in every cache
  niels-cache find --file letter.txt --exhaustive            the text of a file, in all bytes
  niels-cache find --tokens '17 3 9' --only wikitext --json  consecutive tokens in one data set
  niels-cache find "a phrase" --published s3://bucket/caches/wikitext  also in a published cache
  niels-cache find "a phrase" --state checkpoint.pt          also the steps that read it""",
    offers={"only": DATA_SETS},
)


def run(arguments: argparse.Namespace) -> None:
    """Search, and print the places."""
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.cli.progress import transfer_steps
    from niels_cache_inspection.find.places import caches_of, find_text, find_tokens
    from niels_cache_inspection.find.steps import steps_of_documents

    given = [name for name in ("text", "file", "tokens") if getattr(arguments, name) is not None]
    if len(given) != 1:
        problem = "nothing to find" if not given else f"{' and '.join(given)} are given"
        raise NielsCacheError(f"{WHERE}: {problem}; give a TEXT, --file or --tokens")
    text = None if arguments.tokens is not None else _text(arguments)
    registry, root = open_registry(arguments)
    caches = caches_of(root, [*_addresses(registry, arguments)], only=arguments.only)
    with transfer_steps("searching") as progress:
        if text is None:
            search = find_tokens(caches, arguments.tokens, limit=arguments.limit, progress=progress)
        else:
            search = find_text(caches, text, exhaustive=arguments.exhaustive, limit=arguments.limit, progress=progress)
        places = list(search)
    steps = steps_of_documents(arguments.states, places, dict(arguments.sources)) if arguments.states else None
    if arguments.json:
        wanted = {"tokens": arguments.tokens} if text is None else {"text": text.decode()}
        found = {"count": search.count, "complete": search.is_complete, "places": places, "searched": search.searched}
        print_json({**wanted, **found, **({"steps": _steps_json(steps)} if steps else {})})
        return
    for number, place in enumerate(places):
        _print_place(place)
        if steps is not None:
            display(_steps_of(steps, number), style="dim")
    display(_table(search))
    display()
    display(_summary(search, shown=len(places)), style="bold")
    if steps is not None:
        display(f"({steps.limit})", style="dim")


def _text(arguments: argparse.Namespace) -> bytes:
    if arguments.file is None:
        content = arguments.text.encode(errors="surrogateescape")  # the bytes that the shell gave
    else:
        try:
            content = Path(arguments.file).read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise NielsCacheError(f"{arguments.file}: cannot be read: {error.strerror or error}; correct --file") from error
    return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")  # as sources read text


def _addresses(registry: Registry, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the addresses of published caches to search: those in the store, and those of --published."""
    from niels_cache_assets.facts.published import address_in_store
    from niels_cache_runtime.format.layout import FAMILIES
    from niels_cache_runtime.remote.record import read_record
    from niels_cache_runtime.remote.store import MissingError, open_store

    yield from arguments.published or ()
    below = registry.publish.address
    if arguments.published == [] and below is None:
        raise NielsCacheError(f"{WHERE}: --published: there is no [publish] address; give the addresses of data sets")
    for family in FAMILIES:
        for name in registry.datasets(family):
            if arguments.only and name not in arguments.only:
                continue
            stored = address_in_store(registry, family, name)
            for address in (stored, f"{below}/{family}/{name}" if arguments.published == [] else None):
                if address is not None:
                    with suppress(MissingError):  # not built or not published yet
                        read_record(open_store(address))
                        yield address


def _print_place(place: Place) -> None:
    from niels_cache_assets.tokenizer.decoding import spell_controls

    unit = "document" if place.family == "pretrain" else "example"
    origin = "" if place.file is None or place.row is None else f": {place.file}, row {place.row:,}, id {place.source_id}"
    about = "".join(f", {each}" for each in (place.side, place.role) if each)
    where = f"{place.address or place.dataset} {place.split}, {unit} {place.document:,}, tokens {place.start:,}-{place.end - 1:,}"
    display(spell_controls(f"--- {where}{about}{origin}"), style="bold")
    begin, end = place.hit
    before, hit, after = (spell_controls(part) for part in (place.excerpt[:begin], place.excerpt[begin:end], place.excerpt[end:]))
    display(styled(before, mark(hit, _HIT_STYLE), after))


def _steps_json(steps: RunSteps) -> dict[str, Any]:
    return {
        "rows": [row._asdict() for row in steps.rows],
        "states": steps.states,
        "known": sorted(steps.known),
        "limit": steps.limit,
    }


def _steps_of(steps: RunSteps, number: int) -> str:
    """Return a line about the rows that read a place, such as `read at step 3 (epoch 0, rank 1, row 5); next at step 90 (...)`."""
    if number not in steps.known:
        return "no run of these states reads it"
    own = [row for row in steps.rows if row.place == number]
    runs = len({state.run for state in steps.states}) > 1

    def spell(row: PlaceRead) -> str:
        return f"step {row.step:,} ({f'run {row.run}, ' if runs else ''}epoch {row.epoch}, rank {row.rank}, row {row.row})"

    read, coming = ([spell(row) for row in own if row.is_next is after] for after in (False, True))
    more = f" and {len(read) - _SHOWN_STEPS:,} more" if len(read) > _SHOWN_STEPS else ""
    before = f"read at {', '.join(read[:_SHOWN_STEPS])}{more}" if read else "not read yet"
    return f"{before}; next at {', '.join(coming)}" if coming else before


def _table(search: Search) -> Table:
    has_notes = any(each.note for each in search.searched)
    columns = ["data set", "split", "tokens", "searched by", "places", "documents", *(["note"] if has_notes else [])]
    table = new_table(*columns, right=("tokens", "places", "documents"), shrinking=("note",))
    for each in search.searched:
        counts = (f"{each.places:,}", f"{each.documents:,}") if each.way != "skipped" else ("-", "-")
        table.add_row(
            each.address or each.dataset, each.split, f"{each.tokens:,}", each.way, *counts, *([each.note or ""] if has_notes else [])
        )
    return table


def _summary(search: Search, *, shown: int) -> str:
    more = f"; {shown:,} are shown, and --limit shows more" if shown < search.count else ""
    gaps = "" if search.is_complete else "; not every cache was searched"
    return f"{format_count(search.count, 'place')}{more}{gaps}"
