"""`catalog`: the data sets that ship with the package. Reads nothing but the package."""

from __future__ import annotations

import argparse
from typing import Any

from niels_cache_assets.cli.console import PROGRAM, is_quiet, new_table, output, print_json
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.own_data.new_config import catalog_table
from niels_cache_assets.shipped import ABOUT, catalog
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES


def run(arguments: argparse.Namespace) -> int:
    tables = {name: catalog_table(name) for name in arguments.names or catalog()}
    if arguments.json:
        print_json({"data_sets": [{**_entry(name), "table": table} for name, table in tables.items()]})
        return DONE
    if arguments.names:
        print("\n" + "\n\n".join(tables.values()))  # the file that it is appended to may not end with a newline
        return DONE
    table = new_table(
        "data set", "family", "what it is", "download", "licence", "from", shrinking=["what it is", "download", "licence", "from"]
    )
    for name in tables:
        table.add_row(*_entry(name).values())
    console = output()
    console.print(table)
    if not is_quiet():
        console.print(
            f"\n{PROGRAM} init --from NAME ... writes a niels_cache.toml with some of them; {PROGRAM} catalog NAME prints a table to add",
            soft_wrap=True,
        )
    return DONE


def _entry(name: str) -> dict[str, Any]:
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
