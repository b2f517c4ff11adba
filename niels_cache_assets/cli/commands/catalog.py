"""The command `catalog`. It lists the data sets that ship with the package, and reads only the package."""

from __future__ import annotations

import argparse
from typing import Any

from niels_cache_assets.cli.command import Command, catalog_names
from niels_cache_assets.cli.console import PROGRAM, is_quiet, new_table, output, print_json
from niels_cache_assets.cli.exit_codes import DONE


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="print the tables of these data sets, to paste into niels_cache.toml")


COMMAND = Command(
    usage="[NAME ...] ",
    description="""\
List the data sets that ship with niels-cache: a short description, the approximate download size, the
licence that upstream states, and the origin. A data set is built only if niels_cache.toml names it, or
sets profile = "default". With names, print their tables in the form of that file.""",
    examples="""\
  niels-cache catalog
  niels-cache catalog wikitext                  the table of wikitext
  niels-cache catalog dolly15k oasst1 --json""",
    add_options=_add_options,
    offers={"names": catalog_names},
    has_caches=False,
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    from niels_cache_assets.config.shipped import catalog
    from niels_cache_assets.own_data.new_config import catalog_table

    tables = {name: catalog_table(name) for name in arguments.names or catalog()}
    if arguments.json:
        print_json({"data_sets": [{**_entry(name), "table": table} for name, table in tables.items()]})
        return DONE
    if arguments.names:
        print("\n" + "\n\n".join(tables.values()))  # the user may append the output to a file that lacks a final newline
        return DONE
    table = new_table(
        "data set", "family", "description", "download", "licence", "from", shrinking=["description", "download", "licence", "from"]
    )
    for name in tables:
        table.add_row(*_entry(name).values())
    console = output()
    console.print(table)
    if not is_quiet():
        console.print(
            f"\n{PROGRAM} init --from NAME ... writes a niels_cache.toml with the data sets that you name; "
            f"{PROGRAM} catalog NAME prints one table"
            " to add to your file",
            soft_wrap=True,
        )
    return DONE


def _entry(name: str) -> dict[str, Any]:
    from niels_cache_assets.config.shipped import ABOUT, catalog
    from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES

    family, table = catalog()[name]
    about = ABOUT[name]
    fields = (PRETRAIN_SOURCES if family == "pretrain" else SFT_SOURCES)[table["source"]].model_fields
    origin = fields["dataset"].default if "dataset" in fields else "this machine"
    config = fields["config"].default if "config" in fields else None
    return {
        "name": name,
        "family": family,
        "what": about.what,
        "download": about.size,
        "licence": about.licence,
        "from": f"{origin} ({config})" if config else origin,
    }
