"""`report`: everything that is built as one HTML page, or as JSON. What is in it is decided in niels_cache_assets.reports."""

from __future__ import annotations

import argparse
import time
import webbrowser
from pathlib import Path

from niels_cache_assets.cli.console import diagnostics, output, print_json, warnings
from niels_cache_assets.cli.context import open_registry
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.defs.history import history_at_home
from niels_cache_assets.registry import Registry
from niels_cache_assets.reports.cache import CacheReport, cache_report, find_items
from niels_cache_assets.reports.drawings import draw_report
from niels_cache_assets.reports.page import page_path, render_page, write_page


def run(arguments: argparse.Namespace) -> int:
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
    console = diagnostics()
    if console.is_terminal:
        with console.status("drawing") as status:
            drawings = draw_report(registry, report, progress=lambda name: status.update(f"drawing {name}"))
    else:
        drawings = draw_report(registry, report)
    write_page(path, render_page(report, drawings, now=time.time()))
