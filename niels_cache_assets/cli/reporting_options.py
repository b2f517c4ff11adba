"""Options and help of `report`."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import Command


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="the page to write (default: reports/cache.html below the cache directory)")
    parser.add_argument("--open", action="store_true", help="show the page in the browser")


COMMAND = Command(
    name="report",
    module="report",
    summary="write a page about everything that is built, with plots",
    description="""\
Write one HTML page about everything that is built: status, counts, size, sha256, age of the upstream
revision, results of checks, plots, and what a run over the configured blends would read of each data
set ([blend.NAME], else all pretrain sets by size; [reports] plans it). The page holds all it shows:
send it to anybody. Ages and checks are what Dagster recorded (DAGSTER_HOME); nothing has to run, no
file is hashed, and no upstream is asked.

With --json the same as data, without plots; the page is then written only where --out names it.""",
    examples="""\
  niels-cache report --open             the page, in the browser
  niels-cache report --out caches.html
  niels-cache report --json             for programs: sizes, hashes, checks, shares, epochs""",
    add_options=_add_options,
    has_json=True,
)
