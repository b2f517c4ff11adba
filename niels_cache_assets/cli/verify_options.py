"""Options and help of `verify`."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command
from niels_cache_assets.cli.overrides import whole_number


def _add_verify_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="data sets, tokenizer or duplicates; all of the cache directory where none is named"
    )
    parser.add_argument("--quick", action="store_true", help="compare names and sizes only; read no file")
    parser.add_argument("--threads", type=whole_number, metavar="N", help="files to read at a time (default: as many as there are cores)")
    parser.add_argument(
        "--against-dagster",
        action="store_true",
        help="also compare each meta.json with the hash that Dagster recorded (DAGSTER_HOME): finds changes whose hashes were made anew",
    )


COMMAND = Command(
    name="verify",
    module="verify",
    usage="[NAME ...] ",
    summary="hash every file again and check the invariants of the format",
    description="""\
Hash every file again and check the invariants of the format: one line for each finding, a note for
what harms nothing, and a table of the folders with what came of each.

unverifiable: a cache whose meta.json another program wrote has no hashes to compare with. A note says
so, and only what that meta.json says of the tokens is checked; the exit code counts findings alone.
With --json, `unverifiable` lists such caches: a script that wants none tests that it is empty.

not verified: reports/, unfinished builds (.NAME.partial) and locks, other names with a leading dot,
Dagster's home (.dagster) with its logs, exports, and whatever else lies in the cache directory""",
    examples="""\
  niels-cache verify                    everything below the cache directory, corpora and indices too
  niels-cache verify wikitext dolly15k  two data sets, and their corpora
  niels-cache verify --quick            names and sizes only: no file is read
  niels-cache verify --against-dagster  also against what Dagster recorded when it built them

training machines without this package's dependencies: python -m niels_cache_runtime.verify cache/""",
    add_options=_add_verify_options,
    has_json=True,
)
