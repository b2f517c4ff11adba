"""Pictures as data, and matplotlib to draw them: SVG for pages, PNG for Dagster's UI, which shows no SVG.

SVG takes its colors and its font from the page, so it is light or dark like the reader's system. PNG has a background that suits light and
dark pages. Equal pictures give equal bytes in a pinned environment, whatever the user's matplotlibrc says.

A picture takes 10 to 60 ms. Only drawing imports matplotlib, which takes half a second. A build of a cache draws PNG only if
`[dagster] plots` is set. The page that `build-all` writes at its end draws only what the last page does not show (page.py).
"""

import io
import logging
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from xml.etree import ElementTree

from markupsafe import Markup

from niels_cache_assets.base.wording import abbreviate

# The colors of PNG. In SVG they are variables of the page.
MAIN, WARNED, REST, SECOND = "#1f5fa8", "#b8450f", "#8b98a9", "#d9a441"
_INK, _MUTED, _LINE = "#1f2933", "#4a5666", "#c5cfda"
_VARIABLES = {
    MAIN: "var(--main)",
    WARNED: "var(--warned)",
    REST: "var(--rest)",
    SECOND: "var(--second)",
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _LINE: "var(--line)",
}
CARD = "#e6ebf1"  # darker than a light page, and not too bright on a dark page; all colors are readable on it

# All lengths are points, which are the units of SVG.
_WIDTH = 640
_HEIGHT = 150  # of the area of columns
_ROW = 20  # of the area of bars
_TOP = 32  # the title
_EDGE = 12  # at both sides of the names of bars
_RIGHT = 20  # room for half of the last tick
_NUMBERS = 50  # the width of the numbers at the left
_CHARACTER = 7.7  # about the width of a capital letter
_LONGEST_NAME = 24
_MAX_TICKS = 8
_TOOLTIP = "tooltip: "  # how the id of a column or bar begins
_STYLE = {
    "font.size": 11,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.titlecolor": _INK,
    "grid.color": _LINE,
    "legend.frameon": False,
    "text.color": _MUTED,
    "text.parse_math": False,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "svg.fonttype": "none",  # text remains text
    "svg.hashsalt": "niels-cache",
}


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Columns or horizontal bars. Characters that cannot be printed, which XML does not allow, become spaces in all texts.

    Attributes:
        kind: "columns" (the default) or "bars".
        title: Its title.
        names: Names of the columns or bars, for their tooltips, which also have the text of their color in the legend.
        values: Their values.
        rest: Values that are stacked on the columns.
        colors: The color of the columns or bars, or one for each.
        labels: Texts at the ends of bars.
        ticks: (position, text) below columns, or at the left of bars, by default their names; a column or bar has the width 1.
        limit: (position, text) of a vertical line, in columns or in values of bars.
        legend: Texts by color.
        is_logarithmic: Whether the vertical axis is logarithmic.
    """

    kind: Literal["columns", "bars"] = "columns"
    title: str
    names: Sequence[str]
    values: Sequence[float]
    rest: Sequence[float] = ()
    colors: str | Sequence[str] = MAIN
    labels: Sequence[str] = ()
    ticks: Sequence[tuple[float, str]] = ()
    limit: tuple[float, str] | None = None
    legend: Mapping[str, str] = field(default_factory=dict)
    is_logarithmic: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, _printable(value))


def _printable(value: Any) -> Any:
    """Return a value with its texts, if any, with a space for each character that cannot be printed."""
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() else " " for letter in value)
    if isinstance(value, Mapping):
        return {key: _printable(each) for key, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, Sequence) else value


def short_number(value: float) -> str:
    """Return a number such as `1,234`, from ten thousand on in a form such as `12.3k` or `4.6M`."""
    return f"{value:,.0f}" if value < 10_000 else abbreviate(value)


def as_svg(picture: Picture, of: str) -> Markup:
    """Return an SVG element without ids and style attributes, so that a page can have many of them and needs to allow no inline style.

    Args:
        picture: The picture.
        of: What the picture is of, for its alternative text.
    """
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # a letter that DejaVu Sans lacks is in a font of the browser
        drawn = ElementTree.fromstring(_draw(picture, format="svg", facecolor="none"))
    described = {"role": "img", "aria-label": f"{of}: {picture.title}"}
    root = ElementTree.Element("svg", {"class": "plot", "viewBox": drawn.attrib["viewBox"], **described})
    root.extend(drawn.findall("{*}g"))  # without matplotlib's style sheet
    for element in [*root.iter()]:
        element.tag = element.tag.rpartition("}")[2]
        element.attrib.pop("clip-path", None)  # nothing is outside the axes
        for name, value in re.findall(r"([a-z-]+): ([^;]+)", element.attrib.pop("style", "")):
            if not name.startswith("font"):
                element.set(name, _VARIABLES.get(value, value))
        _, is_tooltip, text = element.attrib.pop("id", "").partition(_TOOLTIP)
        if is_tooltip:
            ElementTree.SubElement(element, "title").text = text
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def as_png(picture: Picture) -> bytes:
    """Return a PNG."""
    return _draw(picture, format="png", dpi=80, metadata={"Software": None})


def _draw(picture: Picture, **how: Any) -> bytes:
    """Return the picture as `Figure.savefig` writes it. It has margins of its own, because matplotlib takes 60 ms to find them."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # an unwritable HOME is no news between progress bars
    from matplotlib import style
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure

    names, ticks = picture.names, picture.ticks or [*enumerate(picture.names)]
    short = [text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…" for _, text in ticks]
    is_bars, buffer = picture.kind == "bars" or not names, io.BytesIO()
    inner = _ROW * max(1, len(names)) if is_bars else _HEIGHT
    left = _EDGE + _CHARACTER * max(map(len, short), default=0) if is_bars else _NUMBERS
    has_legend = bool(picture.legend or picture.limit)
    bottom = 44 if has_legend else 20
    height = _TOP + inner + bottom
    with style.context(["default", _STYLE]):
        figure = Figure(figsize=(_WIDTH / 72, height / 72), facecolor=CARD)
        axes = figure.add_axes((left / _WIDTH, bottom / height, 1 - (left + _RIGHT) / _WIDTH, inner / height))
        axes.set_title(picture.title if names else f"{picture.title}: none", loc="left", y=1, fontsize=11)
        axes.spines[:].set_visible(False)
        axes.tick_params(bottom=False, left=False)
        if is_bars:
            drawn = axes.barh(range(len(names)), picture.values, color=picture.colors)
            axes.bar_label(drawn, picture.labels, padding=5, color=_INK)
            axes.set_xticks([])
            axes.set_yticks([place for place, _ in ticks], short, color=_INK)
            axes.margins(0.4, 0)  # room for the labels
            axes.invert_yaxis()
        else:
            places = [place + 0.5 for place in range(len(names))]
            axes.bar(places, picture.values, 0.95, color=picture.colors)
            if picture.rest:
                axes.bar(places, picture.rest, 0.95, picture.values, color=REST)
            shown = picture.ticks[:: -math.ceil(len(picture.ticks) / _MAX_TICKS) or 1]
            axes.set_xticks([place for place, _ in shown], [text for _, text in shown])
            if picture.is_logarithmic:
                axes.set_yscale("symlog", linthresh=1)
            else:
                axes.locator_params(axis="y", nbins=5, integer=True)
            axes.yaxis.set_major_formatter(lambda value, _: short_number(value))
            axes.set(xlim=(0, max(len(names), 5)), ylim=0)  # a few columns remain narrow
            axes.grid(axis="y")
        for patch, name, value in zip(axes.patches, [*names] * 2, [*picture.values, *picture.rest], strict=False):
            part = picture.legend.get(to_hex(patch.get_facecolor()))
            number = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
            patch.set_gid(f"{_TOOLTIP}{name}, {part}: {number}" if part else f"{_TOOLTIP}{name}: {number}")
        for color, text in picture.legend.items():
            axes.bar(0, 0, 0, color=color, label=text)
        if picture.limit:
            axes.axvline(picture.limit[0], color=WARNED, linestyle="--", label=picture.limit[1])
        if has_legend:
            figure.legend(loc="lower left", ncols=4)
        figure.savefig(buffer, **how)
    return buffer.getvalue()
