"""The command `report`. It writes one HTML page, or JSON, about all caches. niels_cache_assets.show.reports makes the content."""

from __future__ import annotations

import argparse
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from niels_cache_assets.cli.command import Command
from niels_cache_assets.cli.console import diagnostics, output, print_json, warnings
from niels_cache_assets.cli.exit_codes import DONE

if TYPE_CHECKING:
    from niels_cache_assets.config.registry import Registry
    from niels_cache_assets.show.reports.cache import CacheReport


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="the page to write (default: reports/cache.html in the cache directory)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


COMMAND = Command(
    description="""\
Write one HTML page about all caches: status, counts, size, sha256, age of the upstream revision,
results of checks, and plots. The page also shows how much of each data set a training run would read.
It shows this for every [blend.NAME]; without a blend, for a run over all pretrain data sets by size.
The table [reports] sets the length of that run. The page is a single file that you can send to others.
Ages and checks come from the records of Dagster (DAGSTER_HOME). The command builds nothing, hashes no
file and contacts no upstream.

With --json, print the same data without plots; the page is then written only if you give --out.""",
    examples="""\
  niels-cache report --open             open the page in the browser
  niels-cache report --out caches.html
  niels-cache report --json             for programs: sizes, hashes, checks, shares, epochs""",
    add_options=_add_options,
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.defs.home.history import history_at_home
    from niels_cache_assets.show.reports.cache import cache_report, find_items
    from niels_cache_assets.show.reports.page import page_path

    registry, root = open_registry(arguments)
    items = find_items(registry, root=root)
    report = cache_report(registry, items, root=root, history=history_at_home(registry, items, root=root))
    path = Path(arguments.out).expanduser() if arguments.out else page_path(root)
    if arguments.out or not arguments.json:
        _write(registry, report, path)
    if arguments.json:
        print_json(report.as_json())
    else:
        console = output()
        for notice in report.notices:
            console.print(f"{notice.name}: {notice.text}", style="yellow", soft_wrap=True)
        console.print(f"{path}: {report.complete} of {len(report.wanted)} complete", soft_wrap=True)
    if arguments.open and not webbrowser.open(path.absolute().as_uri()):
        warnings().print(f"no browser was found; open {path.absolute()} yourself", soft_wrap=True)
    return DONE


def _write(registry: Registry, report: CacheReport, path: Path) -> None:
    from niels_cache_assets.show.reports.drawings import draw_report
    from niels_cache_assets.show.reports.page import render_page, write_page

    console = diagnostics()
    if console.is_terminal:
        with console.status("drawing") as status:
            drawings = draw_report(registry, report, progress=lambda name: status.update(f"drawing {name}"))
    else:
        drawings = draw_report(registry, report)
    write_page(path, render_page(report, drawings, now=time.time()))
