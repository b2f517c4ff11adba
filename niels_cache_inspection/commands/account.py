"""The command `account`, which counts tokens by source, domain, licence, language and year, as planned and as read."""

from __future__ import annotations

import argparse
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.cli.command import DATA_SETS, Command, option, raise_invalid, switch
from niels_cache_assets.cli.console import diagnostics, display, new_table, print_json, warnings

if TYPE_CHECKING:
    from niels_cache_inspection.account.ledger import Ledger
    from niels_cache_inspection.account.splits import AccountedCache
    from niels_cache_runtime.format.meta import Meta

_SHOWN = 5


def _pair(form: str) -> Any:
    def parse(text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise argparse.ArgumentTypeError(f"{text!r} is not {form}")
        return name, value

    return parse


def _several(name: str, metavar: str, help: str, **settings: Any) -> Any:
    return option(name, metavar, help, nargs="+", action="extend", default=[], **settings)


COMMAND = Command(
    options=(
        option("--out", "DIR", "folder of the account", required=True),
        _several("--only", "NAME", "count only these data sets, and what runs have read"),
        _several("--state", "FILE", "JSON file or torch checkpoint with the state of a loader: also count what training has read"),
        _several(
            "--source", "NAME=FOLDER", "new folder of a split that was moved after training", type=_pair("NAME=FOLDER"), dest="sources"
        ),
        _several(
            "--column",
            "DIMENSION=COLUMN",
            "kept column of domain, license, language or year, such as language=metadata.lang",
            type=_pair("DIMENSION=COLUMN"),
            dest="columns",
        ),
        switch("--open", "open the page in a browser"),
    ),
    groups={
        "descriptions in Croissant": (
            _several("--into", "ADDRESS", "also write the description of this published cache, beside it"),
            option("--license", "TEXT", "licence of the caches (default: the kept licences of their documents)"),
            option("--date", "DATE", "date of the caches, such as 2026-11-30 (default: when they were built)"),
        ),
    },
    usage="--out DIR ",
    description="""\
Count the tokens of all caches by source, domain, licence, language and year, and, with --state, those
that training has read. Unique tokens, repeats, special tokens, padding and masked targets have columns
of their own, and all sums equal lineage, meta.json and the states. The values of a document come from
the columns that `keep` has kept, such as keep = ["url", "license", "language"]; other documents count
as unknown.

DIR gets account.json, CSV tables, a page with a draft of figures for a public summary of training
content, and a description of each cache in Croissant. Nothing is downloaded.""",
    examples="""\
  niels-cache account --out account                                     all caches, as planned
  niels-cache account --out account --state checkpoint.pt               and as a run has read them
  niels-cache account --out account --into s3://bucket/caches/wikitext  a description beside a published cache""",
    offers={"only": DATA_SETS},
)


def run(arguments: argparse.Namespace) -> None:
    """Write the account."""
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_inspection.account.croissant import describe_local, parse_date, publish_description
    from niels_cache_inspection.account.dimensions import DIMENSIONS, Dimensions
    from niels_cache_inspection.account.ledger import make_ledger
    from niels_cache_inspection.account.output import PAGE_NAME, facts_of, write_account, write_file
    from niels_cache_inspection.account.runs import runs_of

    registry, root = open_registry(arguments)
    published = parse_date(arguments.date) if arguments.date else None
    columns: dict[str, list[str]] = {}
    for dimension, column in arguments.columns:
        if dimension not in DIMENSIONS:
            raise_invalid("--column", "no dimension", dimension, DIMENSIONS)
        columns.setdefault(dimension, []).append(column)
    caches = _caches(registry, root, arguments.only, allow_none=bool(arguments.state))
    runs = runs_of(arguments.state, dict(arguments.sources))
    with diagnostics().status("counting") as status:  # shown only in a terminal
        ledger = make_ledger(caches, runs, Dimensions(columns), progress=lambda name: status.update(f"counting {name}"))
    folder = Path(arguments.out).expanduser()
    facts = facts_of(ledger, caches)
    written = write_account(folder, facts, ledger)

    def licenses(meta: Meta) -> Sequence[str]:
        own = ledger.licenses.get(str(meta.get("content_sha256")), [])
        return [arguments.license] if arguments.license else own

    for cache in caches:
        path = folder / "croissant" / cache.family / f"{cache.name}.json"
        write_file(path, describe_local(cache, path.parent, licenses=licenses(cache.meta), published=published))
        written.append(path)
    for path in {*(folder / "croissant").glob("*/*.json")} - {*written}:  # of an earlier account with other caches
        path.unlink()
    descriptions = [publish_description(address, licenses=licenses, published=published) for address in arguments.into]
    if arguments.json:
        print_json(facts)
    else:
        _print_account(ledger, caches)
        display(f"\n{folder / PAGE_NAME}: the page, and {len(written) - 1} more files in {folder}")
        for description in descriptions:
            display(f"{description}: written")
    if arguments.open and not webbrowser.open((folder / PAGE_NAME).absolute().as_uri()):
        warnings().print(f"no browser was found; open {(folder / PAGE_NAME).absolute()} yourself")


def _caches(registry: Any, root: Path, only: Sequence[str], *, allow_none: bool) -> list[AccountedCache]:
    """Return the finished data sets of the root, or those of these names."""
    from niels_cache_assets.cli.context import find_cache, find_caches
    from niels_cache_inspection.account.splits import AccountedCache
    from niels_cache_runtime.errors import NielsCacheError
    from niels_cache_runtime.format.meta import check_location

    if only:
        found = [find_cache(registry, root, name, kinds=("pretrain", "sft")) for name in dict.fromkeys(only)]
    else:
        found = [location for location in find_caches(registry, root).values() if location.kind != "tokenizer" and location.exists]
    opened = [AccountedCache.open(location.directory, name=location.name) for location in found]
    caches = [cache for cache in opened if cache.meta.get("built", True)]
    for cache in caches:
        check_location(cache.meta, cache.directory)
    if not caches and not allow_none:
        raise NielsCacheError(f"{root}: has no finished data set; build one, pull one, or correct --cache-dir")
    return caches


def _print_account(ledger: Ledger, caches: Sequence[AccountedCache]) -> None:
    """Print the sums of each source, and the largest values of the other dimensions."""
    from niels_cache_inspection.account.ledger import SECTIONS, TABLES

    for section in SECTIONS:
        tables = ledger.tables[section]
        if not len(tables["source"]):
            continue
        display(f"{'as read' if section == 'read' else f'{section}, as planned'}", style="bold")
        numbers = ("share", "tokens", "unique", "repeats", "special", "added, padding", "masked targets")
        table = new_table("", *numbers, right=numbers, shrinking=[""])
        whole = sum(figures["tokens"] for _, figures in tables["source"].rows())
        for name in TABLES:
            rows = list(tables[name].rows())
            if name != "source" and section == "val":
                continue
            table.add_row(f"by {name}" if len(rows) <= _SHOWN or name == "source" else f"by {name}: {_SHOWN} of {len(rows):,}", style="dim")
            for value, figures in rows if name == "source" else rows[:_SHOWN]:
                added = figures["fim"] + figures["bos"] + figures["padding"]
                counts = (figures["tokens"], figures["unique"], figures["repeats"], figures["special"], added, figures["masked"])
                table.add_row(f"  {value}", f"{figures['tokens'] / whole:.2%}", *(f"{count:,}" if count else "-" for count in counts))
        display(table)
        display()
