"""Options and help of `catalog`."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="print the tables of these instead, for niels_cache.toml")


COMMAND = Command(
    name="catalog",
    module="catalog",
    usage="[NAME ...] ",
    summary="list the data sets that ship with niels-cache",
    description="""\
List the data sets that ship with niels-cache: what each is, about how much is downloaded, its licence
as upstream states it, and where it comes from. None is built unless niels_cache.toml names it, or says
profile = "default". With names, print their tables as a file has them.""",
    examples="""\
  niels-cache catalog
  niels-cache catalog wikitext                  its table
  niels-cache catalog dolly15k oasst1 --json""",
    add_options=_add_options,
    has_caches=False,
    has_json=True,
)
