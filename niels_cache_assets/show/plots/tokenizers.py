"""Plots of a tokenizer, for its pieces by length, and the characters per token of each source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from matplotlib.ticker import MaxNLocator

from niels_cache_assets.show.plots.style import BAR, BLUE, GRAY, GRID, INK, as_png, label_axes, label_bars, new_figure, set_title

MAX_SOURCES = 20  # more bars are not legible
LONGEST_PIECE = 16  # characters; longer pieces count as pieces of this length


def tokenizer_plots(*, piece_bytes: Sequence[bytes], characters_per_token: Mapping[str, float]) -> dict[str, bytes]:
    """Return PNGs by title. Omit a plot that has no data."""
    plots = {"pieces": _pieces(piece_bytes)}
    if characters_per_token:
        plots["characters per token"] = _ratios(characters_per_token)
    return plots


def _pieces(piece_bytes: Sequence[bytes]) -> bytes:
    """Draw a histogram of pieces by number of characters, including the space before a word. Pieces of a single byte that is not a whole
    character have their own color.
    """
    lengths: Counter[int] = Counter()
    alone = 0
    for piece in piece_bytes:
        try:
            lengths[min(len(piece.decode()), LONGEST_PIECE)] += 1
        except UnicodeDecodeError:
            alone += 1
    figure = new_figure(3.0)
    axes = figure.subplots()
    set_title(axes, f"{len(piece_bytes):,} pieces by length")
    sizes = range(1, LONGEST_PIECE + 1)
    axes.bar(sizes, [lengths[size] for size in sizes], width=BAR, color=BLUE, label="text")
    if alone:
        axes.bar([1], [alone], width=BAR, bottom=[lengths[1]], color=GRAY, label="single bytes")
        axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    axes.set_xticks(sizes, [*map(str, sizes[:-1]), f"{LONGEST_PIECE}+"])
    label_axes(axes, "characters", "pieces")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    return as_png(figure)


def _ratios(characters_per_token: Mapping[str, float]) -> bytes:
    """Draw one bar per source. A short bar means that the tokenizer suits the source badly. If there are many sources, show the shortest
    bars.
    """
    rows = sorted(characters_per_token.items(), key=lambda row: (-row[1], row[0]))[-MAX_SOURCES:]
    of = f", the {len(rows)} lowest of {len(characters_per_token):,}" if len(rows) < len(characters_per_token) else ""
    figure = new_figure(1.1 + 0.34 * len(rows))
    axes = figure.subplots()
    set_title(axes, f"characters per token, by source{of} (newlines count, EOT does not)")
    values = [value for _, value in rows]
    axes.barh(range(len(rows)), values, height=BAR, color=BLUE)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(max(len(rows), 2) - 0.5, -0.5)
    label_bars(axes, values, [f"{value:.2f}" for value in values])
    label_axes(axes, "characters to a token", "")
    return as_png(figure)
