"""Plots of one cache, for lengths, token frequency and drop reasons. Conversations also have a plot of turns and targets.

The UI and the reports call `cache_plots`. measures.py does the counting and states the cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from niels_cache_assets.show.plots.measures import CONTEXT, LENGTH_EDGES, MAX_TURNS, SHARE_BINS, CacheMeasures, ConversationMeasures
from niels_cache_assets.show.plots.style import (
    BAR,
    BLUE,
    GRAY,
    GRID,
    INK,
    MUTED,
    ORANGE,
    as_png,
    label_axes,
    new_figure,
    reasons_plot,
    say,
    set_title,
    short,
)
from niels_cache_assets.show.wording import share_of
from niels_cache_runtime.format.layout import SIDES, Family

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RANKS_DRAWN = 400


def cache_plots(measures: CacheMeasures, family: Family, *, dropped: Mapping[str, int]) -> dict[str, bytes]:
    """Return PNGs by title, in display order. `dropped`: the number of dropped documents or examples for each reason, from meta.json."""
    plots = {"lengths": _lengths(measures, measures.noun, cut=family == "sft")}
    if measures.conversations is not None:
        plots["conversations"] = _conversations(measures.conversations, measures)
    kept, noun = (measures.items // len(SIDES), "pairs") if measures.noun == "sides" else (measures.items, measures.noun)
    return {**plots, "token frequency": _frequency(measures), "dropped": _dropped(dropped, kept, noun)}


def _lengths(measures: CacheMeasures, noun: str, *, cut: bool) -> bytes:
    """Draw a histogram of items by length in tokens, with half an octave per bin. Examples that are too long for a row of CONTEXT tokens
    have a color of their own.
    """
    figure = new_figure(3.0)
    axes = figure.subplots()
    note = f"; T = {CONTEXT:,} cuts {share_of(measures.cut / measures.items) if measures.cut else 'none'}" if cut else ""
    set_title(axes, f"{measures.items:,} {noun} by length{note}")
    filled = np.flatnonzero(measures.lengths)
    if not len(filled):
        say(axes, f"there are no {noun}")
        return as_png(figure)
    first, end = int(filled[0]), int(filled[-1]) + 1
    edges = LENGTH_EDGES[first : end + 1].astype(float)
    counts = measures.lengths[first:end]
    axes.stairs(counts, edges, fill=True, color=BLUE)
    axes.set_xscale("log", base=2)
    if cut:
        is_cut = LENGTH_EDGES[first:end] >= CONTEXT
        axes.stairs(np.where(is_cut, counts, 0), edges, fill=True, color=ORANGE)
        axes.axvline(CONTEXT, color=ORANGE, linewidth=1, linestyle="--")
        axes.set_xlim(min(edges[0], CONTEXT / 2), max(edges[-1], CONTEXT * 2))
    label_axes(axes, "tokens", noun)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda length, _: short(length)))
    axes.xaxis.set_minor_locator(NullLocator())
    _count_axis(axes)
    return as_png(figure)


def _frequency(measures: CacheMeasures) -> bytes:
    """Draw how often each vocabulary piece is used, over its rank, on logarithmic axes. Zipf's law is a straight line."""
    counts = np.sort(measures.token_counts)[::-1]
    used = measures.pieces_used
    figure = new_figure(3.0)
    axes = figure.subplots()
    part = "" if measures.counted == measures.tokens else f" (of {share_of(measures.counted / measures.tokens)} of the tokens)"
    set_title(axes, f"token frequency by rank: {measures.said_of_pieces} are used{part}")
    if not used:
        say(axes, "there are no tokens")
        return as_png(figure)
    ranks = np.unique(np.geomspace(1, used, _RANKS_DRAWN).astype(np.int64))
    axes.loglog(ranks, counts[ranks - 1], color=BLUE, linewidth=2)
    axes.loglog([1, used], [counts[0], max(counts[0] / used, 1e-9)], color=GRAY, linewidth=1, linestyle="--", label="1 / rank")
    half = int(np.searchsorted(np.cumsum(counts), measures.counted / 2)) + 1
    note = f"{half:,} {'piece is' if half == 1 else 'pieces are'} half of all tokens"
    axes.plot([half], [counts[half - 1]], "o", color=ORANGE, markersize=5)
    axes.annotate(note, (half, counts[half - 1]), xytext=(7, 6), textcoords="offset points", fontsize=8, color=ORANGE)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    label_axes(axes, "rank of the piece", "times in the cache")
    axes.set_ylim(bottom=0.7)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color=GRID, linewidth=0.8)
    return as_png(figure)


def _dropped(dropped: Mapping[str, int], kept: int, noun: str) -> bytes:
    reasons = [(reason, count, "") for reason, count in sorted(dropped.items(), key=lambda item: (-item[1], item[0]))]
    return reasons_plot(reasons, kept + sum(dropped.values()), noun, {"": BLUE})


def _conversations(conversations: ConversationMeasures, measures: CacheMeasures) -> bytes:
    """Draw two panels. One shows examples (or sides of pairs) by number of turns, the other shows them by their share of target tokens."""
    figure = new_figure(3.0)
    left, right = figure.subplots(1, 2)
    set_title(left, f"{measures.noun} by {conversations.counted}")
    most = max(conversations.turns, default=1)
    turns = list(range(min(conversations.turns, default=1), most + 1))
    left.bar(turns, [conversations.turns[turn] for turn in turns], width=BAR, color=BLUE)
    left.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    if most == MAX_TURNS:
        ticks = [1, *range(5, MAX_TURNS + 1, 5)]
        left.set_xticks(ticks, [*map(str, ticks[:-1]), f"{MAX_TURNS}+"])
    left.set_xlim(min(turns[0], 1) - 0.6, max(most, 6) + 0.6)  # a few bars stay narrow
    label_axes(left, conversations.counted, measures.noun)
    _count_axis(left)
    share = conversations.target_tokens / max(1, measures.counted)
    set_title(right, f"by share of targets ({share_of(share)} of all)")
    right.stairs(conversations.target_shares, np.linspace(0, 1, SHARE_BINS + 1), fill=True, color=BLUE)
    right.xaxis.set_major_formatter(PercentFormatter(1.0))
    right.set_xlim(0, 1)
    right.axvline(share, color=ORANGE, linewidth=1, linestyle="--")
    label_axes(right, f"tokens of the {measures.noun.removesuffix('s')} that are targets", measures.noun)
    _count_axis(right)
    return as_png(figure)


def _count_axis(axes: Axes) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.tick_params(axis="y", labelcolor=MUTED)
