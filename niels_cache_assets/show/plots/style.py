"""The look of every plot, and the plot of drop reasons, which caches and corpora share.

A plot is a PNG that is small enough for Dagster's database. All plots have the same width, and a background that suits light and dark
pages. All plots use matplotlib's Agg canvas without pyplot, which needs no global state and no display. In a pinned environment, equal data
always give equal bytes. The import costs a second, and each plot costs a tenth of a second.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter

from niels_cache_assets.show.wording import reason as in_words
from niels_cache_assets.show.wording import share_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 100
WIDTH = 7.2  # in inches; all plots have this width, so that plots in a column align
CARD = "#e6ebf1"  # darker than a light page, and not too bright on a dark page; all colors are readable on it
INK, MUTED, GRID = "#1f2933", "#4a5666", "#c5cfda"
BLUE, ORANGE, GRAY = "#1f5fa8", "#b8450f", "#8b98a9"
BAR = 0.62  # height or width, as a share of the available space
MAX_REASONS = 15


def new_figure(height: float) -> Figure:
    layout = ConstrainedLayoutEngine(w_pad=0.14, h_pad=0.12)  # margin inside the card, in inches
    return Figure(figsize=(WIDTH, height), dpi=DPI, layout=layout, facecolor=CARD)


def set_title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, color=INK)
    axes.set_facecolor(CARD)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=8, length=0)
    axes.set_axisbelow(True)


def label_bars(axes: Axes, values: Sequence[float], labels: Sequence[str]) -> None:
    """Write a label at the end of each bar, and remove the axis."""
    for index, (value, label) in enumerate(zip(values, labels, strict=True)):
        axes.annotate(label, (value, index), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8, color=INK)
    axes.set_xticks([])
    axes.set_xlim(0, max(values, default=0) * 1.45 or 1)


def label_axes(axes: Axes, across: str, up: str) -> None:
    """Label the horizontal and the vertical axis. A label may be empty if the bars show their numbers."""
    axes.set_xlabel(across, color=MUTED, fontsize=9)
    axes.set_ylabel(up, color=MUTED, fontsize=9)


def say(axes: Axes, text: str) -> None:
    """Write a text in the middle of an empty plot."""
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED, fontsize=9)


def short(value: float, unit: str = "") -> str:
    """Return a number such as `1,234`. From ten thousand, return a form such as `12.3k` or `4.6M`."""
    if value < 10_000:
        return f"{value:,.0f}{' ' + unit if unit else ''}"
    return EngFormatter(unit=unit, places=1, sep=" " if unit else "")(value)


def as_png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def reasons_plot(reasons: Sequence[tuple[str, int, str]], given: int, noun: str, colors: Mapping[str, str]) -> bytes:
    """Draw a bar for each (reason, count, stage), in the order of `reasons`. A bar also shows its share of the `given` documents or
    examples.

    Reasons after the first MAX_REASONS share one bar. `colors`: the color of each stage. If there are several stages, the plot has a
    legend.
    """
    shown = [(in_words(reason), count, colors[stage]) for reason, count, stage in reasons[:MAX_REASONS]]
    if rest := reasons[MAX_REASONS:]:
        shown.append((f"{len(rest)} more", sum(count for _, count, _ in rest), GRAY))
    figure = new_figure(1.3 + 0.3 * max(1, len(shown)))
    axes = figure.subplots()
    set_title(axes, f"dropped, by reason (of {given:,} {noun})")
    values = [count for _, count, _ in shown]
    axes.barh(range(len(shown)), values, height=BAR, color=[color for *_, color in shown])
    axes.set_yticks(range(len(shown)), [reason for reason, *_ in shown])
    axes.set_ylim(max(len(shown), 2) - 0.5, -0.5)  # a single bar keeps its height
    label_bars(axes, values, [f"{count:,}  {share_of(count / given)}" for count in values])
    label_axes(axes, f"{noun}, and their share", "")
    if not shown:
        say(axes, "nothing was dropped")
    stages = {stage for *_, stage in reasons}
    if len(stages) > 1:
        handles = [axes.barh(0, 0, color=color, label=stage) for stage, color in colors.items() if stage in stages]
        axes.legend(handles=handles, frameon=False, loc="lower right", fontsize=8, labelcolor=INK)
    return as_png(figure)
