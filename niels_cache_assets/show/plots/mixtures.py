"""The plot of a mixture, which is the data sets that one training run reads. The plot shows configured, available and read shares, and how
often each data set is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.ticker import FuncFormatter

from niels_cache_assets.show.plots.style import BLUE, GRAY, GRID, INK, ORANGE, as_png, new_figure, set_title
from niels_cache_assets.show.wording import share_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from niels_cache_assets.show.reports.mixture import MixedSource, Mixture

MAX_SOURCES = 10  # more do not fit into 50 kB

_HEIGHT = 0.27  # height of a bar; each data set has three bars
_LONGEST_NAME = 20


def mixture_plot(mixture: Mixture) -> bytes:
    """Return a PNG with three bars of shares and a bar of epochs for each source. If there are more than MAX_SOURCES sources, show the
    sources that repeat too often, then the largest sources.
    """
    shown = sorted(mixture.sources, key=lambda source: (source.repeats_from is None, -source.actual))[:MAX_SOURCES]
    shown = sorted(shown, key=lambda source: mixture.sources.index(source))
    figure = new_figure(1.3 + 0.62 * len(shown))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _shares(left, shown)
    of = f" ({len(shown)} of {len(mixture.sources)})" if len(shown) < len(mixture.sources) else ""
    set_title(left, f"share of each data set{of}")
    _epochs(right, shown, mixture.max_epochs)
    set_title(right, f"times that it is read (max_epochs: {mixture.max_epochs:g})")
    left.set_yticks(range(len(shown)), [_short_name(source.name) for source in shown])
    left.set_ylim(max(len(shown), 2) - 0.5, -0.5)  # a single group of bars keeps its height
    right.tick_params(labelleft=False)
    return as_png(figure)


def _shares(axes: Axes, shown: Sequence[MixedSource]) -> None:
    kinds = (
        ("available", GRAY, [source.available for source in shown]),
        ("configured", "#d9a441", [source.configured for source in shown]),
    )
    for place, (label, color, values) in enumerate((*kinds, ("read", BLUE, [source.actual for source in shown]))):
        rows = [row + (place - 1) * _HEIGHT for row in range(len(shown))]
        axes.barh(rows, values, height=_HEIGHT, color=color, label=label)
    for row, source in enumerate(shown):
        note, end = share_of(source.actual), (source.actual, row + _HEIGHT)
        axes.annotate(note, end, xytext=(4, 0), textcoords="offset points", va="center", fontsize=8, color=BLUE)
    axes.set_xticks([])
    axes.set_xlim(0, max(max(source.available, source.configured, source.actual) for source in shown) * 1.2)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK, loc="upper left", bbox_to_anchor=(0, 0), ncols=3, borderaxespad=0.2)


def _epochs(axes: Axes, shown: Sequence[MixedSource], most: float) -> None:
    values = [source.epochs for source in shown]
    colors = [BLUE if source.repeats_from is None else ORANGE for source in shown]
    axes.barh(range(len(shown)), values, height=2 * _HEIGHT, color=colors)
    for row, value in enumerate(values):
        axes.annotate(f"{value:,.2f}", (value, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8, color=INK)
    end = max(*values, 1.0) * 1.25
    axes.axvline(1, color=GRID, linewidth=1, zorder=0)
    if any(source.repeats_from is not None for source in shown) or most < end:
        axes.axvline(most, color=ORANGE, linewidth=1, linestyle="--")
        end = max(end, most * 1.1)
    axes.set_xlim(0, end)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _short_name(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
