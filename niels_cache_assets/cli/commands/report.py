"""`report`: everything that is built as one HTML page, or as JSON. What is in it is decided in niels_cache_assets.show.reports."""

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
    parser.add_argument("--out", metavar="FILE", help="the page to write (default: reports/cache.html below the cache directory)")
    parser.add_argument("--open", action="store_true", help="show the page in the browser")


COMMAND = Command(
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
        warnings().print(f"no browser is to be had here; open {path.absolute()} yourself", soft_wrap=True)
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
