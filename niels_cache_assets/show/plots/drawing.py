"""Pictures as data, and the two ways to draw them: SVG for pages, PNG for Dagster's UI, which shows no SVG.

A picture has one panel, or several side by side. `_layout` turns it into boxes, lines and texts in units of the drawing, and both
renderers draw only these. So a picture is the same everywhere. SVG takes its colors from plots.css, and is light or dark like the reader's
system. PNG has a background that suits light and dark pages; equal pictures give equal bytes in a pinned environment.

Only `as_png` imports matplotlib, which takes a second. No build calls it unless `[dagster] plots` is set.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, NamedTuple

from markupsafe import Markup

from niels_cache_assets.show.wording import abbreviated

WIDTH = 640
COLORS = {
    "main": "#1f5fa8",
    "warn": "#b8450f",
    "rest": "#8b98a9",
    "second": "#d9a441",
    "ink": "#1f2933",
    "muted": "#4a5666",
    "grid": "#c5cfda",
}
CARD = "#e6ebf1"  # darker than a light page, and not too bright on a dark page; all colors are readable on it

_HEIGHT = 150.0  # of the area of columns and curves
_GAP = 16.0  # between panels
_BAR = 13.0
_CHARACTER = 6.6  # about the width of a character
_NUMBERS = 40.0  # the width of the numbers at the left
_LABELS = 98.0  # the width of the labels at the ends of bars
_LONGEST_NAME = 24
_FONT = 11

Ticks = Sequence[tuple[float, str]]


class Series(NamedTuple):
    """The values of the columns or bars, or the points (x, y) of a curve. tones: a key of COLORS, or one for each value. said: what the
    values count.
    """

    values: Sequence[float] | Sequence[tuple[float, float]]
    tones: str | Sequence[str] = "main"
    said: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Columns (drawn over one another), horizontal bars (of several series, side by side), or curves.

    names: of the columns or bars. labels: texts at the ends of bars, or above columns. ticks: (place, text) below; places are in columns,
    or in the units of a curve. heights: (place, text) at the left of curves. limits: (place, text) of vertical lines, in the units of
    `ticks`, or of the values of bars. legend: texts by tone. nothing: what stands there if no value is above zero.
    """

    kind: Literal["columns", "bars", "curves"]
    title: str
    series: Sequence[Series]
    names: Sequence[str] = ()
    labels: Sequence[str] = ()
    ticks: Ticks = ()
    heights: Ticks = ()
    limits: Ticks = ()
    across: str = ""
    legend: Mapping[str, str] = field(default_factory=dict)
    is_logarithmic: bool = False
    nothing: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture. title: its short name. alternative: what it shows, for readers who cannot see it. shares: the widths of the panels."""

    title: str
    alternative: str
    panels: Sequence[Panel]
    shares: Sequence[float] = ()


class Box(NamedTuple):
    """A filled rectangle. said: its tooltip."""

    x: float
    y: float
    width: float
    height: float
    tone: str
    said: str = ""


class Line(NamedTuple):
    """A line through points. tone: a key of COLORS; a line of tone `warn` or `rest` is dashed."""

    points: Sequence[tuple[float, float]]
    tone: str


class Text(NamedTuple):
    """A text on a base line at `y`."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    tone: str = "muted"


Mark = Box | Line | Text


def short(value: float) -> str:
    """Return a number such as `1,234`. From ten thousand, return a form such as `12.3k` or `4.6M`."""
    return f"{value:,.0f}" if value < 10_000 else abbreviated(value)


def few(ticks: Ticks, most: int = 8) -> list[tuple[float, str]]:
    """Return evenly spaced ticks, at most `most`."""
    return list(ticks)[:: max(1, math.ceil(len(ticks) / most))]


def as_svg(picture: Picture, of: str = "") -> Markup:
    """Return an SVG element. All texts are escaped. of: what the picture is of, for its alternative text."""
    height, marks = _layout(picture)
    said = f"{of}. {picture.alternative}" if of else picture.alternative
    drawn = [Markup('<svg class="plot" viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">').format(WIDTH, height, said)]
    for mark in marks:
        if isinstance(mark, Box):
            tooltip = Markup("<title>{}</title>").format(mark.said)
            form = '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">{}</rect>'
            drawn.append(Markup(form).format(mark.tone, *mark[:4], tooltip))
        elif isinstance(mark, Line):
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in mark.points)
            drawn.append(Markup('<polyline class="{}" points="{}"></polyline>').format(mark.tone, points))
        else:
            form = '<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>'
            drawn.append(Markup(form).format(mark.tone, mark.x, mark.y, mark.anchor, mark.text))
    return Markup("\n").join([*drawn, Markup("</svg>")])


def as_png(picture: Picture) -> bytes:
    """Return a PNG. It uses matplotlib's Agg canvas without pyplot, which needs no global state and no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    height, marks = _layout(picture)
    figure = Figure(figsize=(WIDTH / 100, height / 100), dpi=115, facecolor=CARD)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    for number, mark in enumerate(marks):
        color = COLORS[mark.tone]
        if isinstance(mark, Box):
            axes.add_patch(Rectangle((mark.x, mark.y), mark.width, mark.height, color=color, linewidth=0, zorder=number))
        elif isinstance(mark, Line):
            style = "--" if mark.tone in ("warn", "rest") else "-"
            wide = 2 if mark.tone == "main" else 1
            axes.plot(*zip(*mark.points, strict=True), color=color, linewidth=wide, linestyle=style, zorder=number)
        else:
            align: Literal["left", "center", "right"] = {"start": "left", "middle": "center", "end": "right"}[mark.anchor]
            axes.text(mark.x, mark.y, mark.text, ha=align, va="baseline", color=color, fontsize=_FONT * 0.72, parse_math=False)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def _layout(picture: Picture) -> tuple[float, list[Mark]]:
    """Return the height of the drawing, and its marks in the order to draw them."""
    shares = picture.shares or [1.0] * len(picture.panels)
    row = 8 + _BAR * max(len(panel.series) for panel in picture.panels)
    room, left, height, marks = WIDTH - _GAP * len(shares), _GAP / 2, 0.0, list[Mark]()
    for panel, share in zip(picture.panels, shares, strict=True):
        width = room * share / sum(shares)
        end, found = _panel(panel, left, left + width, row)
        marks += found
        left, height = left + width + _GAP, max(height, end)
    return height + 8, marks


def _panel(panel: Panel, left: float, right: float, row: float) -> tuple[float, list[Mark]]:
    """Return where the panel ends, and its marks. row: the height of a row of bars."""
    marks: list[Mark] = [Text(left, 20, panel.title, tone="ink")]
    top = 46.0 if panel.limits or (panel.kind == "columns" and panel.labels) else 34.0
    if panel.kind == "bars":
        longest = max((len(_short_name(name)) for name in panel.names), default=0)
        left += longest * _CHARACTER + 6 if longest else 0
        bottom = top + max(1, max((len(each.values) for each in panel.series), default=0)) * row
        found, unit = _bars(panel, left, right, top, row)
    else:
        left, right, bottom = left + _NUMBERS, right - 12, top + _HEIGHT  # half of the last tick stands at the right
        found, unit = (_columns if panel.kind == "columns" else _curves)(panel, left, right, top)
    marks += found
    for place, text in panel.limits:
        x = left + place * unit
        marks.append(Line([(x, top - 4), (x, bottom)], "warn"))
        anchor: Literal["start", "middle", "end"] = "start" if x < left + 60 else "end" if x > right - 60 else "middle"
        marks.append(Text(x, top - 8, text, anchor, "warn"))
    marks += [Text(left + place * unit, bottom + 14, text, "middle") for place, text in panel.ticks]
    bottom += 14 if panel.ticks else 0
    if panel.nothing and not any(value for each in panel.series for value in each.values):
        marks.append(Text((left + right) / 2, (top + bottom) / 2 + 4, panel.nothing, "middle"))
    if panel.across:
        bottom += 16
        marks.append(Text((left + right) / 2, bottom, panel.across, "middle"))
    if panel.legend:
        bottom += 18
        for tone, text in panel.legend.items():
            marks += [Box(left, bottom - 8, 9, 9, tone), Text(left + 14, bottom, text)]
            left += 30 + len(text) * _CHARACTER
    return bottom, marks


def _columns(panel: Panel, left: float, right: float, top: float) -> tuple[list[Mark], float]:
    """Return the marks of columns, and the width of one."""
    columns = max((len(each.values) for each in panel.series), default=0)
    most = max((value for each in panel.series for value in each.values), default=0)
    unit = (right - left) / max(columns, 5)  # a few columns stay narrow
    if panel.is_logarithmic:
        powers = [10**power for power in range(len(str(int(most))))] if most else []
        steps: Sequence[int] = [*([0] if len(powers) < 4 else []), *powers]  # 0 and 1 are near each other
    else:
        step = next(unit * 10**power for power in count() for unit in (1, 2, 5) if most <= 5 * unit * 10**power)
        steps = range(0, int(most) + 1, step)

    def height(value: float) -> float:
        share = math.log1p(value) / math.log1p(most or 1) if panel.is_logarithmic else value / (most or 1)
        return _HEIGHT * share

    marks: list[Mark] = []
    for step in steps:
        y = top + _HEIGHT - height(step)
        marks += [Line([(left, y), (right, y)], "grid"), Text(left - 5, y + 4, short(step), "end")]
    for series, place, value, tone, said in _values(panel):
        x, y = left + place * unit, top + _HEIGHT - height(value)
        marks.append(Box(x + 0.4, y, max(unit - 0.8, 0.5), height(value), tone, said))
        if panel.labels and series == 0:
            marks.append(Text(x + unit / 2, y - 3, panel.labels[place], "middle", "ink"))
    return marks, unit


def _bars(panel: Panel, left: float, right: float, top: float, row: float) -> tuple[list[Mark], float]:
    """Return the marks of horizontal bars with the names of their rows, and the length of the value 1."""
    most = max([*(value for each in panel.series for value in each.values), *(place for place, _ in panel.limits)], default=0) or 1
    unit, last = (right - left - _LABELS) / most, len(panel.series) - 1
    thick = min((row - 8) / len(panel.series), 2 * _BAR)
    top += (row - thick * len(panel.series)) / 2
    marks: list[Mark] = []
    for place, name in enumerate(panel.names):
        marks.append(Text(left - 6, top + place * row + thick * len(panel.series) / 2 + 4, _short_name(name), "end", "ink"))
    for series, place, value, tone, said in _values(panel):
        marks.append(Box(left, top + place * row + series * thick, value * unit, thick - 1, tone, said))
    for place, text in enumerate(panel.labels):
        end = left + panel.series[last].values[place] * unit
        marks.append(Text(end + 5, top + place * row + (last + 0.5) * thick + 4, text, tone="ink"))
    return marks, unit


def _curves(panel: Panel, left: float, right: float, top: float) -> tuple[list[Mark], float]:
    """Return the marks of curves, and the length of the value 1. Both axes begin at 0."""
    points = [point for each in panel.series for point in each.values]
    unit = (right - left) / (max((x for x, _ in points), default=0) or 1)
    height = _HEIGHT / (max((y for _, y in points), default=0) or 1)
    bottom = top + _HEIGHT
    marks: list[Mark] = []
    for place, text in panel.heights:
        y = bottom - place * height
        marks += [Line([(left, y), (right, y)], "grid"), Text(left - 5, y + 4, text, "end")]
    for each in panel.series:
        marks.append(Line([(left + x * unit, bottom - y * height) for x, y in each.values], str(each.tones)))
    return marks, unit


def _values(panel: Panel) -> Iterator[tuple[int, int, float, str, str]]:
    """Yield (number of the series, number of the column or bar, value, tone, tooltip) for each value above zero."""
    for number, series in enumerate(panel.series):
        for place, value in enumerate(series.values):
            if value:
                tone = series.tones if isinstance(series.tones, str) else series.tones[place]
                said = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
                name = f"{panel.names[place]}: " if panel.names else ""
                yield number, place, value, tone, f"{name}{said} {series.said}".rstrip()


def _short_name(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
