"""Pictures as data, and the two ways to draw them: SVG for pages, PNG for Dagster's UI, which shows no SVG.

A picture has one panel, or several side by side. `_layout` turns it into boxes, lines and texts in units of the drawing, and both renderers
draw only these. So a picture is the same everywhere. SVG takes its colors from plots.css, and is light or dark like the reader's system.
PNG has a background that suits light and dark pages; equal pictures give equal bytes in a pinned environment.

Only `as_png` imports matplotlib, which takes a second. No build calls it unless `[dagster] plots` is set.
"""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, NamedTuple

from markupsafe import Markup

from niels_cache_assets.base.wording import abbreviate

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
_FONT = 7.9  # points, which are 11 units


class Series(NamedTuple):
    """The values of the columns or bars.

    Attributes:
        values: The values.
        tones: A key of COLORS, or one for each value.
        meaning: What the values count.
    """

    values: Sequence[float]
    tones: str | Sequence[str] = "main"
    meaning: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Columns (drawn over one another), or horizontal bars (of several series, side by side).

    Attributes:
        kind: "columns" or "bars".
        title: Title of the panel.
        series: The values.
        names: Names of the columns or bars.
        labels: Texts at the ends of bars.
        ticks: (position, text) below columns; a column has the width 1.
        limit: (position, text) of a vertical line, in columns or in values of bars.
        across: Label of the horizontal axis.
        legend: Texts by tone.
        is_logarithmic: Whether the vertical axis is logarithmic.
        empty_text: Text to show without values.
    """

    kind: Literal["columns", "bars"]
    title: str
    series: Sequence[Series]
    names: Sequence[str] = ()
    labels: Sequence[str] = ()
    ticks: Sequence[tuple[float, str]] = ()
    limit: tuple[float, str] | None = None
    across: str = ""
    legend: Mapping[str, str] = field(default_factory=dict)
    is_logarithmic: bool = False
    empty_text: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture.

    Attributes:
        title: Its short name.
        alternative: What it shows, for readers who cannot see it.
        panels: Its panels, side by side.
        shares: Relative widths of the panels; by default equal.
    """

    title: str
    alternative: str
    panels: Sequence[Panel]
    shares: Sequence[float] = ()


Anchor = Literal["start", "middle", "end"]


class BoxMark(NamedTuple):
    """A filled rectangle. `tooltip` is its tooltip."""

    x: float
    y: float
    width: float
    height: float
    tone: str
    tooltip: str


class LineMark(NamedTuple):
    """A line. `tone` is a key of COLORS; a line of tone `warn` is dashed."""

    x1: float
    y1: float
    x2: float
    y2: float
    tone: str


class TextMark(NamedTuple):
    """A text on a base line at `y`."""

    x: float
    y: float
    text: str
    anchor: Anchor = "start"
    tone: str = "muted"


Mark = BoxMark | LineMark | TextMark


def short_number(value: float) -> str:
    """Return a number such as `1,234`, from ten thousand on in a form such as `12.3k` or `4.6M`."""
    return f"{value:,.0f}" if value < 10_000 else abbreviate(value)


def thin_ticks(ticks: Sequence[tuple[float, str]], most: int = 8) -> list[tuple[float, str]]:
    """Return evenly spaced ticks, at most `most`."""
    return list(ticks)[:: max(1, math.ceil(len(ticks) / most))]


_FORMS = {
    BoxMark: Markup('<rect x="{0:.1f}" y="{1:.1f}" width="{2:.1f}" height="{3:.1f}" class="{4}"><title>{5}</title></rect>'),
    LineMark: Markup('<line x1="{0:.1f}" y1="{1:.1f}" x2="{2:.1f}" y2="{3:.1f}" class="{4}"></line>'),
    TextMark: Markup('<text x="{0:.1f}" y="{1:.1f}" text-anchor="{3}" class="{4}">{2}</text>'),
}


def as_svg(picture: Picture, of: str = "") -> Markup:
    """Return an SVG element in which all texts are escaped.

    Args:
        picture: The picture.
        of: What the picture is of, for its alternative text; by default nothing.
    """
    height, marks = _layout(picture)
    label = f"{of}. {picture.alternative}" if of else picture.alternative
    start = Markup('<svg class="plot" viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">').format(WIDTH, height, label)
    return Markup("\n").join([start, *(_FORMS[type(mark)].format(*mark) for mark in marks), Markup("</svg>")])


def as_png(picture: Picture) -> bytes:
    """Return a PNG, drawn on matplotlib's Agg canvas without pyplot, which needs no global state and no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    height, marks = _layout(picture)
    figure = Figure(figsize=(WIDTH / 100, height / 100), dpi=115, facecolor=CARD)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    for number, mark in enumerate(marks):
        color = COLORS[mark.tone]
        if isinstance(mark, BoxMark):
            axes.add_patch(Rectangle((mark.x, mark.y), mark.width, mark.height, color=color, linewidth=0, zorder=number))
        elif isinstance(mark, LineMark):
            style = "--" if mark.tone == "warn" else "-"
            axes.plot([mark.x1, mark.x2], [mark.y1, mark.y2], color=color, linewidth=1, linestyle=style, zorder=number)
        else:
            align = {"start": "left", "middle": "center", "end": "right"}[mark.anchor]
            axes.text(mark.x, mark.y, mark.text, ha=align, color=color, fontsize=_FONT, parse_math=False, zorder=number)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def _layout(picture: Picture) -> tuple[float, list[Mark]]:
    shares = picture.shares or [1.0] * len(picture.panels)
    row = 8 + _BAR * max(len(panel.series) for panel in picture.panels)
    left, height, marks = _GAP / 2, 0.0, list[Mark]()
    for panel, share in zip(picture.panels, shares, strict=True):
        width = (WIDTH - _GAP * len(shares)) * share / sum(shares)
        height = max(height, _draw(panel, left, left + width, row, marks))
        left += width + _GAP
    return height + 8, marks


def _draw(panel: Panel, left: float, right: float, row: float, marks: list[Mark]) -> float:
    """Append the marks of a panel, and return where it ends. `row` is the height of a row of bars."""
    marks.append(TextMark(left, 20, panel.title, tone="ink"))
    top = 46.0 if panel.limit else 34.0
    count = max((len(each.values) for each in panel.series), default=0)
    if panel.kind == "bars":
        left += max((len(_short_name(name)) + 1 for name in panel.names), default=0) * _CHARACTER
        bottom = top + max(1, count) * row
        unit = _draw_bars(panel, left, right, top, row, marks)
    else:
        left, right, bottom = left + _NUMBERS, right - 12, top + _HEIGHT  # leaves room for half of the last tick
        unit = (right - left) / max(count, 5)  # a few columns remain narrow
        _draw_columns(panel, left, right, bottom, unit, marks)
    if panel.limit:
        x = left + panel.limit[0] * unit
        anchor: Anchor = "start" if x < left + 60 else "end" if x > right - 60 else "middle"
        marks += [LineMark(x, top - 4, x, bottom, "warn"), TextMark(x, top - 8, panel.limit[1], anchor, "warn")]
    marks += [TextMark(left + place * unit, bottom + 14, text, "middle") for place, text in panel.ticks]
    if panel.empty_text and not count:
        marks.append(TextMark((left + right) / 2, (top + bottom) / 2 + 4, panel.empty_text, "middle"))
    bottom += 14 if panel.ticks else 0
    if panel.across:
        bottom += 16
        marks.append(TextMark((left + right) / 2, bottom, panel.across, "middle"))
    for tone, text in panel.legend.items():
        marks += [BoxMark(left, bottom + 10, 9, 9, tone, ""), TextMark(left + 14, bottom + 18, text)]
        left += 30 + len(text) * _CHARACTER
    return bottom + (18 if panel.legend else 0)


def _draw_columns(panel: Panel, left: float, right: float, bottom: float, unit: float, marks: list[Mark]) -> None:
    most = max((value for each in panel.series for value in each.values), default=0) or 1
    if panel.is_logarithmic:
        powers = [10**power for power in range(len(str(int(most))))]
        steps: Sequence[int] = powers if len(powers) > 3 else [0, *powers]  # 0 and 1 are near each other
    else:
        step = next(unit * 10**power for power in count() for unit in (1, 2, 5) if most <= 5 * unit * 10**power)
        steps = range(0, int(most) + 1, step)

    def height(value: float) -> float:
        return _HEIGHT * (math.log1p(value) / math.log1p(most) if panel.is_logarithmic else value / most)

    for each in steps:
        y = bottom - height(each)
        marks += [LineMark(left, y, right, y, "grid"), TextMark(left - 5, y + 4, short_number(each), "end")]
    for _, index, value, tone, tooltip in _values(panel):
        marks.append(BoxMark(left + index * unit + 0.4, bottom - height(value), max(unit - 0.8, 0.5), height(value), tone, tooltip))


def _draw_bars(panel: Panel, left: float, right: float, top: float, row: float, marks: list[Mark]) -> float:
    """Append the marks of bars with the names of their rows, and return the length of the value 1."""
    limits = [panel.limit[0]] if panel.limit else []
    unit = (right - left - _LABELS) / (max([*(value for each in panel.series for value in each.values), *limits], default=0) or 1)
    thick = min((row - 8) / len(panel.series), 2 * _BAR)
    top += (row - thick * len(panel.series)) / 2
    for index, name in enumerate(panel.names):
        marks.append(TextMark(left - 6, top + index * row + thick * len(panel.series) / 2 + 4, _short_name(name), "end", "ink"))
    for number, index, value, tone, tooltip in _values(panel):
        marks.append(BoxMark(left, top + index * row + number * thick, value * unit, thick - 1, tone, tooltip))
    last = len(panel.series) - 1
    for index, text in enumerate(panel.labels):
        end = left + panel.series[last].values[index] * unit
        marks.append(TextMark(end + 5, top + index * row + (last + 0.5) * thick + 4, text, tone="ink"))
    return unit


def _values(panel: Panel) -> Iterator[tuple[int, int, float, str, str]]:
    """Yield (number of the series, number of the column or bar, value, tone, tooltip) for each value above zero."""
    for number, series in enumerate(panel.series):
        for index, value in enumerate(series.values):
            if value:
                tone = series.tones if isinstance(series.tones, str) else series.tones[index]
                name = f"{panel.names[index]}: " if panel.names else ""
                yield (
                    number,
                    index,
                    value,
                    tone,
                    f"{name}{f'{value:,}' if isinstance(value, int) else f'{value:,.4g}'} {series.meaning}".rstrip(),
                )


def _short_name(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
