"""Plots of the report of a corpus. corpus/report.py computes the numbers; style.py defines the look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, PercentFormatter

from niels_cache_assets.show.plots.style import (
    BAR,
    BLUE,
    GRAY,
    GRID,
    INK,
    ORANGE,
    as_png,
    label_axes,
    label_bars,
    new_figure,
    reasons_plot,
    say,
    set_title,
    short,
)
from niels_cache_assets.show.wording import share_of

_STAGE_COLORS = {"source": GRAY, "cleaning": BLUE, "duplicates": ORANGE}


def draw(report: dict[str, Any]) -> dict[str, bytes]:
    """Return PNGs by file name. They are funnel, reasons, lengths, and duplicates if the corpus is deduplicated."""
    plots = {"funnel.png": _funnel(report), "reasons.png": _reasons(report), "lengths.png": _lengths(report)}
    return {**plots, "duplicates.png": _duplicates(report)} if report["duplicates"] else plots


def _funnel(report: dict[str, Any]) -> bytes:
    """Draw two panels, documents and bytes. Each panel has one bar per stage."""
    stages = report["funnel"]
    figure = new_figure(0.9 + 0.42 * len(stages))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, key, title, unit in zip(panels, ("documents", "bytes"), ("documents", "text"), ("", "B"), strict=True):
        values = [stage[key] for stage in stages]
        axes.barh(range(len(stages)), values, height=BAR, color=[GRAY, *[BLUE] * (len(stages) - 1)])
        axes.set_yticks(range(len(stages)), [stage["stage"] for stage in stages])
        set_title(axes, title)
        shares = [value / values[0] if values[0] else 0 for value in values]
        label_bars(axes, values, [f"{short(value, unit)}  {share_of(share)}" for value, share in zip(values, shares, strict=True)])
    panels[0].invert_yaxis()
    return as_png(figure)


def _reasons(report: dict[str, Any]) -> bytes:
    reasons = [(row["reason"], row["documents"], row["stage"]) for row in report["reasons"]]
    return reasons_plot(reasons, report["documents"]["given"], "documents", _STAGE_COLORS)


def _lengths(report: dict[str, Any]) -> bytes:
    """Draw the documents per power of two of characters, before and after cleaning."""
    rows = report["lengths"]
    figure = new_figure(3.2)
    axes = figure.subplots()
    set_title(axes, "documents by length")
    edges = [float(row["from"].bit_length()) for row in rows]  # an empty text is to the left of one character
    ends = [*edges, edges[-1] + 1]
    axes.stairs([row["before"] for row in rows], ends, fill=True, color=GRAY, alpha=0.6, label="read")
    axes.stairs([row["after"] for row in rows], ends, fill=True, color=ORANGE, alpha=0.6, label=report["funnel"][1]["stage"])
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    label_axes(axes, "characters", "documents")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda edge, _: short(0 if edge < 1 else 2 ** (edge - 1))))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    return as_png(figure)


def _duplicates(report: dict[str, Any]) -> bytes:
    """Draw the sizes of the clusters of duplicates, and the S-curve of the LSH bands in use."""
    found = report["duplicates"]
    figure = new_figure(3.2)
    left, right = figure.subplots(1, 2)
    across = sum(found["cluster_sizes_across"].values())
    set_title(left, f"clusters by size, {across:,} across data sets" if across else "clusters by size")
    sizes = sorted((int(size), count) for size, count in found["cluster_sizes"].items())
    bars = _binned(sizes)
    left.bar(range(len(bars)), [count for _, count in bars], width=BAR, color=ORANGE)
    left.set_xticks(range(len(bars)), [label for label, _ in bars])
    label_axes(left, "documents in the cluster", "clusters")
    for index, (_, count) in enumerate(bars):
        left.annotate(f"{count:,}", (index, count), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=8, color=INK)
    left.set_yticks([])
    left.set_xlim(-0.6, max(len(bars), 5) - 0.4)  # a few bars stay narrow
    left.margins(y=0.12)
    if not bars:
        left.set_xticks([])
        say(left, "no document has a duplicate in any data set")
    set_title(right, f"found, by {found['bands']} bands x {found['rows']} rows")
    right.plot([point[0] for point in found["s_curve"]], [point[1] for point in found["s_curve"]], color=BLUE, linewidth=2)
    right.axvline(found["threshold"], color=ORANGE, linewidth=1, linestyle="--")
    right.annotate(
        f"threshold {found['threshold']:g}",
        (found["threshold"], 1),
        xytext=(-4, -10),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=ORANGE,
    )
    label_axes(right, "Jaccard similarity", "share a band")
    right.set_xlim(0, 1)
    right.set_ylim(0, 1.02)
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    right.grid(color=GRID, linewidth=0.8)
    return as_png(figure)


def _binned(sizes: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
    """Return (label, count) of each bin of cluster sizes. Sizes 2, 3 and 4 have their own bins. The bins of larger sizes end at powers of
    two, so that the axis stays legible.
    """
    bins: dict[tuple[int, int], int] = {}
    for size, count in sizes:
        low = size if size < 5 else max(5, 2 ** (size.bit_length() - 1))
        high = low if size < 5 else 2 ** size.bit_length() - 1
        bins[low, high] = bins.get((low, high), 0) + count
    return [(f"{low}" if low == high else f"{short(low)}-{short(high)}", count) for (low, high), count in sorted(bins.items())]
