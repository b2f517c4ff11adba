"""How every plot looks: PNG bytes small enough to be kept in Dagster's database, one width, a card that suits light and dark pages.

matplotlib's Agg canvas without pyplot: no global state, no display, the same bytes for the same figures in a pinned environment. Cost: a
second for the import, a tenth for each picture.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 100
WIDTH = 7.2  # inches, of every plot, so that those below one another end at one edge
CARD = "#e6ebf1"  # darker than a light page and not glaring on a dark one; every ink is read on it
INK, MUTED, GRID = "#1f2933", "#4a5666", "#c5cfda"
BLUE, ORANGE, GRAY = "#1f5fa8", "#b8450f", "#8b98a9"
BAR = 0.62  # height or width, of the room for one


def new_figure(height: float) -> Figure:
    layout = ConstrainedLayoutEngine(w_pad=0.14, h_pad=0.12)  # a margin within the card, in inches
    return Figure(figsize=(WIDTH, height), dpi=DPI, layout=layout, facecolor=CARD)


def set_title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, color=INK)
    axes.set_facecolor(CARD)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(colors=MUTED, labelcolor=INK, labelsize=8, length=0)
    axes.set_axisbelow(True)


def label_bars(axes: Axes, values: Sequence[float], labels: Sequence[str]) -> None:
    """What each bar says, at its end; there is no axis to read then."""
    for index, (value, label) in enumerate(zip(values, labels, strict=True)):
        axes.annotate(label, (value, index), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8, color=INK)
    axes.set_xticks([])
    axes.set_xlim(0, max(values, default=0) * 1.45 or 1)


def label_axes(axes: Axes, across: str, up: str) -> None:
    """What the horizontal axis counts, and what the vertical one; of bars that bear their numbers, one is empty."""
    axes.set_xlabel(across, color=MUTED, fontsize=9)
    axes.set_ylabel(up, color=MUTED, fontsize=9)


def say(axes: Axes, text: str) -> None:
    axes.set_yticks([])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=MUTED, fontsize=9)


def short(value: float, unit: str = "") -> str:
    """1,234 up to ten thousand, then 12.3k, 4.56M."""
    if value < 10_000:
        return f"{value:,.0f}{' ' + unit if unit else ''}"
    return EngFormatter(unit=unit, places=1, sep=" " if unit else "")(value)


def as_png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()
