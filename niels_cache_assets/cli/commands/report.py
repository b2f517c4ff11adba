"""The command `report`, which writes one HTML page, or JSON, about all caches, or about the limits of one data set with a corpus."""

from __future__ import annotations

import argparse
import time
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.cli.command import PRETRAIN, Command, option, switch
from niels_cache_assets.cli.console import diagnostics, display, print_json, warnings

if TYPE_CHECKING:
    from niels_cache_assets.project.registry import Registry

Report = tuple[Path, Any, Callable[[], str], list[str]]  # its path, its data, the page, and the lines to print


COMMAND = Command(
    options=(
        option("name", "NAME", "a data set with a corpus: write a report on its thresholds", nargs="?"),
        option("--out", "FILE", "HTML file to write (default: reports/cache.html or reports/tune/NAME.html)"),
        switch("--open", "open the report in a browser"),
    ),
    usage="[NAME] ",
    description="""\
Write a self-contained HTML report on all caches: status, counts, sizes, sha256, plots, excerpts of a
few documents, and the checks and times of builds in Dagster's records (DAGSTER_HOME). The report also shows how much of each data set a
training run would read: for every [blend.NAME], or, without a blend, for a run over all pretrain data
sets by size. [reports] sets the length of that run.

With NAME, write a report that helps you choose the thresholds in [cleaning] and [dedup]. For each
threshold, it shows a histogram, how many documents a different value would keep or drop, and examples
on both sides. It also shows the languages of all documents. This report contains excerpts of documents.

--json prints the same data without plots, and writes the report only if you also pass --out.""",
    examples="""\
  niels-cache report --json             for programs: sizes, hashes, checks, shares and epochs
  niels-cache report wikipedia --open   the thresholds of cleaning and deduplication""",
    offers={"name": PRETRAIN},
)


def run(arguments: argparse.Namespace) -> None:
    """Write the page, or print JSON."""
    from niels_cache_assets.base.beside import load_beside
    from niels_cache_assets.cli.context import open_registry

    registry, root = open_registry(arguments)
    path, facts, render, lines = _report_on_limits(registry, root, arguments.name) if arguments.name else _report_on_caches(registry, root)
    path = Path(arguments.out).expanduser() if arguments.out else path
    if arguments.out or not arguments.json:
        load_beside("pages", "page").write_page(path, render())
    if arguments.json:
        print_json(facts)
    else:
        *notices, last = lines
        for notice in notices:
            display(notice, style="yellow")
        display(f"{path}: {last}")
    if arguments.open and not webbrowser.open(path.absolute().as_uri()):
        warnings().print(f"no browser was found; open {path.absolute()} yourself")


def _report_on_caches(registry: Registry, root: Path) -> Report:
    from niels_cache_assets.base.beside import load_beside
    from niels_cache_assets.defs.home.history import history_at_home
    from niels_cache_assets.reports import page_path
    from niels_cache_assets.reports.cache import cache_report, find_items

    items = find_items(registry, root=root)
    report = cache_report(registry, items, root=root, history=history_at_home(registry, items, root=root))

    def render() -> str:
        page = load_beside("pages", "page")
        with diagnostics().status("drawing") as status:  # shown only in a terminal
            drawings = page.draw_report(registry, report, progress=lambda name: status.update(f"drawing {name}"))
        return page.render_page(report, drawings, now=time.time(), with_samples=True)

    lines = [*(f"{notice.name}: {notice.text}" for notice in report.notices), f"{report.complete} of {len(report.expected)} complete"]
    return page_path(root), report.as_json(), render, lines


def _report_on_limits(registry: Registry, root: Path, name: str) -> Report:
    from niels_cache_assets.base.beside import load_beside
    from niels_cache_assets.inspection.corpora import find_corpus

    find_corpus(registry, root, name)  # its messages say what to build
    page, found = load_beside("pages", "page"), load_beside("pages", "tuning").tuning(registry, name, root=root)
    lines = [f"{found['documents']:,} documents read, {found['kept']:,} cleaned"]
    return page.tuning_path(root, name), found, lambda: page.render_tuning(found), lines
