"""Plots of a corpus's report, as PNG bytes small enough to be kept in Dagster's database.

matplotlib's Agg canvas without pyplot: no global state, no display, the same bytes for the same report in a pinned environment. Cost: a
second for the import, a tenth for each picture. What the figures mean is report.py's.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, PercentFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 100
MAX_REASONS = 15

_INK, _MUTED, _GRID = "#1f2933", "#6b7785", "#dfe3e8"
_BLUE, _ORANGE, _GRAY = "#2b6cb0", "#c05621", "#a0aec0"
_STAGE_COLORS = {"source": _GRAY, "cleaning": _BLUE, "duplicates": _ORANGE}
_BAR = 0.62


def draw(report: dict[str, Any]) -> dict[str, bytes]:
    """File name to PNG: funnel, reasons, lengths, and duplicates where they were looked for."""
    plots = {"funnel.png": _funnel(report), "reasons.png": _reasons(report), "lengths.png": _lengths(report)}
    return {**plots, "duplicates.png": _duplicates(report)} if report["duplicates"] else plots


def _funnel(report: dict[str, Any]) -> bytes:
    """Two panels with one bar per stage: documents, and bytes."""
    stages = report["funnel"]
    figure = _figure(8.4, 0.9 + 0.42 * len(stages))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, key, title, unit in zip(panels, ("documents", "bytes"), ("documents", "text"), ("", "B"), strict=True):
        values = [stage[key] for stage in stages]
        axes.barh(range(len(stages)), values, height=_BAR, color=[_GRAY, *[_BLUE] * (len(stages) - 1)])
        axes.set_yticks(range(len(stages)), [stage["stage"] for stage in stages])
        _title(axes, title)
        shares = [value / values[0] if values[0] else 0 for value in values]
        _label_bars(axes, values, [f"{_short(value, unit)}  {_percent(share)}" for value, share in zip(values, shares, strict=True)])
    panels[0].invert_yaxis()
    return _png(figure)


def _reasons(report: dict[str, Any]) -> bytes:
    """One bar per reason, coloured by who dropped; the rarest are summed up."""
    reasons = report["reasons"]
    shown = [(row["reason"], row["documents"], row["share"], _STAGE_COLORS[row["stage"]]) for row in reasons[:MAX_REASONS]]
    if rest := reasons[MAX_REASONS:]:
        total = sum(row["documents"] for row in rest)
        shown.append((f"{len(rest)} more", total, sum(row["share"] for row in rest), _GRAY))
    figure = _figure(7.2, 1.1 + 0.3 * max(1, len(shown)))
    axes = figure.subplots()
    _title(axes, f"dropped, by reason (of {report['documents']['given']:,} documents)")
    values = [count for _, count, _, _ in shown]
    axes.barh(range(len(shown)), values, height=_BAR, color=[color for *_, color in shown])
    axes.set_yticks(range(len(shown)), [reason for reason, *_ in shown])
    axes.invert_yaxis()
    _label_bars(axes, values, [f"{count:,}  {_percent(share)}" for _, count, share, _ in shown])
    if not shown:
        _say(axes, "nothing was dropped")
    stages = {row["stage"] for row in reasons}
    if len(stages) > 1:
        handles = [axes.barh(0, 0, color=color, label=stage) for stage, color in _STAGE_COLORS.items() if stage in stages]
        axes.legend(handles=handles, frameon=False, loc="lower right", fontsize=8, labelcolor=_INK)
    return _png(figure)


def _lengths(report: dict[str, Any]) -> bytes:
    """Documents per power of two of characters, before and after cleaning."""
    rows = report["lengths"]
    figure = _figure(7.2, 3.2)
    axes = figure.subplots()
    _title(axes, "documents by length")
    edges = [float(row["from"].bit_length()) for row in rows]  # an empty text is left of one character
    ends = [*edges, edges[-1] + 1]
    axes.stairs([row["before"] for row in rows], ends, fill=True, color=_GRAY, alpha=0.55, label="read")
    axes.stairs([row["after"] for row in rows], ends, fill=True, color=_BLUE, alpha=0.55, label="cleaned")
    axes.legend(frameon=False, fontsize=8, labelcolor=_INK)
    axes.set_xlabel("characters", color=_MUTED, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda edge, _: _short(0 if edge < 1 else 2 ** (edge - 1))))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    return _png(figure)


def _duplicates(report: dict[str, Any]) -> bytes:
    """Sizes of clusters, and the S-curve of the bands that were used."""
    found = report["duplicates"]
    figure = _figure(8.4, 3.2)
    left, right = figure.subplots(1, 2)
    _title(left, "clusters by size")
    sizes = sorted((int(size), count) for size, count in found["cluster_sizes"].items())
    bars = _binned(sizes)
    left.bar(range(len(bars)), [count for _, count in bars], width=_BAR, color=_ORANGE)
    left.set_xticks(range(len(bars)), [label for label, _ in bars])
    left.set_xlabel("documents in the cluster, the kept one included", color=_MUTED, fontsize=9)
    for index, (_, count) in enumerate(bars):
        left.annotate(f"{count:,}", (index, count), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=8, color=_INK)
    left.set_yticks([])
    left.set_xlim(-0.6, max(len(bars), 5) - 0.4)  # few bars stay bars
    left.margins(y=0.12)
    if not bars:
        left.set_xticks([])
        _say(left, "no document has a duplicate")
    _title(right, f"probability to share a band, {found['bands']} bands x {found['rows']} rows")
    right.plot([point[0] for point in found["s_curve"]], [point[1] for point in found["s_curve"]], color=_BLUE, linewidth=2)
    right.axvline(found["threshold"], color=_ORANGE, linewidth=1, linestyle="--")
    right.annotate(
        f"threshold {found['threshold']:g}",
        (found["threshold"], 1),
        xytext=(-4, -10),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=_ORANGE,
    )
    right.set_xlabel("Jaccard similarity", color=_MUTED, fontsize=9)
    right.set_xlim(0, 1)
    right.set_ylim(0, 1.02)
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    right.grid(color=_GRID, linewidth=0.8)
    return _png(figure)


def _binned(sizes: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
    """Clusters of 2, 3, 4 apart; above that by powers of two, so that any number of sizes stays legible."""
    bins: dict[tuple[int, int], int] = {}
    for size, count in sizes:
        low = size if size < 5 else max(5, 2 ** (size.bit_length() - 1))
        high = low if size < 5 else 2 ** size.bit_length() - 1
        bins[low, high] = bins.get((low, high), 0) + count
    return [(f"{low}" if low == high else f"{_short(low)}-{_short(high)}", count) for (low, high), count in sorted(bins.items())]


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, color=_INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
    axes.tick_params(colors=_MUTED, labelcolor=_INK, labelsize=8, length=0)
    axes.set_axisbelow(True)


def _label_bars(axes: Axes, values: Sequence[int], labels: Sequence[str]) -> None:
    """What each bar says, at its end; there is no axis to read then."""
    for index, (value, label) in enumerate(zip(values, labels, strict=True)):
        axes.annotate(label, (value, index), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8, color=_INK)
    axes.set_xticks([])
    axes.set_xlim(0, max(values, default=0) * 1.45 or 1)


def _say(axes: Axes, text: str) -> None:
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=_MUTED, fontsize=9)


def _short(value: float, unit: str = "") -> str:
    """1,234 up to ten thousand, then 12.3k, 4.56M."""
    if value < 10_000:
        return f"{value:,.0f}{' ' + unit if unit else ''}"
    return EngFormatter(unit=unit, places=1, sep=" " if unit else "")(value)


def _percent(share: float) -> str:
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()
