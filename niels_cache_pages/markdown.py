"""Reports as Markdown for Dagster's UI. The Markdown contains no HTML, and text from data sets cannot become markup."""

import re
from collections.abc import Iterable, Sequence

from niels_cache_assets.base.wording import SHORT_SHA256, UNKNOWN, file_size
from niels_cache_assets.facts.contents import content_cells
from niels_cache_assets.facts.mixture import MixturePlan, share
from niels_cache_assets.reports.cache import CacheReport

_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#+!|~&$:@.-]")


def plain(text: str) -> str:
    """Return the text on one line, with all markup escaped."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def mixture_markdown(mixture: MixturePlan) -> str:
    """Return the title, plan, table and warnings of a mixture."""
    lines = [f"### {plain(mixture.name)}", "", plain(f"{mixture.plan}. {mixture.note}".strip()), ""]
    if mixture.sources:
        rows = [
            [
                plain(source.name),
                f"{source.tokens:,}",
                share(source.available),
                share(source.configured),
                share(source.actual),
                f"{source.tokens_read:,}",
                f"{source.epochs:,.2f}",
            ]
            for source in mixture.sources
        ]
        lines += [*_table(("data set", "tokens", "available", "configured", "read", "tokens read", "epochs"), rows), ""]
    lines += [f"* **Warning**: {plain(warning)}" for warning in mixture.warnings]
    lines += [f"* Left out: {plain(f'{name}: {reason}')}" for name, reason in mixture.left_out.items()]
    return "\n".join(lines).rstrip()


def cache_markdown(report: CacheReport) -> str:
    """Return a summary, then the problems, then a table of all items."""
    lines = [f"**{report.complete} of {len(report.expected)} complete**, {file_size(report.bytes)}; {plain(report.settings)}", ""]
    lines += [f"* **{plain(notice.name)}**: {plain(notice.text)}" for notice in report.notices]
    lines += [] if report.notices else ["Nothing needs attention."]
    rows = []
    for item in report.items:
        recorded = report.recorded(item)
        sha256 = f"`{item.sha256[:SHORT_SHA256]}`" if item.sha256 else UNKNOWN
        size = file_size(item.bytes) if item.meta else UNKNOWN
        cells = [item.name, item.kind, item.status, *content_cells(item.counts), size]
        rows.append([*map(plain, cells), sha256, plain(recorded.passed)])
    heading = ("name", "kind", "status", "train", "val", "size", "content sha256", "checks passed")
    return "\n".join([*lines, "", *_table(heading, rows), "", f"Checks: {plain(report.history.source)}."])


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heading, ["---"] * len(heading), *rows)]
